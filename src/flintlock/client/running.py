"""From a job to its end: what `flintlock.run` and `flintlock run` both do.

`run_job` finds nothing and prints nothing: its caller has found the cluster, and passes hooks for what a person sees
and decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from flintlock.api.jobs import JobAttempts
from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, Packable, driver_note, given_overrides
from flintlock.client.authoring.sql_form import RESULT, SqlJob
from flintlock.client.clusters.discovery import (
    ClusterConnection,
    RunningCluster,
    cluster_or_embedded,
    connected_cluster,
)
from flintlock.client.clusters.job_cluster import JobClusters, with_job_id
from flintlock.client.connection.attachment import Attachment, attached
from flintlock.client.connection.handle import JobHandle
from flintlock.client.connection.results import ResultHandle
from flintlock.client.display.console import (
    Display,
    SilentDisplay,
    display_for,
    error_console,
    output_console,
    output_stream,
    result_table,
)
from flintlock.client.display.following import OutputReader, follow
from flintlock.client.display.notebook import in_notebook
from flintlock.config.files import LoadedConfiguration, load, state_directory
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId
from flintlock.model.operations import ConfigValue


class JobRun(Struct, frozen=True, kw_only=True):
    """A job that has finished, with its results."""

    job_id: JobId
    name: str
    results: dict[str, ResultHandle]

    @property
    def id(self) -> JobId:
        """The job's id, as a `JobHandle` calls it."""
        return self.job_id

    def result(self, name: str | None = None) -> ResultHandle:
        """Return a result by its step's name, or the only one. Raises KeyError that lists the names there are."""
        if name is None and len(self.results) == 1:
            return next(iter(self.results.values()))
        if name is None or name not in self.results:
            what = "name one of the results" if name is None else f"no result {name!r}"
            raise KeyError(f"{what}; there are: {', '.join(self.results) or 'none'}")
        return self.results[name]

    def _repr_html_(self) -> str:
        from flintlock.client.display.html import result_html

        return "".join(result_html(result.table) for result in self.results.values())


class InterruptAction(Enum):
    """What an interrupt (Ctrl-C) means for the job."""

    DETACH = "detach"  # leave it running
    CANCEL = "cancel"
    RESUME = "resume"  # follow it further


class RunHooks(Protocol):
    """What differs between the callers of `run_job`."""

    def cluster_starting(self, text: str) -> None:
        """Notify the user that a cluster is being started for the job."""
        ...

    def packaged(self, package: JobPackage) -> None:
        """Notify the user of what was decided about the job before it is submitted."""
        ...

    def submitted(self, handle: JobHandle, cluster: str = "") -> None:
        """Notify the user that the job is durable. `cluster`: the one of its own, as other commands name it."""
        ...

    def display(self, package: JobPackage) -> Display:
        """Return what shows the job while it runs. It is closed at the end."""
        ...

    def interrupted(self, handle: JobHandle, *, detachable: bool) -> InterruptAction:
        """Decide what an interrupt means. The job can be left running only if it is `detachable`."""
        ...


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to run a job. `overrides` change the job, `cluster_overrides` (`key=value`) configure an embedded cluster."""

    overrides: Overrides = AS_WRITTEN
    cluster_overrides: Sequence[str] = ()
    detached: bool = False  # return once the job is submitted
    attached: bool = False  # the job is cancelled when this process dies
    application: bool = False  # the job is a program, whose cluster also runs the jobs that it submits


class RunOutcome(Struct, frozen=True, kw_only=True):
    """A job that was run; `end` is None if it still runs. `status` is that of its own cluster, if that has ended."""

    handle: JobHandle
    end: JobAttempts | None
    status: ApplicationStatus | None = None


@contextmanager
def run_job(
    job: Packable, cluster: RunningCluster | None, settings: LoadedConfiguration, options: RunOptions, hooks: RunHooks
) -> Generator[RunOutcome]:
    """Run the job to its end, on the cluster or (None) on an embedded one, which lasts as long as the block.

    Yields when the job has ended or is left running. Raises Invalid for an invalid job, before a cluster is started.
    """
    # An embedded cluster is this very installation: packaging first finds mistakes before anything is started.
    package = job.package(options.overrides) if cluster is None else None
    if cluster is None:
        hooks.cluster_starting(STARTING_TEXT)
    with connected_cluster(settings, cluster, options.cluster_overrides) as connection:
        if package is None:
            package = connection.client.package(job, options.overrides)
        hooks.packaged(package)
        # An embedded cluster ends with this process in any case: there is nothing to attach to.
        attachment = (
            Attachment.of(settings.configuration, package) if options.attached and cluster is not None else None
        )
        handle = connection.client.submit(package if attachment is None else attachment.bind(package))
        hooks.submitted(handle)
        if options.detached:
            yield RunOutcome(handle=handle, end=None)
            return
        with _attached(connection, handle, attachment):
            detachable = connection.embedded is None and attachment is None
            check = connection.embedded.check if connection.embedded is not None else None
            end = follow_job(handle, hooks.display(package), hooks.interrupted, detachable=detachable, check=check)
        yield RunOutcome(handle=handle, end=end)


@contextmanager
def run_per_job(
    job: Packable, clusters: JobClusters, settings: LoadedConfiguration, options: RunOptions, hooks: RunHooks
) -> Generator[RunOutcome]:
    """Run the job to its end on a cluster of its own.

    Yields when the job has ended or is left running. The cluster keeps the result of a job that has ended until the
    block is left. Raises Invalid for an invalid job, before a cluster is started.
    """
    package = with_job_id(job.package(options.overrides))
    hooks.packaged(package)
    attachment = Attachment.of(settings.configuration, package) if options.attached else None
    package = package if attachment is None else attachment.bind(package)
    what = "program" if options.application else "job"
    hooks.cluster_starting(f"starting a cluster for this {what} {clusters.place(JobId(package.spec.job_id or ''))} …")
    cluster = clusters.start(package, options.cluster_overrides, attached=not options.detached)
    with cluster.running.client() as client:
        handle = JobHandle(client.http, cluster.job_id, package.spec.name)
        hooks.submitted(handle, cluster.address or str(cluster.state_dir))
        if options.detached:
            yield RunOutcome(handle=handle, end=None)
            return
        connection = ClusterConnection(client)
        with _attached(connection, handle, attachment):
            end = follow_job(handle, hooks.display(package), hooks.interrupted, detachable=attachment is None)
        status = None if end is None else clusters.await_end(client, cluster)
        try:
            yield RunOutcome(handle=handle, end=end, status=status)
        finally:
            if status is not None:
                with suppress(FlintlockError):  # it ends by itself, later
                    client.shut_down()


@contextmanager
def _attached(connection: ClusterConnection, handle: JobHandle, attachment: Attachment | None) -> Generator[None]:
    """Send heartbeats for an attached job during the block; cancel the job if this process is asked to exit."""
    if attachment is None:
        yield
        return
    http = connection.client.http
    with attached(
        http.urls, handle.id, attachment, http.server_ms, discover=http.discover, credentials=http.credentials
    ):
        try:
            yield
        except SystemExit:  # the missing heartbeats would cancel it too, but only after the timeout
            with suppress(FlintlockError):
                handle.cancel(patience_s=0.0)
            raise


def follow_job(
    handle: JobHandle,
    display: Display,
    interrupted: Callable[..., InterruptAction],
    *,
    detachable: bool = True,
    check: Callable[[], None] | None = None,
) -> JobAttempts | None:
    """Follow the job to its end; return None if it is left running. `interrupted` is that of `RunHooks`."""
    reader = OutputReader(handle)
    try:
        while True:
            try:
                return follow(handle, display, reader, check=check)
            except KeyboardInterrupt:
                display.pause()
                match interrupted(handle, detachable=detachable):
                    case InterruptAction.DETACH:
                        return None
                    case InterruptAction.CANCEL:
                        handle.cancel()
                    case InterruptAction.RESUME:
                        pass
    finally:
        display.close()


def run_query(
    connection: ClusterConnection, job: SqlJob, display: Display, overrides: Overrides = AS_WRITTEN
) -> ResultHandle:
    """Run a query to its end and return its rows. An interrupt (Ctrl-C) cancels it. Raises JobFailed, JobCanceled."""
    client = connection.client
    handle = client.submit(client.package(job, overrides))
    check = connection.embedded.check if connection.embedded is not None else None
    try:
        follow(handle, display, OutputReader(handle), check=check)
    except KeyboardInterrupt:
        handle.cancel()
        raise
    finally:
        display.close()
    return handle.require_success().result(RESULT)


class _ScriptHooks:
    """Hooks of `flintlock.run`: progress on stderr unless quiet, and an interrupt cancels the job."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def cluster_starting(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(text + "\n")

    def packaged(self, package: JobPackage) -> None:
        if not self._quiet and (note := driver_note(package)) is not None:
            sys.stderr.write(f"{note}\n")

    def submitted(self, handle: JobHandle, cluster: str = "") -> None:
        pass

    def display(self, package: JobPackage) -> Display:
        return SilentDisplay() if self._quiet else display_for(error_console(), output_stream(package.graph))

    def interrupted(self, handle: JobHandle, *, detachable: bool) -> InterruptAction:  # noqa: ARG002 never detaches
        handle.cancel()
        raise KeyboardInterrupt


STARTING_TEXT = "starting an embedded cluster (its Spark engine needs a few seconds) …"


def run(
    job: Packable,
    *,
    url: str | Sequence[str] = (),
    local: bool = False,
    state_dir: str | Path | None = None,
    params: Mapping[str, object] | None = None,
    parallelism: int | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    name: str | None = None,
    labels: Mapping[str, ConfigValue] | None = None,
    quiet: bool = False,
) -> JobRun:
    """Run the job to its end, show its progress and print its results; the same as `flintlock run file.py:job`.

    In a notebook the progress is a table that is updated in place, and results are shown by what is returned.

    It runs on the cluster at `url`, else on the configured one, else on the running one of the state directory, else on
    an embedded one for the duration of the job (`local` forces that), unless the state directory belongs to a cluster
    that does not run. Raises JobFailed with the structured failure,
    JobCanceled, Invalid for a job that cannot run, Unavailable if a named cluster does not respond. Interrupting it
    (Ctrl-C) cancels the job.
    """
    settings = load()
    overrides = given_overrides(name=name, params=params, parallelism=parallelism, config=config, labels=labels)
    urls = [url] if isinstance(url, str) else list(url)
    cluster = None if local else cluster_or_embedded(settings, urls, state_directory(settings, state_dir))
    options = RunOptions(overrides=overrides)
    with run_job(job, cluster, settings, options, _ScriptHooks(quiet=quiet)) as outcome:
        handle = outcome.handle.require_success()
        results = {name: handle.result(name).fetch() for name in handle.results()}
    if not quiet and not in_notebook():  # which shows what is returned
        for result in results.values():
            output_console().print(result_table(result.table))
    return JobRun(job_id=handle.id, name=handle.name, results=results)

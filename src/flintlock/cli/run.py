"""`flintlock run`: from a target to its end, with everything a person at a terminal expects on the way."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from flintlock.cli.settings import (
    cluster_options,
    define_option,
    json_option,
    on_terminal,
    print_json,
    read_settings,
    split_defines,
)
from flintlock.config.extras import require_extra
from flintlock.config.files import Settings, split_assignment
from flintlock.config.options import CLIENT_HEARTBEAT_TIMEOUT
from flintlock.model.errors import FlintlockError, Refused
from flintlock.model.jobgraph import EngineKind
from flintlock.model.states import JobStatus

if TYPE_CHECKING:
    from flintlock.api.jobs import JobAttempts, ResultTable
    from flintlock.client.authoring.package import JobPackage, Overrides
    from flintlock.client.clusters.discovery import Chosen
    from flintlock.client.connection.attachment import Attachment
    from flintlock.client.connection.handle import JobHandle
    from flintlock.client.display.console import Display

_NEEDS_A_DRIVER: Final = "JVM_ATTRIBUTE_NOT_SUPPORTED"
F = TypeVar("F", bound=Callable[..., Any])


def job_options(command: F) -> F:
    """Add what changes a job as it is written: shared by `run` and `info`."""
    options = (
        click.option("-p", "--parallelism", type=click.IntRange(1), metavar="N", help="The job's parallelism."),
        click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter; repeatable."),
        click.option("--name", metavar="NAME", help="The job's name."),
        click.option("--engine", type=click.Choice([kind.value for kind in EngineKind]), help="Whose Spark driver."),
        click.option("--py-files", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                     help="A Python file, zip, wheel or folder that travels along; repeatable."),
        define_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


class RunCommand(click.Command):
    """Options may follow the target, unless it is a program: what follows that is its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look at the target first."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        found, _, _ = parser.parse_args(args=list(args))
        ctx.allow_interspersed_args = not str(found.get("target") or "").endswith(".py")
        return super().parse_args(ctx, args)


@click.command(cls=RunCommand)
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-d", "--detached", is_flag=True, help="Print the job's id and leave it running.")
@click.option(
    "--attached",
    is_flag=True,
    help="Have the job cancelled if this command dies or falls silent for"
    " client.heartbeat.timeout (setting that with -D means it too).",
)
@click.option("--local", is_flag=True, help="Run on an embedded cluster, for the time of the job.")
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@job_options
@json_option
@cluster_options
def run(
    *,
    target: str, args: tuple[str, ...], detached: bool, attached: bool, local: bool, verbose: bool, quiet: bool,
    as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None, **given: Any,
) -> int:  # fmt: skip
    """Run TARGET and show it to its end.

    TARGET is job.yaml, file.py:name (a job graph), or file.py (a program; ARGS are its own, options of Flintlock stand
    before it). Runs on the cluster named with -m, else on the configured one, else on the live one of the state
    directory, else on an embedded one for the time of the job.
    """
    from flintlock.client.authoring.package import JobPackage
    from flintlock.client.authoring.targets import read_target
    from flintlock.client.clusters.discovery import standing_cluster
    from flintlock.client.connection.attachment import Attachment

    settings, directory = read_settings(conf, state_dir, given["defines"])
    embedded = local or standing_cluster(settings, urls, directory) is None
    if local and urls:
        raise Refused("--local runs on a cluster of its own: give either that or -m")
    if attached and detached:
        raise Refused("-d leaves the job running when this command ends, --attached does not: give one of them")
    if embedded and detached:
        why = "--local" if local else "no cluster runs: start one with `flintlock cluster start`"
        raise Refused(f"-d needs a standing cluster, one that outlives this command ({why})")
    if embedded:
        require_extra("cluster", "--local" if local else "no cluster runs, -m names none, and an embedded one")
    job = read_target(target, args)
    overrides = overrides_of(**given)
    # An embedded cluster is this very installation: packing first tells of a mistake before anything is started.
    packed = job.package(overrides) if embedded else job
    job_defines, cluster_defines = split_defines(given["defines"])
    attached = (attached or CLIENT_HEARTBEAT_TIMEOUT.key in job_defines) and not detached
    with (
        _ended_by_sigterm(),
        _cluster(settings, urls, directory, local=embedded, defines=cluster_defines, quiet=quiet) as chosen,
    ):
        package = packed if isinstance(packed, JobPackage) else chosen.client.package(packed, overrides)
        # An embedded cluster ends with this command anyhow: there is nothing to be attached to.
        attachment = Attachment.of(settings.configuration, package) if attached and not embedded else None
        return _run(chosen, package, attachment, detached=detached, verbose=verbose, quiet=quiet, as_json=as_json)


def overrides_of(
    *,
    parallelism: int | None,
    params: Sequence[str],
    name: str | None,
    engine: str | None,
    py_files: Sequence[Path],
    defines: tuple[str, ...],
) -> Overrides:
    """Return what the options of `job_options` change about a job."""
    from flintlock.client.authoring.package import Overrides

    return Overrides(
        name=name,
        parallelism=parallelism,
        engine=EngineKind(engine) if engine else None,
        params=dict(split_assignment(text, "--param") for text in params),
        config=split_defines(defines)[0],
        py_files=tuple(py_files),
    )


def _cluster(
    settings: Settings, urls: Sequence[str], directory: Path, *, local: bool, defines: Sequence[str], quiet: bool
) -> Any:
    from flintlock.client.clusters.discovery import chosen_cluster

    if local and not quiet:
        click.echo("starting an embedded cluster (its Spark engine needs a moment) …", err=True)
    return chosen_cluster(settings, urls, directory, local=local, overrides=defines)


def _run(
    chosen: Chosen,
    package: JobPackage,
    attachment: Attachment | None,
    *,
    detached: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    from flintlock.client.display.console import SilentDisplay, display_for, error_console, output_stream

    started = time.monotonic()
    handle = chosen.client.submit(package if attachment is None else attachment.bind(package))
    if detached:
        _print_detached(handle, as_json)
        return 0
    output = sys.stderr if as_json else output_stream(package.graph)
    display = SilentDisplay(output) if quiet else display_for(error_console(), output)
    if not quiet:
        click.echo(f"job {handle.id}", err=True)
    with _attached(chosen, handle, attachment):
        end = _followed(handle, display, chosen, leavable=chosen.embedded is None and attachment is None)
    if end is None:
        return 0
    tables = [handle.result(name).table for name in handle.results()] if end.status is JobStatus.FINISHED else []
    _print_end(end, tables, elapsed_s=time.monotonic() - started, verbose=verbose, quiet=quiet, as_json=as_json)
    return 0 if end.status is JobStatus.FINISHED else 1


@contextmanager
def _attached(chosen: Chosen, handle: JobHandle, attachment: Attachment | None) -> Generator[None]:
    """Say that this client is there while it follows its job, if the job is to hear it; cancel it when told to end."""
    if attachment is None:
        yield
        return
    from flintlock.client.connection.attachment import attached

    http = chosen.client.http
    with attached(http.urls, handle.id, attachment, http.server_ms, http.discover):
        try:
            yield
        except SystemExit:  # the silence would cancel it too, but only after a while
            with suppress(FlintlockError):
                handle.cancel(patience_s=0.0)
            raise


def _followed(handle: JobHandle, display: Display, chosen: Chosen, *, leavable: bool) -> JobAttempts | None:
    """Follow the job to its end; None if it was left running, where it can be (`leavable`)."""
    from flintlock.client.display.following import OutputReader, follow

    reader = OutputReader(handle)
    check = chosen.embedded.check if chosen.embedded is not None else None
    try:
        while True:
            try:
                return follow(handle, display, reader, check=check)
            except KeyboardInterrupt:
                display.pause()
                match _asked(handle, leavable=leavable):
                    case "leave":
                        click.echo(f"job {handle.id} goes on; cancel it with: flintlock cancel {handle.id}", err=True)
                        return None
                    case "cancel":
                        handle.cancel()
                    case _:
                        pass
    finally:
        display.close()


def _asked(handle: JobHandle, *, leavable: bool) -> str:
    """Ask what an interrupt means; where nobody can be asked, leave the job, or end one that cannot be left."""
    if not on_terminal():
        return "leave" if leavable else "cancel"
    choices = {"l": "leave", "c": "cancel", "g": "go on"} if leavable else {"c": "cancel", "g": "go on"}
    words = "l(eave running), c(ancel), g(o on)" if leavable else "c(ancel), g(o on)"
    try:
        answer = click.prompt(
            f"\njob {handle.id} still runs: {words}", type=click.Choice(list(choices)), show_choices=False, err=True
        )
    except (click.Abort, KeyboardInterrupt):  # a second Ctrl-C means it
        return "leave" if leavable else "cancel"
    return choices[answer]


def _print_detached(handle: JobHandle, as_json: bool) -> None:
    if as_json:
        print_json({"jobid": handle.id, "name": handle.name})
    else:
        click.echo(handle.id)


def _print_end(
    end: JobAttempts, tables: Sequence[ResultTable], *, elapsed_s: float, verbose: bool, quiet: bool, as_json: bool
) -> None:
    from flintlock.client.display.console import output_console, result_table, summary_line
    from flintlock.client.display.progress import failure_lines, failure_of

    if as_json:
        print_json({"jobid": end.jobid, "name": end.name, "status": end.status, "failure": end.failure,
                    "failures": end.failures, "results": {table.name: table for table in tables}})  # fmt: skip
    else:
        console = output_console()
        for table in tables:
            console.print(result_table(table))
    failure = failure_of(end.failure) if end.status is JobStatus.FAILED else None
    if failure is not None:
        from flintlock.model.failure_text import render

        if len(end.failures) > 1 or any(line.labels for line in end.failures):
            click.echo(
                "\n".join(["failures, the latest last:", *(f"  {line}" for line in failure_lines(end))]), err=True
            )
        click.echo(click.style(render(failure, verbose=verbose), fg="red"), err=True)
        if _NEEDS_A_DRIVER in failure.message and end.engine == EngineKind.SHARED:
            click.echo("(SparkContext and RDDs need a Spark driver of their own: add --engine dedicated)", err=True)
        if not verbose and (failure.stack_trace or failure.jvm_stack_trace):
            click.echo("(--verbose shows the whole stack traces)", err=True)
    if not quiet:
        click.echo(summary_line(end, elapsed_s), err=True)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Have SIGTERM end this command by its own way out, on which an embedded cluster is ended with it."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""`flintlock run`: runs a target to its end; what a person at a terminal sees and is asked on the way."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from flintlock.cli.jobs.spark_submit import setting_as_file, unknown_option
from flintlock.cli.settings import (
    announced_wait,
    cluster_options,
    define_option,
    json_option,
    on_terminal,
    print_json,
    read_settings,
    split_defines,
)
from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration, split_assignment
from flintlock.config.options import (
    CLIENT_HEARTBEAT_TIMEOUT,
    RESTORE_CLAIM_MODE,
    RESTORE_IGNORE_UNCLAIMED,
    RESTORE_PATH,
    RESTORE_REWIND_SINKS,
)
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import EngineKind
from flintlock.model.states import JobStatus

if TYPE_CHECKING:
    from flintlock.api.jobs import JobAttempts, ResultTable
    from flintlock.client.authoring.package import JobPackage, Overrides
    from flintlock.client.clusters.discovery import RunningCluster
    from flintlock.client.clusters.job_cluster import JobClusters
    from flintlock.client.connection.handle import JobHandle
    from flintlock.client.display.console import Display
    from flintlock.client.running import InterruptAction

#: What Spark Connect says to scripts that need a driver of their own.
_NEEDS_A_DRIVER: Final = (
    "JVM_ATTRIBUTE_NOT_SUPPORTED",
    "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT",
    "[NOT_IMPLEMENTED] rdd is not implemented",
)
F = TypeVar("F", bound=Callable[..., Any])


class TargetKind(StrEnum):
    """Where `flintlock run` runs a job: Flink's names."""

    LOCAL = "local"
    SESSION = "session"
    PER_JOB = "per-job"
    APPLICATION = "application"
    YARN_SESSION = "yarn-session"
    YARN_PER_JOB = "yarn-per-job"
    YARN_APPLICATION = "yarn-application"


#: Those that start a cluster for one job, and among them those for a program and the jobs that it submits.
_OWN_CLUSTER: Final = (
    TargetKind.PER_JOB,
    TargetKind.APPLICATION,
    TargetKind.YARN_PER_JOB,
    TargetKind.YARN_APPLICATION,
)
_PROGRAMS: Final = (TargetKind.APPLICATION, TargetKind.YARN_APPLICATION)


def job_options(command: F) -> F:
    """Add the options that change a job: shared by `run` and `info`."""
    options = (
        click.option("-p", "--parallelism", type=click.IntRange(1), metavar="N", help="Set the job's parallelism."),
        click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Set a parameter; repeatable."),
        click.option("--name", metavar="NAME", help="Set the job's name."),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE",
                     help="Set a label, to find the job by; repeatable."),
        click.option("--engine", type=click.Choice([kind.value for kind in EngineKind]),
                     help="Use the TaskManager's shared Spark driver, or a dedicated one; auto (programs only, their"
                     " default) chooses the dedicated one if the program needs it."),
        click.option("--env", "env", multiple=True, metavar="NAME=VALUE",
                     help="Set an environment variable of a program; repeatable. ${secret:NAME} stands for a secret."),
        click.option("--py-files", multiple=True, metavar="FILES",
                     help="Ship Python files, zips, wheels or folders with the job; comma-separated or repeated."),
        click.option("--files", multiple=True, metavar="FILES",
                     help="Ship files that a program opens beside its script; comma-separated or repeated."),
        click.option("--jars", multiple=True, metavar="FILES",
                     help="Ship jars with the job, for a Spark driver of its own; comma-separated or repeated."),
        click.option("--packages", multiple=True, metavar="COORDINATES",
                     help="Have the job's own Spark driver download packages (group:artifact:version) with their"
                     " dependencies; comma-separated or repeated."),
        click.option("--requirements", type=click.Path(path_type=Path), metavar="FILE",
                     help="Run the job in a Python environment of its own, with these requirements installed by pip;"
                     " it is built once for the same content."),
        click.option("--pyenv", type=click.Path(path_type=Path), metavar="ARCHIVE",
                     help="Run the job in a Python environment of its own, packed by venv-pack or conda-pack."),
        define_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


module_option: Final = click.option(
    "--module", "as_module", is_flag=True,
    help="TARGET is the name of a module in the current directory, run as python -m does; its package is sent with it.",
)  # fmt: skip


class RunCommand(click.Command):
    """Options may follow the target, unless it is a program: what follows a program belongs to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the target first. An option of spark-submit is refused with what there is in its place."""
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            found, _, _ = parser.parse_args(args=list(args))
            program = found.get("as_module") or str(found.get("target") or "").endswith(".py")
            ctx.allow_interspersed_args = not program
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (message := unknown_option(error.option_name)) is not None:
                raise click.UsageError(message, ctx) from None
            raise
        if (message := setting_as_file(str(ctx.params.get("conf") or ""))) is not None:
            raise click.UsageError(message, ctx)
        return rest


@click.command(cls=RunCommand)
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-d", "--detached", is_flag=True, help="Print the job's id and leave the job running.")
@click.option(
    "--attached",
    is_flag=True,
    help="Have the job cancelled if this command dies, or sends no heartbeat for client.heartbeat.timeout"
    " (setting that option with -D implies --attached).",
)
@click.option(
    "-t",
    "--target-kind",
    "kind",
    type=click.Choice([kind.value for kind in TargetKind]),
    help="Where the job runs: local (an embedded cluster, for the duration of the job), session (a cluster that runs),"
    " per-job (a cluster of its own in the background, which ends with the job), or application (the same for a program"
    " and the jobs that it submits), yarn-session (the session on YARN that `flintlock session` has started or"
    " attached last, or that yarn.application.id names), yarn-per-job (a cluster on YARN for this job), or"
    " yarn-application (the same for a program and the jobs that it submits).",
)
@click.option("--local", is_flag=True, help="The same as -t local.")
@click.option("-s", "--from-savepoint", metavar="PATH",
              help="Begin a streaming job from this savepoint, or from checkpoints that a job has left.")  # fmt: skip
@click.option("-n", "--allow-non-restored-state", is_flag=True,
              help="Drop the state of saved queries that the job does not have.")  # fmt: skip
@click.option(
    "--claim", is_flag=True, help="Let the restored queries keep their ids, in place of the job that was saved."
)
@click.option("--rewind-sinks", is_flag=True,
              help="Move what file sinks have got after the savepoint out of them.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@module_option
@job_options
@json_option
@cluster_options
def run(
    *,
    target: str, args: tuple[str, ...], detached: bool, attached: bool, kind: str | None, local: bool, verbose: bool,
    quiet: bool, as_json: bool, as_module: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None,
    from_savepoint: str | None, allow_non_restored_state: bool, claim: bool, rewind_sinks: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Run TARGET and show its progress until it ends.

    TARGET is job.yaml or job.json (- reads it from stdin), file.py:name or package.module:name (a job graph), file.sql
    (queries), or file.py (a program: ARGS are passed to it; put options of Flintlock before it); with --module, a
    program that is the module package.module. Runs on the cluster
    named with -m, else on the configured one, else on the running one of the state directory. Where none is configured
    and none was ever started in the state directory, it runs on an embedded one for the duration of the job.
    """
    from flintlock.client.authoring.targets import ProgramJob, read_target
    from flintlock.client.running import RunOptions, run_job, run_per_job

    given["defines"] += _restore_defines(
        from_savepoint, allow_unclaimed=allow_non_restored_state, claim=claim, rewind_sinks=rewind_sinks
    )
    settings, directory = read_settings(conf, state_dir, given["defines"])
    where = _target_kind(kind, urls, local=local)
    if attached and detached:
        raise Refused("-d leaves the job running when this command ends, --attached does not: give one of them")
    per_job = where in _OWN_CLUSTER
    cluster = None if per_job else _find_cluster(where, settings, urls, directory, detached=detached)
    overrides = overrides_of(**given)
    application = where in _PROGRAMS
    job = read_target(target, args, connect=not overrides.needs_driver, as_module=as_module, application=application)
    if isinstance(job, ProgramJob) and not quiet and (note := job.note(overrides)) is not None:
        click.echo(note, err=True)
    job_defines, cluster_defines = split_defines(given["defines"])
    if cluster is not None:
        _warn_of_cluster_options(cluster_defines)
    if application and not isinstance(job, ProgramJob):
        other = (kind or "").replace("application", "per-job")
        raise Refused(f"-t {kind} needs a program, file.py or --module, not {target}: use -t {other}")
    options = RunOptions(
        overrides=overrides,
        cluster_overrides=cluster_defines,
        detached=detached,
        application=application,
        attached=(attached or CLIENT_HEARTBEAT_TIMEOUT.key in job_defines) and not detached,
    )
    hooks = TerminalHooks(detached=detached, quiet=quiet, as_json=as_json)
    running = (
        run_per_job(
            job, _job_clusters(where, settings, directory, given["defines"], quiet=quiet), settings, options, hooks
        )
        if per_job
        else run_job(job, cluster, settings, options, hooks)
    )
    with _exit_on_sigterm(), running as outcome:
        end = outcome.end
        if end is None:
            return 0
        finished = end.status is JobStatus.FINISHED
        tables = [outcome.handle.result(name).table for name in outcome.handle.results()] if finished else []
        print_end(end, tables, elapsed_s=hooks.elapsed_s, verbose=verbose, quiet=quiet, as_json=as_json)
        return 0 if finished and outcome.status in (None, ApplicationStatus.SUCCEEDED) else 1


def _restore_defines(
    savepoint: str | None, *, allow_unclaimed: bool, claim: bool, rewind_sinks: bool
) -> tuple[str, ...]:
    """Return the options of the job that -s, -n, --claim and --rewind-sinks stand for."""
    if savepoint is None:
        if allow_unclaimed or claim or rewind_sinks:
            raise Refused("-n, --claim and --rewind-sinks say how a job is restored: give the savepoint with -s")
        return ()
    path = savepoint if ":" in savepoint else str(Path(savepoint).absolute())
    return (
        f"{RESTORE_PATH.key}={path}",
        *((f"{RESTORE_IGNORE_UNCLAIMED.key}=true",) if allow_unclaimed else ()),
        *((f"{RESTORE_CLAIM_MODE.key}=CLAIM",) if claim else ()),
        *((f"{RESTORE_REWIND_SINKS.key}=true",) if rewind_sinks else ()),
    )


def _job_clusters(
    where: TargetKind | None, settings: LoadedConfiguration, directory: Path, defines: tuple[str, ...], *, quiet: bool
) -> JobClusters:
    """Return where the cluster of the job's own is started."""
    application = where in _PROGRAMS
    if where in (TargetKind.YARN_PER_JOB, TargetKind.YARN_APPLICATION):
        from flintlock.client.clusters.yarn_cluster import YarnJobClusters

        def notify(text: str) -> None:
            if not quiet:
                click.echo(text, err=True)

        of_job, values = split_defines(defines)[0], settings.configuration.as_dict()
        configuration = Configuration({key: value for key, value in values.items() if key not in of_job})
        return YarnJobClusters(configuration, directory, notify, application=application)
    from flintlock.client.clusters.job_cluster import LocalJobClusters

    return LocalJobClusters(settings, directory, application=application)


def _warn_of_cluster_options(defines: Sequence[str]) -> None:
    """Say which settings have no effect, because the members of a running cluster have read theirs already."""
    for key in (text.partition("=")[0] for text in defines):
        if key.startswith(("jobmanager.", "taskmanager.", "resourcemanager.")):
            warning = f"{key} has no effect here: it is an option of the cluster, which is already running"
            click.echo(click.style("warning: ", fg="yellow") + warning, err=True)


def _target_kind(kind: str | None, urls: Sequence[str], *, local: bool) -> TargetKind | None:
    """Return where the job is to run; None: on a cluster that is found, else on an embedded one. Raises Refused."""
    where = None if kind is None else TargetKind(kind)
    if local and where not in (None, TargetKind.LOCAL):
        raise Refused(f"--local is -t local: give either that or -t {kind}")
    where = TargetKind.LOCAL if local else where
    if where is TargetKind.YARN_SESSION and urls:
        raise Refused("-t yarn-session finds its cluster: give either that or -m yarn://application_…")
    if where not in (None, TargetKind.SESSION) and urls:
        given = "--local" if local else f"-t {kind}"
        raise Refused(f"{given} starts its own cluster: give either {given} or -m")
    return where


def _find_cluster(
    where: TargetKind | None, settings: LoadedConfiguration, urls: Sequence[str], directory: Path, *, detached: bool
) -> RunningCluster | None:
    """Return the cluster to run the job on; None: an embedded one is to be started. Raises Refused, Unavailable."""
    from flintlock.client.clusters.discovery import cluster_or_embedded, session_cluster

    if where is TargetKind.SESSION:
        return session_cluster(settings, urls, directory, announced_wait())
    if where is TargetKind.YARN_SESSION:
        from flintlock.client.clusters.yarn_cluster import YarnSessions

        return YarnSessions(settings.configuration, directory).find().running
    local = where is TargetKind.LOCAL
    cluster = None if local else cluster_or_embedded(settings, urls, directory, announced_wait())
    if cluster is None and detached:
        why = "--local" if local else "no cluster runs: start one with `flintlock cluster start`"
        raise Refused(f"-d needs a cluster that outlives this command ({why})")
    if cluster is None:
        require_extra("cluster", "--local" if local else "no cluster runs, -m names none, and an embedded one")
    return cluster


def overrides_of(
    *,
    parallelism: int | None,
    params: Sequence[str],
    name: str | None,
    labels: Sequence[str],
    engine: str | None,
    env: Sequence[str],
    py_files: Sequence[str],
    files: Sequence[str],
    jars: Sequence[str],
    packages: Sequence[str],
    requirements: Path | None,
    pyenv: Path | None,
    defines: tuple[str, ...],
) -> Overrides:
    """Return the overrides that the options of `job_options` stand for."""
    from flintlock.client.authoring.package import Overrides

    return Overrides(
        name=name,
        parallelism=parallelism,
        engine=EngineKind(engine) if engine else None,
        params=dict(split_assignment(text, "--param") for text in params),
        config=split_defines(defines)[0],
        labels=dict(split_assignment(text, "--label") for text in labels),
        env=dict(split_assignment(text, "--env") for text in env),
        py_files=tuple(Path(file) for file in _items(py_files)),
        files=tuple(Path(file) for file in _items(files)),
        jars=tuple(Path(jar) for jar in _items(jars)),
        packages=tuple(_items(packages)),
        requirements=requirements,
        pyenv=pyenv,
    )


def _items(given: Sequence[str]) -> list[str]:
    """Return the items of an option that takes lists with commas, and may be repeated."""
    return [item.strip() for text in given for item in text.split(",") if item.strip()]


class TerminalHooks:
    """What a person at a terminal sees and is asked while `flintlock run` runs."""

    def __init__(self, *, detached: bool, quiet: bool, as_json: bool) -> None:
        self._detached: Final = detached
        self._quiet: Final = quiet
        self._as_json: Final = as_json
        self._submitted_s = time.monotonic()
        self._options = ""  # with which other commands reach the cluster; written by `submitted`

    @property
    def elapsed_s(self) -> float:
        """How long ago the job was submitted."""
        return time.monotonic() - self._submitted_s

    def cluster_starting(self, text: str) -> None:
        """Print that a cluster is being started."""
        if not self._quiet:
            click.echo(text, err=True)

    def packaged(self, package: JobPackage) -> None:
        """Print that the job's dependencies give it a driver of its own, if they do."""
        from flintlock.client.authoring.package import driver_note

        if not self._quiet and (note := driver_note(package)) is not None:
            click.echo(note, err=True)

    def submitted(self, handle: JobHandle, cluster: str = "") -> None:
        """Print the job's id: on stdout if that is all that will be printed. `cluster`: where it runs, if not here."""
        self._submitted_s = time.monotonic()
        self._options = f" {_options_of(cluster)}" if cluster else ""
        if self._detached:
            _print_detached(handle, cluster, as_json=self._as_json)
            if cluster and not self._quiet:
                click.echo(f"follow it with: flintlock logs -f {handle.id}{self._options}", err=True)
        elif not self._quiet:
            click.echo(f"job {handle.id}", err=True)

    def display(self, package: JobPackage) -> Display:
        """Return a display of progress, or one of user output only."""
        from flintlock.client.display.console import SilentDisplay, display_for, error_console, output_stream

        output = sys.stderr if self._as_json else output_stream(package.graph)
        return SilentDisplay(output) if self._quiet else display_for(error_console(), output)

    def interrupted(self, handle: JobHandle, *, detachable: bool) -> InterruptAction:
        """Ask what to do; without a terminal, detach, or cancel a job that cannot be left running."""
        from flintlock.client.running import InterruptAction

        default = InterruptAction.DETACH if detachable else InterruptAction.CANCEL
        choice = _ask(handle, detachable=detachable) if on_terminal() else None
        decision = default if choice is None else InterruptAction(choice)
        if decision is InterruptAction.DETACH:
            click.echo(
                f"job {handle.id} keeps running; cancel it with: flintlock cancel {handle.id}{self._options}", err=True
            )
        return decision


def _ask(handle: JobHandle, *, detachable: bool) -> str | None:
    """Return the choice of the person at the terminal; None if they interrupt the question, too."""
    choices = {"d": "detach", "c": "cancel", "r": "resume"} if detachable else {"c": "cancel", "r": "resume"}
    text = ", ".join(f"[{key}]{name[1:]}" for key, name in choices.items())
    question = f"\njob {handle.id} is still running: {text}"
    try:
        answer = click.prompt(question, type=click.Choice(list(choices)), show_choices=False, err=True)
    except (click.Abort, KeyboardInterrupt):
        return None
    return choices[answer]


def _options_of(cluster: str) -> str:
    """Return the options with which other commands reach a cluster: by its address, or by its state directory."""
    return f"-m {cluster}" if "://" in cluster else f"--state-dir {shlex.quote(cluster)}"


def _print_detached(handle: JobHandle, cluster: str, *, as_json: bool) -> None:
    if as_json:
        own = {"cluster": cluster} if cluster else {}
        print_json({"jobid": handle.id, "name": handle.name, **own})
    else:
        click.echo(handle.id)


def print_end(
    end: JobAttempts, tables: Sequence[ResultTable], *, elapsed_s: float, verbose: bool, quiet: bool, as_json: bool
) -> None:
    """Print how a job has ended: its results, or its failure."""
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
        from flintlock.model.failures.failure_text import render

        if len(end.failures) > 1 or any(line.labels for line in end.failures):
            click.echo("\n".join(["failures (oldest first):", *(f"  {line}" for line in failure_lines(end))]), err=True)
        click.echo(click.style(render(failure, verbose=verbose), fg="red"), err=True)
        if any(text in failure.message for text in _NEEDS_A_DRIVER) and end.engine == EngineKind.SHARED:
            click.echo("(SparkContext and RDDs need a dedicated Spark driver: add --engine dedicated)", err=True)
        if not verbose and (failure.stack_trace or failure.jvm_stack_trace):
            click.echo("(use --verbose for full stack traces)", err=True)
    if not quiet:
        click.echo(summary_line(end, elapsed_s), err=True)


@contextmanager
def _exit_on_sigterm() -> Generator[None]:
    """Turn SIGTERM into SystemExit, so that an embedded cluster is stopped on the way out."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

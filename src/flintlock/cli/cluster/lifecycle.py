"""`flintlock cluster start|stop|status`, and the two server processes in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import click

from flintlock.cli.settings import cluster_options, define_option, json_option, place_options, print_json, read_settings
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration, environment_settings, load, split_assignment
from flintlock.config.options import AUTHENTICATION, SUPERVISE, TM_SLOTS
from flintlock.host.cluster_spec import ClusterSpec, read_cluster_spec
from flintlock.host.files.job_directory import JobDirectory
from flintlock.model.errors import FlintlockError, Unavailable


@click.group()
def cluster() -> None:
    """Start, stop and inspect a local cluster."""


@cluster.command()
@click.option(
    "--jobmanagers",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Number of JobManagers; one leads, the others forward to it and take over. [default: 1]",
)
@click.option("--taskmanagers", type=click.IntRange(1, 64), metavar="N", help="Number of TaskManagers. [default: 1]")
@click.option("--slots", type=click.IntRange(1, 1024), help="Slots of each TaskManager (else as configured).")
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds to wait for it.")
@define_option
@json_option
@place_options
def start(
    *, jobmanagers: int | None, taskmanagers: int | None, slots: int | None, timeout: float, defines: tuple[str, ...],
    as_json: bool, conf: Path | None, state_dir: str | None) -> None:  # fmt: skip
    """Start a cluster in the background and wait until it is ready.

    Starts what is missing: processes that run are left alone. Until `flintlock cluster stop`, numbers and settings that
    are not given are those of the last start.
    """
    from flintlock.client.clusters.dashboard_build import building_dashboard
    from flintlock.client.clusters.local_cluster import start_cluster
    from flintlock.client.connection.client import Client
    from flintlock.client.connection.credentials import ClientCredentials
    from flintlock.host.processes.pid_files import job_managers

    require_extra("cluster", "starting a cluster")
    given = defines if slots is None else (*defines, f"{TM_SLOTS.key}={slots}")
    settings, directory, spec = _read_spec(conf, state_dir, given, jobmanagers, taskmanagers)

    def notify(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    with nullcontext() if as_json else building_dashboard() as build:
        done = start_cluster(settings, directory, spec, patience_s=timeout, notify=notify)
        not_built = "" if build is None else build.result()
    found = done.cluster
    standbys = [file.rest for file in job_managers(directory) if file.rest != found.rest]
    with Client([found.rest], credentials=ClientCredentials(settings.configuration, directory)) as client:
        overview = client.overview()
        link = "" if as_json or settings.configuration.get(AUTHENTICATION) == "none" else client.login_link()
    if as_json:
        print_json({"cluster-id": found.cluster_id, "rest": found.rest, "standbys": standbys,
                    "state-dir": str(directory), "taskmanagers": overview.taskmanagers,
                    "slots": overview.slots_total, "started": done.started})  # fmt: skip
        return
    has = f"{_counted(overview.taskmanagers, 'TaskManager')}, {_counted(overview.slots_total, 'slot')}"
    click.echo(f"cluster {found.cluster_id!r} is up at {found.rest}: {has}")
    if not done.started:
        click.echo("all its processes were running; nothing was started", err=True)
    for standby in standbys:
        click.echo(f"standby at {standby}")
    if not_built:
        click.echo(f"there is no dashboard: {not_built}; `make dashboard` builds it while the cluster runs", err=True)
    else:
        once = " (the link works once, within ten minutes; `flintlock dashboard` makes another)" if link else ""
        click.echo(f"dashboard: {link or found.rest}{once}", err=True)
    click.echo(f"logs and state: {directory}", err=True)


def _read_spec(
    conf: Path | None,
    state_dir: str | None,
    defines: tuple[str, ...],
    jobmanagers: int | None,
    taskmanagers: int | None,
) -> tuple[LoadedConfiguration, Path, ClusterSpec]:
    """Return the settings, the state directory, and what is to run there: as given, else as it was started before."""
    _, directory = read_settings(conf, state_dir, defines)
    before = read_cluster_spec(directory) or JobDirectory(directory).cluster_spec() or ClusterSpec()
    named = conf is not None or bool(os.environ.get("FLINTLOCK_CONF"))
    file = Path(before.conf) if before.conf is not None and not named else conf
    set_here = dict(split_assignment(text, "-D") for text in defines)
    flags = {**before.settings, **environment_settings(), **set_here}
    settings = load((f"{key}={value}" for key, value in flags.items()), conf=file)
    spec = ClusterSpec(
        jobmanagers=jobmanagers or before.jobmanagers,
        taskmanagers=taskmanagers or before.taskmanagers,
        supervise=settings.configuration.get(SUPERVISE),
        conf=None if settings.file is None else str(settings.file),
        settings=flags,
    )
    return settings, directory, spec


@cluster.command()
@json_option
@place_options
def stop(as_json: bool, conf: Path | None, state_dir: str | None) -> None:
    """Stop the cluster of the state directory. Its jobs are stored, and continue when it is started again."""
    from flintlock.client.clusters.local_cluster import stop_cluster

    _, directory = read_settings(conf, state_dir)
    ended = stop_cluster(directory)
    if as_json:
        print_json({"state-dir": str(directory), "stopped": ended})
        return
    for name, killed in ended.items():
        click.echo(f"{name} {'killed: it did not stop in time' if killed else 'stopped'}")
    if not ended:
        click.echo(f"no cluster runs in {directory}", err=True)


@cluster.command("status")
@json_option
@cluster_options
def cluster_status(as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> int:
    """Show whether a cluster runs, what it has, and what is missing.

    Exits with 0 if everything that was started runs, with 1 if a part of it does not, with 3 if no cluster responds.
    """
    from flintlock.client.clusters import local_cluster
    from flintlock.client.clusters.discovery import NO_WAIT, cluster_client

    settings, directory = read_settings(conf, state_dir)
    here = local_cluster.cluster_status(directory)
    registered: tuple[str, ...] = ()
    try:
        with cluster_client(settings, urls, directory, NO_WAIT) as client:
            overview, address, why = client.overview(), client.http.answering, ""
            registered = local_cluster.registered_here(client, directory) if here.task_managers else ()
    except Unavailable as error:
        overview, address, why = None, None, error.public
    # Another cluster that -m names has nothing to do with the processes of this state directory.
    missing = () if urls else here.missing
    away = () if urls else tuple(name for name in here.expected if name in here.processes and _waits(name, registered))
    if as_json:
        leader = here.cluster.rest if here.cluster is not None and here.cluster.epoch else None
        print_json({"state-dir": str(directory), "processes": here.processes, "rest": address, "overview": overview,
                    "leader": leader, "jobmanagers": [file.rest for file in here.job_managers],
                    "missing": {process.name: process.reason for process in missing},
                    "unregistered": away})  # fmt: skip
    elif overview is None:
        click.echo(why, err=True)
    else:
        click.echo(f"rest          {address}")
        click.echo(f"taskmanagers  {overview.taskmanagers}")
        click.echo(f"slots         {overview.slots_available} of {overview.slots_total} free")
        click.echo(f"jobs          {overview.jobs_running} running, {overview.jobs_finished} finished, "
                   f"{overview.jobs_failed} failed, {overview.jobs_cancelled} cancelled")  # fmt: skip
        for file in here.job_managers if len(here.job_managers) > 1 else ():
            click.echo(f"jobmanager    {file.rest}{f' leads (epoch {file.epoch})' if file.epoch else ' standby'}")
        for name, pid in here.processes.items():
            click.echo(f"process       {name} (pid {pid})")
        click.echo(f"state         {directory}")
    if not as_json:
        for process in missing:
            click.echo(f"missing       {process.name}: {process.reason}", err=True)
        for name in away if overview is not None else ():
            log = directory / "log" / f"{name}.log"
            click.echo(f"unregistered  {name}: it runs, and has no slots to offer; see {log}", err=True)
        if missing and overview is not None:
            click.echo("start what is missing with `flintlock cluster start`", err=True)
    if overview is None:
        return 3
    return 1 if missing or away else 0


def _waits(name: str, registered: Sequence[str]) -> bool:
    """Return whether a process that runs is a TaskManager that the leader does not know."""
    return name.startswith("taskmanager") and name not in registered


@cluster.command()
@define_option
@json_option
@place_options
def prepare(defines: tuple[str, ...], as_json: bool, conf: Path | None, state_dir: str | None) -> None:
    """Make Spark engines on this machine start in about half the time; takes about a minute.

    Writes an archive of the classes that a Spark engine loads. Run it again after an upgrade of Java or Spark; an
    archive of other versions is ignored.
    """
    import asyncio

    require_extra("cluster", "a Spark engine")
    from flintlock.entrypoints.analysis import record_archive

    settings, _ = read_settings(conf, state_dir, defines)
    if not as_json:
        click.echo("starting a Spark engine to record its classes; this takes a minute or two …", err=True)
    file = asyncio.run(record_archive(settings.configuration))
    if as_json:
        print_json({"archive": str(file), "bytes": file.stat().st_size})
        return
    click.echo(f"written: {file} ({file.stat().st_size >> 20} MiB)")


@click.command()
@click.option("--index", type=click.IntRange(0), default=0, help="Number of the JobManager in its state directory.")
@define_option
@place_options
def jobmanager(index: int, defines: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Run a JobManager in the foreground, for a service manager."""
    _become("flintlock.entrypoints.jobmanager", defines, conf, state_dir, "--index", str(index))


@click.command()
@click.option("--index", type=click.IntRange(0), default=0, help="Number of the TaskManager in its state directory.")
@define_option
@place_options
def taskmanager(index: int, defines: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:
    """Run a TaskManager in the foreground, for a service manager."""
    _become("flintlock.entrypoints.taskmanager", defines, conf, state_dir, "--index", str(index))


def _become(module: str, defines: tuple[str, ...], conf: Path | None, state_dir: str | None, *more: str) -> NoReturn:
    """Replace this process by an entrypoint, which then receives signals and sets the exit code."""
    require_extra("cluster", "a process of a cluster")
    settings, directory = read_settings(conf, state_dir, defines)
    if settings.file is not None:
        os.environ["FLINTLOCK_CONF"] = str(settings.file)
    flags = [part for text in defines for part in ("-D", text)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, "--state-dir", str(directory), *flags, *more])  # noqa: S606 no shell
    raise FlintlockError(f"{module} could not be started")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

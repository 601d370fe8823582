"""Options that many commands share, and what they lead to: configuration, state directory, client."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from flintlock.api.jobs import JobsOverviewResponse
from flintlock.config.configuration import Scope
from flintlock.config.files import LoadedConfiguration, load, split_assignment, state_directory
from flintlock.config.options import OPTIONS
from flintlock.model.errors import FlintlockError

if TYPE_CHECKING:
    from flintlock.client.clusters.discovery import RestartWait
    from flintlock.client.connection.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_COMPLETED_JOBS: Final = 100
_JOB_KEYS: Final = frozenset(option.key for option in OPTIONS if option.scope is Scope.JOB)


def _paths(command: F) -> F:
    command = click.option(
        "--conf", type=click.Path(path_type=Path), metavar="FILE", help="The configuration file (else FLINTLOCK_CONF)."
    )(command)
    return click.option("--state-dir", metavar="DIR", help="The cluster's state directory (else FLINTLOCK_STATE_DIR).")(
        command
    )


def cluster_options(command: F) -> F:
    """Add what names a cluster: `-m`, `--state-dir`, `--conf`."""
    option = click.option(
        "-m",
        "--jobmanager",
        "urls",
        multiple=True,
        metavar="URL",
        help="A JobManager's address; repeatable, or several with commas.",
    )
    return option(_paths(command))


def place_options(command: F) -> F:
    """Add what names a state directory: `--state-dir`, `--conf`."""
    return _paths(command)


def define_option(command: F) -> F:
    """Add `-D key=value`."""
    return click.option("-D", "defines", multiple=True, metavar="KEY=VALUE", help="Set an option; repeatable.")(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def job_argument(command: F) -> F:
    """Add the argument JOB, which a shell completes by the names and ids of the latest jobs."""
    return click.argument("job", shell_complete=complete_job)(command)


def optional_job_argument(command: F) -> F:
    """Add the argument JOB to a command that can do without one."""
    return click.argument("job", required=False, shell_complete=complete_job)(command)


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 click's signature
    """Return the names and ids of jobs that begin so. Without a cluster that answers at once, none."""
    given = ctx.params
    try:
        place = given.get("urls") or (), given.get("conf"), given.get("state_dir")
        with connect(*place, waits=False) as client:
            latest = {"limit": _COMPLETED_JOBS}
            jobs = client.http.get("/jobs/overview", JobsOverviewResponse, params=latest, patience_s=0.0).jobs
    except FlintlockError:
        return []
    found = dict.fromkeys([*(job.name for job in jobs), *(job.jid for job in jobs)])
    return [text for text in found if text.startswith(incomplete)]


def read_settings(
    conf: Path | None, state_dir: str | None, defines: tuple[str, ...] = ()
) -> tuple[LoadedConfiguration, Path]:
    """Return the settings in force and the state directory. Variables that are ignored are printed on stderr."""
    settings = load(defines, conf=conf)
    for warning in settings.warnings:
        click.echo(click.style("warning: ", fg="yellow") + warning, err=True)
    return settings, state_directory(settings, state_dir)


def connect(urls: tuple[str, ...], conf: Path | None, state_dir: str | None, *, waits: bool = True) -> Client:
    """Return a client of the running cluster. Raises Unavailable if there is none.

    Unless it `waits`, a JobManager that its supervisor starts again counts as none.
    """
    from flintlock.client.clusters.discovery import NO_WAIT, cluster_client

    settings, directory = read_settings(conf, state_dir)
    return cluster_client(settings, urls, directory, announced_wait() if waits else NO_WAIT)


def announced_wait() -> RestartWait:
    """Have a JobManager that its supervisor starts again waited for, with a line on stderr that says so."""
    from flintlock.client.clusters.discovery import RestartWait

    return RestartWait(announce=partial(click.echo, err=True))


def split_defines(defines: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split `-D` settings into the job's own (job options and `spark.*`) and the cluster's."""
    job: dict[str, str] = {}
    cluster: list[str] = []
    for text in defines:
        key, value = split_assignment(text, "-D")
        if key.startswith("spark.") or key in _JOB_KEYS:
            job[key] = value
        else:
            cluster.append(text)
    return job, tuple(cluster)


def print_json(value: object) -> None:
    """Print a value as JSON, indented."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def on_terminal() -> bool:
    """Return whether there is a terminal to ask questions on."""
    return sys.stdin.isatty() and sys.stderr.isatty()

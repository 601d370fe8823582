"""`flintlock session start|attach|stop -t yarn`: session clusters that a resource manager of their own runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flintlock.cli.settings import define_option, json_option, place_options, print_json, read_settings

if TYPE_CHECKING:
    from flintlock.client.clusters.yarn_cluster import YarnSession, YarnSessions

F = TypeVar("F", bound=Callable[..., Any])


def _target_option(command: F) -> F:
    kind = click.Choice(["yarn"])
    option = click.option(
        "-t", "--target-kind", type=kind, required=True, expose_value=False, help="Where the cluster runs."
    )
    return option(command)


@click.group()
def session() -> None:
    """Start, attach to and stop a session cluster on YARN.

    HADOOP_CONF_DIR names the directory with YARN's configuration. Clusters on this machine: `flintlock cluster`.
    """


@session.command()
@_target_option
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds to wait for it.")
@define_option
@json_option
@place_options
def start(*, timeout: float, defines: tuple[str, ...], as_json: bool, conf: Path | None,
          state_dir: str | None) -> None:  # fmt: skip
    """Start a session cluster, and wait until it accepts jobs.

    TaskManagers are started in containers as jobs need them. The cluster runs until `flintlock session stop`.
    """

    def notify(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    _print(_sessions(conf, state_dir, defines).start(timeout_s=timeout, notify=notify), as_json=as_json)


@session.command()
@_target_option
@click.argument("application")
@define_option
@json_option
@place_options
def attach(*, application: str, defines: tuple[str, ...], as_json: bool, conf: Path | None,
           state_dir: str | None) -> None:  # fmt: skip
    """Use the session APPLICATION, which was started elsewhere, for `flintlock run -t yarn-session`."""
    _print(_sessions(conf, state_dir, defines).attach(application), as_json=as_json)


@session.command()
@_target_option
@click.argument("application", required=False)
@define_option
@json_option
@place_options
def stop(*, application: str | None, defines: tuple[str, ...], as_json: bool, conf: Path | None,
         state_dir: str | None) -> None:  # fmt: skip
    """End the session APPLICATION, else the one that was started or attached last, with all its jobs."""
    report = _sessions(conf, state_dir, defines).stop(application or "")
    if as_json:
        print_json({"application-id": report.id, "state": report.state, "final-status": report.final_status})
        return
    click.echo(f"{report.id} has ended: {report.final_status}")


def _sessions(conf: Path | None, state_dir: str | None, defines: tuple[str, ...]) -> YarnSessions:
    from flintlock.client.clusters.yarn_cluster import YarnSessions

    settings, directory = read_settings(conf, state_dir, defines)
    return YarnSessions(settings.configuration, directory)


def _print(found: YarnSession, *, as_json: bool) -> None:
    if as_json:
        print_json({"application-id": found.application_id, "rest": found.rest})
        return
    click.echo(found.application_id)
    click.echo(f"its JobManager is at {found.rest}", err=True)
    click.echo(f"run a job there: flintlock run -t yarn-session …, or -m yarn://{found.application_id}", err=True)

"""`flintlock dashboard` and `flintlock spark-ui`: links for a browser."""

from __future__ import annotations

from pathlib import Path

import click

from flintlock.api.cluster import TaskManagerSummary
from flintlock.cli.settings import cluster_options, connect, json_option, on_terminal, print_json

open_option = click.option("--open/--no-open", "opens", default=None, help="Open a browser (default: on a terminal).")


@click.command()
@open_option
@json_option
@cluster_options
def dashboard(
    *, opens: bool | None, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None
) -> None:
    """Open the cluster in a browser, logged in as the caller. The link can be used once, within ten minutes."""
    with connect(urls, conf, state_dir) as client:
        link = client.login_link()
    _show(link, opens=opens, as_json=as_json)


@click.command()
@click.argument("task_manager", metavar="TASKMANAGER", required=False)
@open_option
@json_option
@cluster_options
def spark_ui(
    *, task_manager: str | None, opens: bool | None, as_json: bool, urls: tuple[str, ...], conf: Path | None,
    state_dir: str | None,
) -> None:  # fmt: skip
    """Open Spark's own UI of a TaskManager's engine in a browser. The link works for an hour, for all who have it."""
    with connect(urls, conf, state_dir) as client:
        link = client.spark_ui_link(task_manager or _only(client.task_managers()))
    _show(link, opens=opens, as_json=as_json)


def _only(registered: tuple[TaskManagerSummary, ...]) -> str:
    """Return the only TaskManager. Raises UsageError if there are several or none."""
    if len(registered) == 1:
        return registered[0].id
    if not registered:
        raise click.UsageError("no TaskManager is registered")
    names = ", ".join(each.id for each in registered[:10])
    raise click.UsageError(f"there are {len(registered)} TaskManagers; name one of them: {names}")


def _show(link: str, *, opens: bool | None, as_json: bool) -> None:
    if as_json:
        print_json({"link": link})
        return
    click.echo(link)
    if opens or (opens is None and on_terminal()):
        click.launch(link)

"""`flintlock top`: the streaming queries of a job, shown again and again."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from flintlock.cli.settings import cluster_options, connect, job_argument, json_option, print_json
from flintlock.cli.tables import aligned, coloured, duration, seconds_of
from flintlock.model.times import elapsed_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flintlock.api.queries import QueriesResponse, QueryInfo

_HEAD = (
    "QUERY", "STATE", "BATCH", "ROWS/S IN", "ROWS/S DONE", "TOOK", "BACKLOG", "STATE ROWS", "STATE MB", "LATE", "AGO",
)  # fmt: skip


@click.command()
@job_argument
@click.option("--once", is_flag=True, help="Show it once. So it is where the output is no terminal.")
@click.option("--interval", default="1s", metavar="TIME", help="How often the cluster is asked (default 1s).")
@json_option
@cluster_options
def top(*, job: str, once: bool, interval: str, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Show how the streaming queries of a job are doing, until it ends or Ctrl-C.

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    interval_s = seconds_of(interval, "--interval")
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        if as_json:
            print_json(handle.queries())
            return
        live = sys.stdout.isatty() and not once
        try:
            while True:
                state = handle.status
                lines = [coloured(f"{handle.name}  {handle.id}  {state}"), *query_lines(handle.queries())]
                if live:
                    click.clear()
                click.echo("\n".join(lines))
                if not live or state.globally_terminal:
                    return
                Event().wait(interval_s)
        except KeyboardInterrupt:
            return


def query_lines(found: QueriesResponse) -> list[str]:
    """Return the queries as lines: a table, then what is special about each of them."""
    if not found.queries:
        return ["no streaming queries"]
    rows = [_row(query, found.now) for query in found.queries]
    details = [f"  {line}" for query in found.queries for line in _details(query, found.now)]
    return [*aligned(_HEAD, rows), *([""] if details else []), *details]


def _row(query: QueryInfo, now_ms: int) -> tuple[str, ...]:
    state = "FAILED" if query.error else "RUNNING" if query.active else "ended"
    if query.batch < 0:
        return (query.name, state, *("-" for _ in _HEAD[2:]))
    return (
        query.name,
        state,
        str(query.batch),
        f"{query.input_rate:.1f}",
        f"{query.processed_rate:.1f}",
        duration(query.duration_ms),
        "-" if query.backlog is None else str(query.backlog),
        str(query.state_rows),
        f"{query.state_bytes / (1 << 20):.1f}",
        str(query.late_rows),
        duration(elapsed_ms(query.started_ms + query.duration_ms, now_ms)),
    )


def _details(query: QueryInfo, now_ms: int) -> Iterator[str]:
    if query.falls_behind:
        waits = "" if query.backlog is None else f", {query.backlog} waiting"
        yield f"{query.name} falls behind, for {duration(query.behind_ms)}{waits}"
    if query.running_since_ms:
        yield f"{query.name} runs a batch, for {duration(elapsed_ms(query.running_since_ms, now_ms))}"
    if query.idle_since_ms:
        quiet = duration(elapsed_ms(query.idle_since_ms, now_ms))
        yield f"{query.name} is idle: its sources have had no rows for {quiet}"
    if query.error:
        yield f"{query.name} has failed: {query.error}"
    if query.durations:
        parts = sorted(query.durations.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {ms} ms" for name, ms in parts if name != "triggerExecution" and ms > 0)
        yield f"{query.name}: {shown or 'less than 1 ms'}"
    if query.watermark:
        yield f"{query.name}: watermark {query.watermark}"
    for source in query.sources:
        waits = "" if source.backlog is None else f", {source.backlog} waiting"
        idle = " (no rows)" if source.input_rows == 0 else ""
        yield (
            f"{query.name} < {source.description}: {source.input_rate:.1f} rows/s in,"
            f" {source.processed_rate:.1f} done{waits}{idle}"
        )
    for operator in query.operators:
        yield (
            f"{query.name} = {operator.name}: {operator.rows} rows, {operator.updated_rows} updated,"
            f" {operator.memory / (1 << 20):.1f} MB, {operator.late_rows} late"
        )

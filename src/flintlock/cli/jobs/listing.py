"""`flintlock list` and `wait`: which jobs there are, and how they end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from flintlock.api.cluster import ClusterResources
from flintlock.api.jobs import WAITING, JobsOverviewEntry
from flintlock.cli.settings import cluster_options, complete_job, connect, json_option, print_json
from flintlock.cli.tables import aligned, coloured, duration, label_text, moment, moment_of, seconds_of
from flintlock.model.errors import Refused
from flintlock.model.states import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flintlock.client.connection.client import Client
    from flintlock.client.connection.handle import JobHandle

EXIT_TIMED_OUT: Final = 124
"""As `timeout` of the shell."""

STATES: Final = (*JobStatus, WAITING)
_ID_PREFIX: Final = 8  # commands take the beginning of an id, too
_LONGEST_WAIT_S: Final = 10.0
"""How often `wait` asks where a job is."""

_SCHEDULED: Final = (JobStatus.INITIALIZING, JobStatus.CREATED, WAITING)
_RUNNING: Final = tuple(state for state in JobStatus if not state.globally_terminal and not state.not_started)


class _Listed(NamedTuple):
    jobs: Sequence[JobsOverviewEntry]
    resources: ClusterResources


@click.command("list")
@click.option("-r", "--running", is_flag=True, help="Only jobs of which something runs.")
@click.option("-s", "--scheduled", is_flag=True, help="Only jobs that wait: for slots, or to be started.")
@click.option("-a", "--all", "everything", is_flag=True, help="Include ended jobs.")
@click.option("--name", metavar="PATTERN", help="Only jobs of this name; * stands for any text.")
@click.option("--state", "states", multiple=True, metavar="STATE", type=click.Choice(STATES, case_sensitive=False),
              help=f"Only jobs in this state ({', '.join(STATES)}); repeatable. Includes ended jobs.")  # fmt: skip
@click.option("--label", "labels", multiple=True, metavar="KEY[=VALUE]", help="Only jobs with this label; repeatable.")
@click.option("--since", metavar="TIME", help="Only jobs started since then: a duration such as 2h, or a date and time."
              " Includes ended jobs.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most the newest N jobs.")
@click.option("-w", "--watch", is_flag=True, help="Show the list again whenever it has changed, until Ctrl-C.")
@click.option("--interval", default="2s", metavar="TIME", help="How often --watch asks the cluster (default 2s).")
@json_option
@cluster_options
def list_jobs(
    *,
    running: bool, scheduled: bool, everything: bool, name: str | None, states: tuple[str, ...],
    labels: tuple[str, ...], since: str | None, limit: int | None, watch: bool, interval: str, as_json: bool,
    urls: tuple[str, ...], conf: Path | None, state_dir: str | None,
) -> None:  # fmt: skip
    """List the jobs of the cluster that have not ended, newest first, and what they wait for."""
    if watch and as_json:
        raise Refused("--json prints one complete document: it cannot watch the list")
    interval_s = seconds_of(interval, "--interval")
    ended = everything or bool(states) or since is not None
    wanted = [*states, *(_RUNNING if running else ()), *(_SCHEDULED if scheduled else ())]

    def listed(client: Client) -> _Listed:
        jobs = client.jobs(
            ended=ended,
            limit=limit,
            name=name,
            states=wanted,
            labels=dict(_label(text) for text in labels),
            since=None if since is None else moment_of(since, "--since"),
        )
        seen = client.resources() if any(not job.state.globally_terminal for job in jobs) else ClusterResources()
        return _Listed(jobs, seen)

    with connect(urls, conf, state_dir) as client:
        if watch:
            _watch(lambda: _shown(listed(client), ended=ended), interval_s)
            return
        found = listed(client)
    if as_json:
        print_json({"jobs": found.jobs, "waiting": found.resources.waiting, "starting": found.resources.starting})
    elif found.jobs:
        click.echo("\n".join(_shown(found, ended=ended)))
    else:
        click.echo("\n".join(_shown(found, ended=ended)), err=True)


def _shown(found: _Listed, *, ended: bool) -> list[str]:
    from flintlock.client.display.progress import waiting_notes

    if not found.jobs:
        return ["no jobs" if ended else "no active jobs; -a lists ended jobs too"]
    return job_lines(found.jobs, waiting_notes(found.resources))


def _watch(lines: Callable[[], list[str]], interval_s: float) -> None:
    """Show lines again and again: in place on a terminal, else each time that they have changed."""
    before: list[str] | None = None
    try:
        while True:
            now = lines()
            if sys.stdout.isatty():
                click.clear()
                click.echo("\n".join(now))
            elif now != before:
                click.echo("\n".join([*([] if before is None else [""]), *now]))
            before = now
            Event().wait(interval_s)
    except KeyboardInterrupt:
        return


def job_lines(jobs: Sequence[JobsOverviewEntry], notes: Mapping[str, str]) -> list[str]:
    """Return jobs as lines of a table; columns that would be empty are left out."""
    from flintlock.client.display.progress import waiting_note

    columns = [
        ("JOB ID", [job.jid for job in jobs]),
        ("NAME", [job.name for job in jobs]),
        ("STATE", [job.shown_state for job in jobs]),
        ("STARTED", [moment(job.start_time) for job in jobs]),
        ("DURATION", [duration(job.duration) for job in jobs]),
        ("STEPS", [f"{job.tasks.finished}/{job.tasks.total}" for job in jobs]),
        ("SUBMITTED BY", [job.submitted_by for job in jobs]),
        ("UPGRADE OF", [job.upgrade_of[:_ID_PREFIX] for job in jobs]),
        ("SUCCEEDED BY", [job.successor[:_ID_PREFIX] for job in jobs]),
        ("LABELS", [label_text(job.labels) for job in jobs]),
        ("WAITS FOR", [waiting_note(job.waits_for, notes, job.jid) for job in jobs]),
    ]
    shown = [(head, cells) for head, cells in columns if any(cells)]
    rows = list(zip(*(cells for _, cells in shown), strict=True))
    return [coloured(line) for line in aligned([head for head, _ in shown], rows)]


def _label(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete_job)
@click.option("--timeout", metavar="TIME", help="Give up after so long, with exit code 124. The jobs keep running.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@json_option
@cluster_options
def wait(
    *,
    jobs: tuple[str, ...], timeout: str | None, quiet: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None,
    state_dir: str | None,
) -> int:  # fmt: skip
    """Wait until all of the jobs have ended, and print how; now and then, where the one is that it waits for.

    Exits with 0 if all have finished, with 1 if one has failed or was cancelled. JOB is an id, the beginning of one, a
    name (its latest job), or latest.
    """
    deadline_s = None if timeout is None else time.monotonic() + seconds_of(timeout, "--timeout")
    ends: list[tuple[str, JobStatus]] = []
    with connect(urls, conf, state_dir) as client:
        handles = [client.find(job) for job in jobs]
        for handle in handles:
            ended = _await_end(handle, deadline_s, quiet=quiet)
            status = handle.status
            ends.append((handle.id, status))
            if not (quiet or as_json):
                click.echo(f"{handle.id} {status}" + ("" if ended else ", timed out"), err=not ended)
            if not ended:
                break
    if as_json:
        print_json({"jobs": [{"jobid": jobid, "status": status} for jobid, status in ends]})
    if not all(status.globally_terminal for _, status in ends):
        return EXIT_TIMED_OUT
    return 0 if all(status is JobStatus.FINISHED for _, status in ends) else 1


def _await_end(handle: JobHandle, deadline_s: float | None, *, quiet: bool) -> bool:
    """Wait for the job's end, at most until the deadline, and say where it is; return whether it has ended."""
    from flintlock.client.display.console import SILENCE_S
    from flintlock.client.display.following import QUEUE_INTERVAL_S
    from flintlock.client.display.progress import elapsed_text, job_line

    began_s = printed_s = time.monotonic()
    noted = ""
    while True:
        left_s = _LONGEST_WAIT_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        if handle.ended_within(min(left_s, _LONGEST_WAIT_S)):
            return True
        now_s = time.monotonic()
        if deadline_s is not None and now_s >= deadline_s:
            return False
        if quiet or now_s - began_s < QUEUE_INTERVAL_S:
            continue
        job = handle.attempts()
        note = handle.waiting_note() if job.waits_for else ""
        if (note and note != noted) or now_s - printed_s >= SILENCE_S:
            waited = f"waited {elapsed_text(now_s - began_s)}"
            click.echo(", ".join(filter(None, (job_line(job), note, waited))), err=True)
            printed_s, noted = now_s, note

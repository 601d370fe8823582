"""`flintlock list`, `status`, `cancel`, `rescale`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from flintlock.api.jobs import WAITING
from flintlock.cli.settings import cluster_options, connect, json_option, print_json
from flintlock.cli.tables import aligned, coloured, duration, moment
from flintlock.model.errors import Refused
from flintlock.model.quantities import duration_s
from flintlock.model.states import ExecutionState, JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flintlock.api.jobs import AttemptInfo, JobsOverviewEntry

STATES: Final = (*JobStatus, WAITING)
_SCHEDULED: Final = (JobStatus.INITIALIZING, JobStatus.CREATED, WAITING)
_RUNNING: Final = tuple(state for state in JobStatus if not state.globally_terminal and not state.not_started)


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
@json_option
@cluster_options
def list_jobs(
    *,
    running: bool, scheduled: bool, everything: bool, name: str | None, states: tuple[str, ...],
    labels: tuple[str, ...], since: str | None, limit: int | None, as_json: bool, urls: tuple[str, ...],
    conf: Path | None, state_dir: str | None,
) -> None:  # fmt: skip
    """List the jobs of the cluster that have not ended, newest first, and what they wait for."""
    from flintlock.api.cluster import ClusterResources
    from flintlock.client.display.progress import waiting_notes

    ended = everything or bool(states) or since is not None
    wanted = [*states, *(_RUNNING if running else ()), *(_SCHEDULED if scheduled else ())]
    with connect(urls, conf, state_dir) as client:
        jobs = client.jobs(
            ended=ended,
            limit=limit,
            name=name,
            states=wanted,
            labels=dict(_label(text) for text in labels),
            since=None if since is None else moment_of(since),
        )
        seen = client.resources() if any(not job.state.globally_terminal for job in jobs) else ClusterResources()
    if as_json:
        print_json({"jobs": jobs, "waiting": seen.waiting, "starting": seen.starting})
        return
    if not jobs:
        click.echo("no jobs" if ended else "no active jobs; -a lists ended jobs too", err=True)
        return
    for line in job_lines(jobs, waiting_notes(seen)):
        click.echo(line)


def job_lines(jobs: Sequence[JobsOverviewEntry], notes: Mapping[str, str]) -> list[str]:
    """Return jobs as lines of a table; columns that would be empty are left out."""
    columns = [
        ("JOB ID", [job.jid for job in jobs]),
        ("NAME", [job.name for job in jobs]),
        ("STATE", [job.shown_state for job in jobs]),
        ("STARTED", [moment(job.start_time) for job in jobs]),
        ("DURATION", [duration(job.duration) for job in jobs]),
        ("STEPS", [f"{job.tasks.finished}/{job.tasks.total}" for job in jobs]),
        ("SUBMITTED BY", [job.submitted_by for job in jobs]),
        ("LABELS", [label_text(job.labels) for job in jobs]),
        ("WAITS FOR", [notes.get(job.jid, "") for job in jobs]),
    ]
    shown = [(head, cells) for head, cells in columns if any(cells)]
    rows = list(zip(*(cells for _, cells in shown), strict=True))
    return [coloured(line) for line in aligned([head for head, _ in shown], rows)]


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as users write them."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def moment_of(text: str) -> datetime:
    """Return the time that a user means: so long ago, or a date and time of the local clock. Raises Refused."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration_s(text))
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        message = f"--since: {text!r} is neither a duration such as '2h' nor a time such as '2026-01-31 08:00'"
        raise Refused(message) from None


def _label(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


@click.command()
@click.argument("job")
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure, and who changed the job.")
@json_option
@cluster_options
def status(*, job: str, verbose: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Show one job: its regions, their attempts, its failures.

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    from flintlock.client.display.progress import failure_lines, failure_of, publishing_line, region_rows, waiting_notes

    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        found = handle.attempts()
        changes = handle.changes().changes if verbose and not as_json else ()
        waits = any(region.latest and region.latest.state is ExecutionState.SCHEDULED for region in found.regions)
        now_ms = client.http.server_ms()
        note = waiting_notes(client.resources()).get(found.jobid) if waits and not as_json else None
    if as_json:
        print_json(found)
        return
    click.echo(coloured(f"{found.name}  {found.jobid}  {found.shown_state}"))
    if found.start_time:
        ended = f", ended {moment(found.end_time)}" if found.end_time > 0 else ""
        lasted_ms = (found.end_time if found.end_time > 0 else now_ms) - found.start_time
        click.echo(f"started {moment(found.start_time)}{ended}, {duration(lasted_ms)}")
    if found.submitted_by:
        click.echo(f"submitted by {found.submitted_by}")
    if found.labels:
        click.echo(f"labels: {label_text(found.labels)}")
    for change in changes:
        outcome = f": {change.failure}" if change.failure else ""
        click.echo(f"{change.kind} requested by {change.requested_by or '-'}, {moment(change.requested)}{outcome}")
    rows = [
        (
            str(region.id),
            row.title,
            row.state,
            str(region.count),
            _where(region.latest),
            row.detail,
        )
        for region, row in zip(found.regions, region_rows(found), strict=True)
    ]
    if rows:
        for line in aligned(("REGION", "STEPS", "STATE", "ATTEMPTS", "TASKMANAGER", ""), rows):
            click.echo(coloured(line))
    if found.publishing is not None:
        click.echo(publishing_line(found))
    if note is not None:
        click.echo(f"waits for slots: {note}")
    history = failure_lines(found)
    if history:
        click.echo("\nfailures (oldest first):")
        for line in history:
            click.echo(f"  {line}")
    failure = failure_of(found.failure)
    if failure is not None:
        from flintlock.model.failure_text import render

        click.echo("\n" + render(failure, verbose=verbose))


@click.command()
@click.argument("job")
@click.option("--wait/--no-wait", default=True, help="Wait until the job has ended (default).")
@click.option("--force", is_flag=True, help="Also end publications, and what a former cancel has not ended.")
@json_option
@cluster_options
def cancel(*, job: str, wait: bool, force: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Cancel a job. JOB is an id, the beginning of one, a name, or NAME@latest where several of a name are active."""
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job, unambiguous=True)
        handle.cancel(force=force)
        while wait and not handle.ended_within(10.0):
            pass
        state = handle.status
    if as_json:
        print_json({"jobid": handle.id, "status": state})
    else:
        click.echo(f"{handle.id} {state}")


@click.command()
@click.argument("job")
@click.option("-p", "--parallelism", type=click.IntRange(1), required=True, metavar="N", help="Slots for each step.")
@json_option
@cluster_options
def rescale(*, job: str, parallelism: int, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Let each step of a running job use up to N slots. JOB is an id, the beginning of one, a name, or NAME@latest.

    It applies to regions that have not been deployed yet; running attempts are not changed.
    """
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job, unambiguous=True)
        wanted = handle.rescale(parallelism)
    if as_json:
        print_json({"jobid": handle.id, "requirements": wanted})
    else:
        click.echo(
            f"{handle.id}: up to {parallelism} slot{'' if parallelism == 1 else 's'} for regions not deployed yet"
        )


def _where(attempt: AttemptInfo | None) -> str:
    return (attempt.task_manager if attempt is not None else None) or "-"

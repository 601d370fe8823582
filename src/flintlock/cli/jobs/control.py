"""`flintlock status`, `cancel`, `rescale`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flintlock.cli.settings import cluster_options, connect, job_argument, json_option, print_json
from flintlock.cli.tables import aligned, coloured, duration, label_text, moment
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.times import elapsed_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flintlock.api.jobs import AttemptInfo, JobAttempts


@click.command()
@job_argument
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure, and who changed the job.")
@json_option
@cluster_options
def status(*, job: str, verbose: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Show one job: its regions, their attempts, its failures.

    JOB is an id, the beginning of one, a name (its latest job), or latest.
    """
    from flintlock.client.display.progress import (
        failure_lines,
        failure_of,
        publishing_line,
        region_rows,
        waiting_note,
        waiting_notes,
    )

    with connect(urls, conf, state_dir) as client:
        handle = client.find(job)
        found = handle.attempts()
        changes = handle.changes().changes if verbose and not as_json else ()
        waits = any(region.latest and region.latest.state is ExecutionState.SCHEDULED for region in found.regions)
        now_ms = client.http.server_ms()
        note = waiting_notes(client.resources()).get(found.jobid) if waits and not as_json else None
        held_up = waiting_note(found.waits_for, {}, found.jobid)
    if as_json:
        print_json(found)
        return
    click.echo(coloured(f"{found.name}  {found.jobid}  {found.shown_state}"))
    if found.start_time:
        ended = f", ended {moment(found.end_time)}" if found.end_time > 0 else ""
        lasted_ms = elapsed_ms(found.start_time, found.end_time if found.end_time > 0 else now_ms)
        click.echo(f"started {moment(found.start_time)}{ended}, {duration(lasted_ms)}")
    for title, value in (
        ("submitted by ", found.submitted_by),
        ("rerun of ", found.rerun_of),
        ("upgrade of ", found.upgrade_of),
        ("succeeded by ", found.successor),
        ("labels: ", label_text(found.labels)),
    ):
        if value:
            click.echo(f"{title}{value}")
    for change in changes:
        text = change.failure or change.location
        outcome = f": {text}" if text else ""
        click.echo(f"{change.kind} requested by {change.requested_by or '-'}, {moment(change.requested)}{outcome}")
    rows = [
        (
            str(region.id),
            row.title,
            row.state,
            str(region.count),
            _where(region.latest),
            _slots(region.latest),
            row.detail,
        )
        for region, row in zip(found.regions, region_rows(found), strict=True)
    ]
    if rows:
        for line in aligned(("REGION", "STEPS", "STATE", "ATTEMPTS", "TASKMANAGER", "SLOTS", ""), rows):
            click.echo(coloured(line))
    if found.publishing is not None:
        click.echo(publishing_line(found))
    if note is not None:
        click.echo(f"waits for slots: {note}")
    elif held_up:
        click.echo(f"waits for {held_up}")
    for line in (*_continuation(found), *_history(failure_lines(found))):
        click.echo(line)
    ended_well = found.status in (JobStatus.FINISHED, JobStatus.CANCELED)  # earlier failures are listed above
    failure = None if ended_well else failure_of(found.failure)
    if failure is not None:
        from flintlock.model.failures.failure_text import render

        click.echo("\n" + render(failure, verbose=verbose))


@click.command()
@job_argument
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
@job_argument
@click.option("-p", "--parallelism", type=click.IntRange(1), required=True, metavar="N", help="Slots for each step.")
@json_option
@cluster_options
def rescale(*, job: str, parallelism: int, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Let each step of a running job use up to N slots. JOB is an id, the beginning of one, a name, or NAME@latest.

    Of a batch job, it applies to regions that have not been deployed yet; running attempts are not changed. The queries
    of a streaming job are restarted with N partitions of their state; the command returns when all run again.
    """
    with connect(urls, conf, state_dir) as client:
        handle = client.find(job, unambiguous=True)
        streaming = handle.streaming
        wanted = handle.rescale(parallelism)
    if as_json:
        print_json({"jobid": handle.id, "requirements": wanted})
    else:
        slots = f"up to {parallelism} slot{'' if parallelism == 1 else 's'}"
        what = "for each query; all run again" if streaming else "for regions not deployed yet"
        click.echo(f"{handle.id}: {slots} {what}")


def _history(failures: Sequence[str]) -> Iterator[str]:
    """Yield the failures of a job, if it had any."""
    if failures:
        yield "\nfailures (oldest first):"
    yield from (f"  {line}" for line in failures)


def _continuation(job: JobAttempts) -> Iterator[str]:
    """Yield how a failed job can be continued, if it can."""
    done = sum(1 for region in job.regions if region.latest and region.latest.state is ExecutionState.FINISHED)
    if job.continuable:
        yield (
            f"{done} of {len(job.regions)} regions had finished; to run only the others:"
            f" flintlock rerun {job.jobid[:8]} --from-failed"
        )


def _slots(attempt: AttemptInfo | None) -> str:
    return str(attempt.slots) if attempt is not None and attempt.slots else "-"


def _where(attempt: AttemptInfo | None) -> str:
    return (attempt.task_manager if attempt is not None else None) or "-"

"""`flintlock list`, `status`, `cancel`, `rescale`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from flintlock.cli.settings import cluster_options, connect, json_option, print_json
from flintlock.cli.tables import aligned, coloured, duration, moment
from flintlock.model.errors import NotFound, Refused
from flintlock.model.ids import is_job_id
from flintlock.model.states import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flintlock.api.jobs import AttemptInfo, JobsOverviewEntry
    from flintlock.client.connection.client import Client
    from flintlock.client.connection.handle import JobHandle

_SHORTEST_PREFIX: Final = 4


@click.command("list")
@click.option("-r", "--running", is_flag=True, help="Only jobs of which something runs.")
@click.option("-s", "--scheduled", is_flag=True, help="Only jobs that wait: for slots, or to be started.")
@click.option("-a", "--all", "everything", is_flag=True, help="Include ended jobs.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most the newest N jobs.")
@json_option
@cluster_options
def list_jobs(
    *,
    running: bool, scheduled: bool, everything: bool, limit: int | None, as_json: bool, urls: tuple[str, ...],
    conf: Path | None, state_dir: str | None,
) -> None:  # fmt: skip
    """List the jobs of the cluster that have not ended, newest first, and what they wait for."""
    from flintlock.api.cluster import ClusterResources
    from flintlock.client.display.progress import waiting_notes

    with connect(urls, conf, state_dir) as client:
        found = client.jobs(ended=everything, limit=limit if everything else None)
        jobs = select_jobs(found, running=running, scheduled=scheduled, everything=everything)[:limit]
        seen = client.resources() if any(not job.state.globally_terminal for job in jobs) else ClusterResources()
    if as_json:
        print_json({"jobs": jobs, "waiting": seen.waiting, "starting": seen.starting})
        return
    if not jobs:
        click.echo("no jobs" if everything else "no active jobs; -a lists ended jobs too", err=True)
        return
    notes = waiting_notes(seen)
    rows = [
        (job.jid, job.name, job.shown_state, moment(job.start_time), duration(job.duration), _tasks(job),
         notes.get(job.jid, ""))
        for job in jobs
    ]  # fmt: skip
    head = ("JOB ID", "NAME", "STATE", "STARTED", "DURATION", "STEPS", "WAITS FOR" if notes else "")
    for line in aligned(head, rows):
        click.echo(coloured(line))


@click.command()
@click.argument("job")
@click.option("-v", "--verbose", is_flag=True, help="Show whole stack traces of a failure, and who changed the job.")
@json_option
@cluster_options
def status(*, job: str, verbose: bool, as_json: bool, urls: tuple[str, ...], conf: Path | None, state_dir: str | None) -> None:  # fmt: skip # noqa: E501
    """Show one job: its regions, their attempts, its failures. JOB is an id, the beginning of one, or a name."""
    from flintlock.client.display.progress import failure_lines, failure_of, publishing_line, region_rows, waiting_notes

    with connect(urls, conf, state_dir) as client:
        handle = find_job(client, job)
        found = handle.attempts()
        changes = handle.changes().changes if verbose and not as_json else ()
        waits = any(region.latest and region.latest.state is ExecutionState.SCHEDULED for region in found.regions)
        note = waiting_notes(client.resources()).get(found.jobid) if waits and not as_json else None
    if as_json:
        print_json(found)
        return
    click.echo(coloured(f"{found.name}  {found.jobid}  {found.shown_state}"))
    if found.submitted_by:
        click.echo(f"submitted by {found.submitted_by}")
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
    """Cancel a job. JOB is an id, the beginning of one, or a name."""
    with connect(urls, conf, state_dir) as client:
        handle = find_job(client, job)
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
    """Let each step of a running job use up to N slots. JOB is an id, the beginning of one, or a name.

    It applies to regions that have not been deployed yet; running attempts are not changed.
    """
    with connect(urls, conf, state_dir) as client:
        handle = find_job(client, job)
        wanted = handle.rescale(parallelism)
    if as_json:
        print_json({"jobid": handle.id, "requirements": wanted})
    else:
        click.echo(
            f"{handle.id}: up to {parallelism} slot{'' if parallelism == 1 else 's'} for regions not deployed yet"
        )


def select_jobs(
    jobs: Sequence[JobsOverviewEntry], *, running: bool, scheduled: bool, everything: bool
) -> tuple[JobsOverviewEntry, ...]:
    """Return the jobs that the flags select; without flags, those that have not ended."""
    if everything:
        return tuple(jobs)
    return tuple(
        job
        for job in jobs
        if not job.state.globally_terminal
        and ((not running and not scheduled) or (scheduled if job.state.not_started or job.waits_for else running))
    )


def find_job(client: Client, text: str) -> JobHandle:
    """Return the job with this id, this beginning of an id, or this name. Raises NotFound, or Refused for several."""
    if is_job_id(text):
        return client.job(text)
    return client.job(matching(text, client.jobs()).jid)


def matching(text: str, jobs: Sequence[JobsOverviewEntry]) -> JobsOverviewEntry:
    """Return the job that `text` names. Of several jobs with one name, the one that has not ended."""
    prefixed = [job for job in jobs if len(text) >= _SHORTEST_PREFIX and job.jid.startswith(text.lower())]
    named = [job for job in jobs if job.name == text]
    active = [job for job in named if not job.state.globally_terminal]
    for found in (prefixed, active, named):
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(job.jid for job in found[:5])
            raise Refused(f"{text!r} matches {len(found)} jobs: {ids}{' …' if len(found) > 5 else ''}")
    raise NotFound(f"there is no job {text!r}; `flintlock list -a` shows all")


def _tasks(job: JobsOverviewEntry) -> str:
    return f"{job.tasks.finished}/{job.tasks.total}"


def _where(attempt: AttemptInfo | None) -> str:
    return (attempt.task_manager if attempt is not None else None) or "-"

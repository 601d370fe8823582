"""The lines of GET /jobs/overview and /events: from summaries of jobs to Flink's JSON, and back.

The line of an ended job never changes. The Dispatcher encodes it once and keeps nothing else of it in memory; a page
of the listing is then a few bytes copied. The line of a running job has its duration up to now, and is encoded for
each response.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, cast

import msgspec
from msgspec import Struct, field

from flintlock.api.jobs import WAITING, JobsOverviewEntry, OverviewTasks
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobFilter, JobSummary, TaskCounts
from flintlock.model.states import ExecutionState, JobStatus

_encoder: Final = msgspec.json.Encoder()
_entry: Final = msgspec.json.Decoder(JobsOverviewEntry)

#: The fields of OverviewTasks and their states, as plain str: enums are slow to hash, and this is done often.
_COUNTED: Final = tuple((state.value.lower(), cast("ExecutionState", state.value)) for state in ExecutionState)


class _Filtered(Struct):
    """What a filter reads of a line."""

    name: str
    state: str
    labels: dict[str, str] = {}
    submitted_by: str = field(default="", name="submitted-by")


_filtered: Final = msgspec.json.Decoder(_Filtered)


class _IdAndState(Struct):
    """What GET /jobs shows of a line."""

    jid: str
    state: JobStatus


_id_and_state: Final = msgspec.json.Decoder(_IdAndState)


def overview_entry(job: JobSummary, now_ms: int) -> JobsOverviewEntry:
    """Return a job as a line of /jobs/overview."""
    count = job.tasks.by_state
    return JobsOverviewEntry(
        jid=job.job_id,
        name=job.name,
        job_type=job.job_type,
        scheduler_type="Default",
        start_time=job.start_ms,
        end_time=job.end_ms,
        duration=job.duration_ms(now_ms),
        state=job.status,
        last_modification=job.last_modified_ms,
        tasks=OverviewTasks(total=job.tasks.total, **{field: count.get(state, 0) for field, state in _COUNTED}),
        pending_operators=0,
        waits_for=job.waits_for,
        labels=job.labels,
        submitted_by=job.submitted_by,
        first_run=job.first_run_ms,
        upgrade_of=job.upgrade_of,
        successor=job.successor,
    )


def encoded_line(job: JobSummary | bytes, now_ms: int) -> bytes:
    """Return a line as JSON; one that is encoded already as it is."""
    return job if isinstance(job, bytes) else _encoder.encode(overview_entry(job, now_ms))


def id_and_status(job: JobSummary | bytes) -> tuple[str, JobStatus]:
    """Return whose line it is, and the job's status."""
    if isinstance(job, bytes):
        found = _id_and_state.decode(job)
        return found.jid, found.state
    return job.job_id, job.status


def summary_of(job: JobSummary | bytes) -> JobSummary:
    """Return the summary that a line was encoded from."""
    if not isinstance(job, bytes):
        return job
    entry = _entry.decode(job)
    counted = {state: getattr(entry.tasks, state.value.lower()) for state in ExecutionState}
    return JobSummary(
        job_id=JobId(entry.jid),
        name=entry.name,
        job_type=JobType(entry.job_type),
        status=entry.state,
        start_ms=entry.start_time,
        end_ms=entry.end_time,
        last_modified_ms=entry.last_modification,
        tasks=TaskCounts(total=entry.tasks.total, by_state=counted),
        labels=entry.labels,
        submitted_by=entry.submitted_by,
        first_run_ms=entry.first_run,
        upgrade_of=entry.upgrade_of,
        successor=entry.successor,
    )


def is_selected(job: JobSummary | bytes, selection: JobFilter) -> bool:
    """Return whether a line fulfils the conditions of a filter about name, state, submitter and labels."""
    if isinstance(job, bytes):
        found = _filtered.decode(job)
        name, state, labels, submitted_by = found.name, found.state, found.labels, found.submitted_by
    else:
        name, state, labels = job.name, WAITING if job.waits_for else job.status, job.labels
        submitted_by = job.submitted_by
    return (
        (not selection.name or name == selection.name or fnmatchcase(name, selection.name))
        and (not selection.states or state in selection.states)
        and (not selection.submitted_by or submitted_by == selection.submitted_by)
        and all(key in labels and value in ("", labels[key]) for key, value in selection.labels.items())
    )

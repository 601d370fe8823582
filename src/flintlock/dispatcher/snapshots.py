"""Snapshots of jobs that have no JobMaster: not yet, not any more, or never.

Pure. The JobMaster's own snapshot is used wherever there is one.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from graphlib import CycleError
from typing import Final

from msgspec import structs

from flintlock.model.errors import FlintlockError, JobFailed
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import (
    ExceptionEntry,
    ExecutionInfo,
    JobHistory,
    JobOutcome,
    JobResult,
    JobSnapshot,
    StoredJob,
)
from flintlock.model.regions import Region, regions_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind, RegionPhase, RegionRecord, TaskFinished


def initial_snapshot(job: StoredJob, cancel_asked_ms: int | None = None) -> JobSnapshot:
    """Return a durable job that waits for its JobMaster: INITIALIZING, or CANCELLING once a cancel is queued."""
    timestamps = {JobStatus.INITIALIZING: job.submitted_ms}
    if cancel_asked_ms is not None:
        timestamps[JobStatus.CANCELLING] = cancel_asked_ms
    return JobSnapshot(
        graph=job.graph,
        regions=_regions(job.graph),
        status=JobStatus.INITIALIZING if cancel_asked_ms is None else JobStatus.CANCELLING,
        timestamps=timestamps,
        end_ms=-1,
        last_modified_ms=job.submitted_ms if cancel_asked_ms is None else cancel_asked_ms,
        executions=(),
    )


def held_up_snapshot(snapshot: JobSnapshot, by: str) -> JobSnapshot:
    """Return a job that cannot go on now. One that has ended is not shown so: its end cannot be made durable yet."""
    if not snapshot.status.globally_terminal:
        return structs.replace(snapshot, held_up_by=by)
    status = JobStatus.FAILING if snapshot.status is JobStatus.FAILED else JobStatus.RUNNING
    times = {each: at_ms for each, at_ms in snapshot.timestamps.items() if each is not snapshot.status}
    return structs.replace(snapshot, status=status, timestamps=times, end_ms=-1, held_up_by=by)


def public_text(error: BaseException) -> str:
    """Return what clients may see of an error."""
    return error.public if isinstance(error, FlintlockError) else str(error) or repr(error)


def failed_outcome(job: StoredJob, error: BaseException, now_ms: int, scratch: tuple[str, ...]) -> JobOutcome:
    """Return the outcome of a job whose JobMaster could not be created, or failed with an error of its own."""
    failure = error.failure if isinstance(error, JobFailed) else None
    if failure is None:
        failure = Failure(
            kind=FailureKind.INTERNAL,
            message=public_text(error),
            exception=type(error).__name__,
            stack_trace="".join(traceback.format_exception(error)),
        )
    return JobOutcome(snapshot=_failed(job.graph, job.submitted_ms, failure, now_ms), scratch=scratch)


def canceled_outcome(job: StoredJob, now_ms: int) -> JobOutcome:
    """Return the outcome of a job that was cancelled before it had a JobMaster, and has nothing to be removed."""
    times = (JobStatus.CANCELLING, JobStatus.CANCELED)
    return JobOutcome(
        snapshot=JobSnapshot(
            graph=job.graph,
            regions=_regions(job.graph),
            status=JobStatus.CANCELED,
            timestamps={JobStatus.INITIALIZING: job.submitted_ms, **dict.fromkeys(times, now_ms)},
            end_ms=now_ms,
            last_modified_ms=now_ms,
            executions=(),
        )
    )


#: Why jobs are quarantined, unless there is another reason.
UNREADABLE: Final = "what is stored of it cannot be read"


def quarantined_snapshot(
    job_id: JobId, job: StoredJob | None, reason: str, now_ms: int, because: str = UNREADABLE
) -> JobSnapshot:
    """Return a quarantined job: FAILED, with the reason. `job` is None where not even its graph is readable."""
    if job is None or job.graph.job_id != job_id:
        job = None  # what is stored under this id belongs to another
    graph = job.graph if job is not None else JobGraph(job_id=job_id, name=f"unreadable job {job_id}")
    failure = Failure(
        kind=FailureKind.INTERNAL,
        message=f"the job was quarantined because {because}: {reason}",
        exception="Corrupt" if because == UNREADABLE else "JobQuarantined",
    )
    return _failed(graph, job.submitted_ms if job is not None else now_ms, failure, now_ms)


def recorded_snapshot(result: JobResult) -> JobSnapshot:
    """Return an ended job whose archive is missing, as far as its result describes it."""
    return JobSnapshot(
        graph=JobGraph(job_id=result.job_id, name=result.name),
        regions=(),
        status=result.status,
        timestamps={JobStatus.INITIALIZING: result.start_ms, result.status: result.end_ms},
        end_ms=result.end_ms,
        last_modified_ms=result.end_ms,
        executions=(),
        exceptions=() if result.cause is None else (result.cause,),
        ended_at_ms=result.ended_at_ms,
    )


def stored_outcome(
    result: JobResult, job: StoredJob | None, progress: Iterable[RegionRecord], history: JobHistory | None = None
) -> JobOutcome:
    """Return an ended job that was not archived, as far as its result, graph, progress and history describe it.

    `job` is None where its graph is gone or cannot be read.
    """
    snapshot = recorded_snapshot(result)
    if job is None:
        return JobOutcome(snapshot=snapshot)
    outcomes = [(record, record.outcome) for record in progress if record.phase is RegionPhase.FINISHED]
    finished = result.status is JobStatus.FINISHED  # only such a job has results
    rows = tuple(rows for _, outcome in outcomes if finished and outcome is not None for rows in outcome.results)
    past = history or JobHistory(job_id=result.job_id)
    executions = {(info.region, info.attempt): info for info in past.attempts}
    executions |= {
        (one.region, one.attempt): _execution(one, outcome) for one, outcome in outcomes if outcome is not None
    }
    snapshot = structs.replace(
        snapshot,
        graph=job.graph,
        regions=_regions(job.graph),
        executions=tuple(executions[key] for key in sorted(executions)),
        attempts_omitted=past.attempts_omitted,
        exceptions=_exceptions(past, result),
        exceptions_truncated=past.exceptions_omitted > 0,
        exceptions_omitted=past.exceptions_omitted,
        result_names=tuple(one.name for one in rows),
    )
    return JobOutcome(snapshot=snapshot, results=rows)


def _exceptions(past: JobHistory, result: JobResult) -> tuple[ExceptionEntry, ...]:
    """Return the failures of a job, the one that ended it last: it may have been recorded before, with its traces."""
    cause = result.cause
    if cause is None or any(each.timestamp_ms == cause.timestamp_ms for each in past.exceptions[-1:]):
        return past.exceptions
    return (*past.exceptions, cause)


def _execution(record: RegionRecord, outcome: TaskFinished) -> ExecutionInfo:
    return ExecutionInfo(
        region=record.region,
        attempt=record.attempt,
        state=ExecutionState.FINISHED,
        timestamps={ExecutionState.FINISHED: record.recorded_ms},
        task_manager=record.task_manager,
        address=record.address,
        metrics=outcome.metrics,
        outputs=outcome.outputs,
    )


def _failed(graph: JobGraph, start_ms: int, failure: Failure, now_ms: int) -> JobSnapshot:
    return JobSnapshot(
        graph=graph,
        regions=_regions(graph),
        status=JobStatus.FAILED,
        timestamps={JobStatus.INITIALIZING: start_ms, JobStatus.FAILING: now_ms, JobStatus.FAILED: now_ms},
        end_ms=now_ms,
        last_modified_ms=now_ms,
        executions=(),
        exceptions=(ExceptionEntry(failure=failure, timestamp_ms=now_ms),),
    )


def _regions(graph: JobGraph) -> tuple[Region, ...]:
    try:
        return regions_of(graph)
    except (CycleError, KeyError):  # a stored graph that this version cannot plan is shown all the same
        return ()

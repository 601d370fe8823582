"""What has happened to a job, as it is stored and as the next JobMaster goes on from it.

The history is written whenever a failure is noted, labelled, or a region gets its next attempt, before that attempt is
recorded, and before the report of the failure is acknowledged. So a failure is counted once: under this leader, or,
when its report is sent again, under the next one. An attempt whose end is in the history is not adopted but followed by
the next one; a job that was about to fail fails. What a delay before a restart had left is not stored: the next leader
restarts at once.

It is one bounded record for each job, not a part of the region records: those are written at each step of each region,
and must not carry the past.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster.execution_graph import Execution, ExecutionGraph, RegionState
from flintlock.model.jobs import ExecutionInfo, JobHistory
from flintlock.model.states import JobStatus
from flintlock.model.streaming.checkpoints import brief_progress
from flintlock.model.tasks import Failure, RegionPhase

#: How many attempts the history of a job holds at most: of a job with very many regions, the last ones of each.
MAX_ATTEMPTS: Final = 500

#: How much output of attempts it holds in all.
MAX_OUTPUT_BYTES: Final = 256 << 10


def info_of(region: RegionState, execution: Execution) -> ExecutionInfo:
    """Return an attempt as other components see it."""
    return ExecutionInfo(
        region=region.id,
        attempt=execution.attempt,
        state=execution.state,
        timestamps=execution.timestamps,
        task_manager=execution.task_manager,
        address=execution.address,
        slots=execution.slots,
        metrics=execution.metrics,
        outputs=execution.outputs,
        activity=execution.activity,
        publishing_ms=execution.publishing_ms,
        failure=execution.failure,
        output_tail=execution.output_tail,
        query=execution.query,
        queries=execution.queries,
    )


def history_of(job: ExecutionGraph) -> JobHistory:
    """Return what is stored of a job's history."""
    ended = {
        region.id: [execution for execution in region.executions if execution.state.terminal] for region in job.regions
    }
    at_most = max(1, MAX_ATTEMPTS // max(1, sum(1 for executions in ended.values() if executions)))
    return JobHistory(
        job_id=job.plan.job_id,
        restarts=job.restarts,
        infrastructure_restarts=job.infrastructure_restarts,
        failing=job.status is JobStatus.FAILING,
        exceptions=job.exceptions,
        exceptions_omitted=job.exceptions_omitted,
        attempts=_with_bounded_output(
            [
                structs.replace(
                    info_of(region, execution),
                    failure=_brief(execution.failure),
                    query=None if execution.query is None else brief_progress(execution.query),
                    queries=(),
                )
                for region in job.regions
                for execution in ended[region.id][-at_most:]
            ]
        ),
        attempts_omitted={
            region.id: omitted
            for region in job.regions
            if (omitted := region.attempts_omitted + max(0, len(ended[region.id]) - at_most))
        },
    )


def with_history(job: ExecutionGraph, history: JobHistory | None) -> ExecutionGraph:
    """Return a job in its initial state with what has happened to it under earlier leaders."""
    if history is None:
        return job
    return structs.replace(
        job,
        regions=tuple(_restored(region, history) for region in job.regions),
        restarts=history.restarts,
        infrastructure_restarts=history.infrastructure_restarts,
        exceptions=history.exceptions,
        exceptions_omitted=history.exceptions_omitted,
        must_fail=history.failing,
    )


def _restored(region: RegionState, history: JobHistory) -> RegionState:
    """Return the region with its former attempts. One whose latest attempt is known to have ended needs the next."""
    ended = [_execution(info) for info in history.attempts if info.region == region.id]
    region = structs.replace(region, attempts_omitted=history.attempts_omitted.get(region.id, 0))
    decided = region.phase in (RegionPhase.ACCEPTED, RegionPhase.FINISHED)
    if ended and ended[-1].attempt >= region.current.attempt and not decided:
        return structs.replace(region, executions=tuple(ended), grant=None)
    past = tuple(execution for execution in ended if execution.attempt < region.current.attempt)
    return structs.replace(region, executions=(*past, region.current))


def _execution(info: ExecutionInfo) -> Execution:
    return Execution(
        attempt=info.attempt,
        state=info.state,
        timestamps=info.timestamps,
        task_manager=info.task_manager,
        address=info.address,
        slots=info.slots,
        metrics=info.metrics,
        outputs=info.outputs,
        activity=info.activity,
        publishing_ms=info.publishing_ms,
        failure=info.failure,
        output_tail=info.output_tail,
        query=info.query,
    )


def _with_bounded_output(attempts: list[ExecutionInfo]) -> tuple[ExecutionInfo, ...]:
    """Return the attempts with the output of those that ended last, as far as `MAX_OUTPUT_BYTES` go."""
    left, kept = MAX_OUTPUT_BYTES, set[tuple[int, int]]()
    for info in sorted(attempts, key=lambda info: info.timestamps.get(info.state, 0), reverse=True):
        left -= len(info.output_tail)
        if left >= 0:
            kept.add((info.region, info.attempt))
    return tuple(
        info if (info.region, info.attempt) in kept else structs.replace(info, output_tail=b"") for info in attempts
    )


def _brief(failure: Failure | None) -> Failure | None:
    """Return the failure without its stack traces: they are with the exception history."""
    return None if failure is None else structs.replace(failure, stack_trace="", jvm_stack_trace=None)

"""The checkpoints of a streaming job: its committed batches, in the form in which Flink shows checkpoints.

A job has one sequence of ids in Flink, and one for each query in Spark. The id of batch `b` of query `i` of `n` is
`b * n + i + 1`: unique, growing with each query, and the number of committed batches where a job has one query.

What Spark does not say: of a failed batch when it began, and of a savepoint its size and which batches it ends at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from flintlock.api.checkpoints import (
    CheckpointCounts,
    CheckpointsResponse,
    CheckpointStatistic,
    CheckpointSummary,
    CompletedCheckpoint,
    FailedCheckpoint,
    LatestCheckpoints,
    RestoredCheckpoint,
)
from flintlock.config.options import RESTORE_PATH
from flintlock.model.commands import JobOperation, OperationStatus, StopJob
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import ExecutionInfo, JobQuery, JobSnapshot
from flintlock.model.states import ExecutionState
from flintlock.model.streaming.checkpoints import BatchFigures
from flintlock.model.times import elapsed_ms
from flintlock.rest.server.http import HttpResponse, RestCall, json_response

#: Flink's own number of remembered checkpoints.
MAX_HISTORY: Final = 10


async def checkpoints(call: RestCall) -> HttpResponse:
    """The checkpoints of one job: the committed batches of its queries, with figures, and the latest savepoint."""
    query = JobQuery(job_id=call.job_id)
    job = await call.services.dispatcher.job(query)
    streams = job.graph.job_type is JobType.STREAMING
    requested = await call.services.dispatcher.job_changes(query) if streams else None
    return json_response(checkpoints_of(job, () if requested is None else requested.operations))


def checkpoints_of(job: JobSnapshot, operations: Iterable[JobOperation] = ()) -> CheckpointsResponse:
    """Return the checkpoints of a job; a batch job has none. `operations`: of the job, some of which save it."""
    queries = len(job.regions)
    uids = {region.id: job.graph.vertex(region.outputs[0]).uid for region in job.regions if region.outputs}
    found: dict[int, CompletedCheckpoint] = {}
    restored: list[RestoredCheckpoint] = []
    failed: list[FailedCheckpoint] = []
    running = 0  # batches that run now
    last: dict[int, int] = {}  # the latest batch of each query
    first: dict[int, int] = {}  # the batch after which its first attempt began: that of a savepoint, else -1
    saved = job.graph.config.get(RESTORE_PATH.key, "")
    for execution in job.executions:
        query = execution.query
        if query is None:
            continue
        first.setdefault(execution.region, query.restored if saved and query.restored is not None else -1)
        if query.restored is not None:
            savepoint = saved if execution.attempt == 0 else ""
            restored.append(
                RestoredCheckpoint(
                    id=query.restored * queries + execution.region + 1,
                    restore_timestamp=query.started_ms,
                    is_savepoint=bool(savepoint),
                    external_path=savepoint or query.checkpoint,
                )
            )
            last[execution.region] = max(last.get(execution.region, -1), query.restored)
        for batch in query.batches:
            number = batch.batch * queries + execution.region + 1
            found[number] = _completed(number, batch, uids.get(execution.region, ""), query.checkpoint)
            last[execution.region] = max(last.get(execution.region, -1), batch.batch)
        if execution.state is ExecutionState.FAILED:
            begun = last.get(execution.region, -1) + 1
            number = begun * queries + execution.region + 1
            failed.append(_failed(number, begun, uids.get(execution.region, ""), execution))
        if execution.state.on_a_task_manager:
            running += sum(figures.running_since_ms > 0 for figures in execution.queries)
    newest = sorted(found.values(), key=lambda one: (one.latest_ack_timestamp, one.id), reverse=True)
    committed = sum(batch - first[region] for region, batch in last.items())
    attempted = {execution.region for execution in job.executions if execution.query is not None}
    # Of attempts that are no longer remembered nothing else is known; nearly all have ended with a failed batch.
    failures = len(failed) + sum(omitted for region, omitted in job.attempts_omitted.items() if region in attempted)
    return CheckpointsResponse(
        counts=CheckpointCounts(
            restored=len(restored),
            total=committed + running + failures,
            in_progress=running,
            completed=committed,
            failed=failures,
        ),
        summary=_summary(newest),
        latest=LatestCheckpoints(
            completed=newest[0] if newest else None,
            savepoint=_latest_savepoint(operations, newest),
            failed=max(failed, key=lambda one: one.failure_timestamp, default=None),
            restored=max(restored, key=lambda one: one.restore_timestamp, default=None),
        ),
        history=newest[:MAX_HISTORY],
    )


def _completed(number: int, batch: BatchFigures, uid: str, directory: str) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        id=number,
        trigger_timestamp=batch.started_ms,
        latest_ack_timestamp=batch.started_ms + batch.duration_ms,
        checkpointed_size=batch.written_bytes,
        state_size=batch.file_bytes or batch.state_bytes,
        end_to_end_duration=batch.duration_ms,
        external_path=directory,
        uid=uid,
        batch=batch.batch,
        input_rows=batch.input_rows,
        state_rows=batch.state_rows,
        offsets=batch.offsets,
        watermark=batch.watermark,
    )


def _failed(number: int, batch: int, uid: str, execution: ExecutionInfo) -> FailedCheckpoint:
    at_ms = execution.timestamps.get(ExecutionState.FAILED, 0)
    return FailedCheckpoint(
        id=number,
        trigger_timestamp=at_ms,
        latest_ack_timestamp=at_ms,
        checkpointed_size=0,
        state_size=0,
        end_to_end_duration=0,
        num_acknowledged_subtasks=0,
        failure_timestamp=at_ms,
        failure_message=execution.failure.message if execution.failure is not None else "",
        uid=uid,
        batch=batch,
    )


def _latest_savepoint(
    operations: Iterable[JobOperation], batches: Sequence[CompletedCheckpoint]
) -> CompletedCheckpoint | None:
    """Return the latest savepoint that was made of the job, under the id of the last batch before its end."""
    made = [each for each in operations if each.status is OperationStatus.COMPLETED and each.location]
    if not made:
        return None
    latest = max(made, key=lambda each: each.ended_ms)
    return CompletedCheckpoint(
        id=max((one.id for one in batches if one.latest_ack_timestamp <= latest.ended_ms), default=0),
        is_savepoint=True,
        savepoint_format="NATIVE",
        trigger_timestamp=latest.started_ms,
        latest_ack_timestamp=latest.ended_ms,
        checkpointed_size=0,
        state_size=0,
        end_to_end_duration=elapsed_ms(latest.started_ms, latest.ended_ms),
        checkpoint_type="SYNC_SAVEPOINT" if isinstance(latest.command, StopJob) else "SAVEPOINT",
        external_path=latest.location,
    )


def _summary(found: Sequence[CompletedCheckpoint]) -> CheckpointSummary:
    nothing = _statistic(0 for _ in found)
    return CheckpointSummary(
        checkpointed_size=_statistic(one.checkpointed_size for one in found),
        state_size=_statistic(one.state_size for one in found),
        end_to_end_duration=_statistic(one.end_to_end_duration for one in found),
        alignment_buffered=nothing,
        processed_data=nothing,
        persisted_data=nothing,
    )


def _statistic(values: Iterable[int]) -> CheckpointStatistic:
    ordered = sorted(values)
    if not ordered:
        return CheckpointStatistic()

    def quantile(part: float) -> float:
        return float(ordered[max(0, math.ceil(part * len(ordered)) - 1)])

    return CheckpointStatistic(
        min=ordered[0],
        max=ordered[-1],
        avg=sum(ordered) // len(ordered),
        p50=quantile(0.5),
        p90=quantile(0.9),
        p95=quantile(0.95),
        p99=quantile(0.99),
        p999=quantile(0.999),
    )

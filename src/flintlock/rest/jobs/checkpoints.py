"""The checkpoints of a streaming job: its committed batches, in the form in which Flink shows checkpoints.

A job has one sequence of ids in Flink, and one for each query in Spark. The id of batch `b` of query `i` of `n` is
`b * n + i + 1`: unique, growing with each query, and the number of committed batches where a job has one query.
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
    LatestCheckpoints,
    RestoredCheckpoint,
)
from flintlock.model.jobs import JobQuery, JobSnapshot
from flintlock.model.streaming.checkpoints import BatchFigures
from flintlock.rest.server.http import HttpResponse, RestCall, json_response

#: Flink's own number of remembered checkpoints.
MAX_HISTORY: Final = 10


async def checkpoints(call: RestCall) -> HttpResponse:
    """The checkpoints of one job: the committed batches of its queries, with their figures."""
    return json_response(checkpoints_of(await call.services.dispatcher.job(JobQuery(job_id=call.job_id))))


def checkpoints_of(job: JobSnapshot) -> CheckpointsResponse:
    """Return the checkpoints of a job; a batch job has none."""
    queries = len(job.regions)
    uids = {region.id: job.graph.vertex(region.outputs[0]).uid for region in job.regions if region.outputs}
    found: dict[int, CompletedCheckpoint] = {}
    restored: list[RestoredCheckpoint] = []
    last: dict[int, int] = {}  # the latest batch of each query
    for execution in job.executions:
        query = execution.query
        if query is None:
            continue
        if query.restored is not None:
            restored.append(
                RestoredCheckpoint(
                    id=query.restored * queries + execution.region + 1,
                    restore_timestamp=query.started_ms,
                    external_path=query.checkpoint,
                )
            )
            last[execution.region] = max(last.get(execution.region, -1), query.restored)
        for batch in query.batches:
            number = batch.batch * queries + execution.region + 1
            found[number] = _completed(number, batch, uids.get(execution.region, ""), query.checkpoint)
            last[execution.region] = max(last.get(execution.region, -1), batch.batch)
    newest = sorted(found.values(), key=lambda one: (one.latest_ack_timestamp, one.id), reverse=True)
    committed = sum(batch + 1 for batch in last.values())
    return CheckpointsResponse(
        counts=CheckpointCounts(restored=len(restored), total=committed, in_progress=0, completed=committed, failed=0),
        summary=_summary(newest),
        latest=LatestCheckpoints(
            completed=newest[0] if newest else None,
            restored=max(restored, key=lambda one: one.restore_timestamp, default=None),
        ),
        history=newest[:MAX_HISTORY],
    )


def _completed(number: int, batch: BatchFigures, uid: str, directory: str) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        id=number,
        trigger_timestamp=batch.started_ms,
        latest_ack_timestamp=batch.started_ms + batch.duration_ms,
        checkpointed_size=batch.state_bytes,
        state_size=batch.state_bytes,
        end_to_end_duration=batch.duration_ms,
        external_path=directory,
        uid=uid,
        batch=batch.batch,
        input_rows=batch.input_rows,
        state_rows=batch.state_rows,
        offsets=batch.offsets,
        watermark=batch.watermark,
    )


def _summary(found: Sequence[CompletedCheckpoint]) -> CheckpointSummary:
    nothing = _statistic(0 for _ in found)
    sizes = _statistic(one.state_size for one in found)
    return CheckpointSummary(
        checkpointed_size=sizes,
        state_size=sizes,
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

"""The streaming queries of a job: of the sinks of its graph, or those that its program has started."""

from __future__ import annotations

import msgspec
from msgspec import structs

from flintlock.api.queries import QueriesResponse, QueryInfo
from flintlock.model.jobs import ExecutionInfo, JobQuery, JobSnapshot
from flintlock.model.regions import Region
from flintlock.rest.server.http import HttpResponse, RestCall, json_response


async def queries(call: RestCall) -> HttpResponse:
    """The streaming queries of one job, with the figures of their latest batches."""
    job = await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    return json_response(QueriesResponse(queries=queries_of(job), now=call.services.clock_ms()))


def queries_of(job: JobSnapshot, only: Region | None = None) -> tuple[QueryInfo, ...]:
    """Return the queries of the latest attempt of each region; those of an attempt that has ended are not active.

    `only`: of this region. Others are not converted.
    """
    regions = job.regions if only is None else (only,)
    ids = {region.id for region in regions}
    latest: dict[int, ExecutionInfo] = {each.region: each for each in job.executions if each.region in ids}
    uids = {region.id: job.graph.vertex(region.outputs[0]).uid for region in regions if region.outputs}
    return tuple(
        structs.replace(
            msgspec.convert(figures, QueryInfo, from_attributes=True),
            uid=uids.get(execution.region, ""),
            region=execution.region,
            attempt=execution.attempt,
            active=figures.active and execution.state.on_a_task_manager,
            running_since_ms=figures.running_since_ms if execution.state.on_a_task_manager else 0,
            idle_since_ms=figures.idle_since_ms if execution.state.on_a_task_manager else 0,
            falls_behind=figures.falls_behind and execution.state.on_a_task_manager,
        )
        for execution in latest.values()
        for figures in execution.queries
    )

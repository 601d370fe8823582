"""Handlers of metrics: for Prometheus, and in the form of Flink's metrics endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs
from prometheus_client import CONTENT_TYPE_LATEST

from flintlock.api.job_lines import id_and_status
from flintlock.model.errors import Fenced, Invalid, NotFound, Unavailable
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobs import JobQuery, JobsQuery
from flintlock.rest.metrics import registry as metrics
from flintlock.rest.metrics.job_metrics import job_values, vertex_values
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such
from flintlock.rest.vertices.handlers import subtask_of, view_of

_PAGE: Final = 1000


async def prometheus(call: RestCall) -> HttpResponse:
    """Metrics in Prometheus' text format; without a leader, those of this JobManager only."""
    found = metrics.families(call.services.registry, await _now(call))
    return HttpResponse(body=metrics.prometheus_text(found), content_type=CONTENT_TYPE_LATEST)


async def jobmanager(call: RestCall) -> HttpResponse:
    """The JobManager's metrics: their ids, or the values of those that `get` names."""
    now = await _now(call)
    values = metrics.jobmanager_values(metrics.families(call.services.registry, now), now)
    return json_response(metrics.listed(values, call.names("get")))


async def task_manager(call: RestCall) -> HttpResponse:
    """What a TaskManager measures of itself: ids, or the values of those that `get` names."""
    wanted = call.path("taskmanagerid")
    resources = await call.services.resource_manager.task_managers()
    for info in resources.task_managers:
        if info.id == wanted:
            return json_response(metrics.listed(metrics.task_manager_values(info), call.names("get")))
    raise no_such("TaskManager", wanted)


async def task_managers(call: RestCall) -> HttpResponse:
    """What all TaskManagers (or those that `taskmanagers` names) measure, together."""
    chosen = call.names("taskmanagers")
    seen = (await call.services.resource_manager.task_managers()).task_managers
    unknown = [name for name in chosen if name not in {info.id for info in seen}]
    if unknown:
        raise no_such("TaskManager", unknown[0])
    many = [metrics.task_manager_values(info) for info in seen if not chosen or info.id in chosen]
    return json_response(_aggregated(call, many))


async def job(call: RestCall) -> HttpResponse:
    """The metrics of one job: ids, or the values of those that `get` names."""
    found = await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    return json_response(metrics.listed(job_values(found, call.services.clock_ms()), call.names("get")))


async def jobs(call: RestCall) -> HttpResponse:
    """The metrics of all jobs that have not ended (or of those that `jobs` names), together."""
    chosen = call.names("jobs")
    wrong = [name for name in chosen if not is_job_id(name)]
    if wrong:
        raise Invalid(f"query parameter 'jobs': {wrong[0]!r} is not a job id: 32 hex digits")
    if not chosen:
        chosen = await _running_jobs(call)
    many: list[metrics.Values] = []
    for name in chosen:
        try:
            found = await call.services.dispatcher.job(JobQuery(job_id=JobId(name)))
        except NotFound:
            if call.names("jobs"):
                raise
            continue  # removed since it was listed
        many.append(job_values(found, call.services.clock_ms()))
    return json_response(_aggregated(call, many))


async def _running_jobs(call: RestCall) -> tuple[str, ...]:
    """Return the ids of all jobs that have not ended."""
    found: list[str] = []
    query = JobsQuery(limit=_PAGE, ended=False)
    while True:
        page = await call.services.dispatcher.list_jobs(query)
        found += [id_and_status(line)[0] for line in page.lines]
        if page.next is None:
            return tuple(found)
        query = structs.replace(query, after=page.next)


async def vertex(call: RestCall) -> HttpResponse:
    """The metrics of a step by subtask: ids, or the values of those that `get` names."""
    values = {
        f"{one.index}.{name}": value
        for one in (await view_of(call)).subtasks
        for name, value in vertex_values(one).items()
    }
    return json_response(metrics.listed(values, call.names("get")))


async def subtask(call: RestCall) -> HttpResponse:
    """The metrics of one subtask of a step."""
    return json_response(metrics.listed(vertex_values(await subtask_of(call)), call.names("get")))


async def subtasks(call: RestCall) -> HttpResponse:
    """The metrics of all subtasks of a step, together."""
    return json_response(_aggregated(call, [vertex_values(one) for one in (await view_of(call)).subtasks]))


def _aggregated(call: RestCall, many: Sequence[metrics.Values]) -> object:
    asked = tuple(name.lower() for name in call.names("agg"))
    unknown = [name for name in asked if name not in metrics.AGGREGATIONS]
    if unknown:
        known = ", ".join(metrics.AGGREGATIONS)
        raise Invalid(f"query parameter 'agg': {unknown[0]!r} is not known; known are {known}")
    return metrics.aggregated(many, call.names("get"), asked or metrics.AGGREGATIONS)


async def _now(call: RestCall) -> metrics.ClusterView | None:
    """Return what the leader knows; None if there is no leader."""
    try:
        return metrics.ClusterView(
            await call.services.dispatcher.job_counts(), await call.services.resource_manager.task_managers()
        )
    except (Unavailable, Fenced):
        return None

"""Handlers of the routes about the cluster."""

from __future__ import annotations

import time

import msgspec

from flintlock.api import cluster as shapes
from flintlock.api.jobs import Empty, Errors
from flintlock.config.options import WEB_CANCEL, WEB_REFRESH
from flintlock.model.application import ShutDownCluster
from flintlock.model.errors import Unavailable
from flintlock.model.jobs import JobQuery
from flintlock.model.states import JobStatus
from flintlock.rest.cluster import translate
from flintlock.rest.secrets import effective_settings
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such


async def config(call: RestCall) -> HttpResponse:
    """The settings of a dashboard."""
    services = call.services
    zone = time.localtime()
    return json_response(
        shapes.DashboardConfig(
            refresh_interval=int(services.configuration.get(WEB_REFRESH) * 1000),
            timezone_name=zone.tm_zone,
            timezone_offset=zone.tm_gmtoff * 1000,
            flink_version=services.versions.flintlock,
            flink_revision=services.revision,
            features=shapes.Features(
                web_submit=False,
                web_cancel=services.configuration.get(WEB_CANCEL),
                web_rescale=True,
                web_history=False,
            ),
        )
    )


async def overview(call: RestCall) -> HttpResponse:
    """How many TaskManagers, slots and jobs there are."""
    services = call.services
    resources = await services.resource_manager.task_managers()
    jobs = await services.dispatcher.job_counts()
    return json_response(
        shapes.ClusterOverview(
            taskmanagers=len(resources.task_managers),
            slots_total=sum(tm.slots for tm in resources.task_managers),
            slots_available=sum(tm.free_slots for tm in resources.task_managers),
            jobs_running=jobs.running,
            jobs_finished=jobs.by_status[JobStatus.FINISHED],
            jobs_cancelled=jobs.by_status[JobStatus.CANCELED],
            jobs_failed=jobs.by_status[JobStatus.FAILED],
            flink_version=services.versions.flintlock,
            flink_commit=services.revision,
        )
    )


async def job_managers(call: RestCall) -> HttpResponse:
    """The JobManager that leads, and the standbys that watch it."""
    await call.services.dispatcher.job_counts()  # fails where there is no leader that may answer
    found = call.services.job_managers()
    return json_response(msgspec.convert({"jobmanagers": found}, shapes.JobManagersResponse, from_attributes=True))


async def task_managers(call: RestCall) -> HttpResponse:
    """All registered TaskManagers."""
    resources = await call.services.resource_manager.task_managers()
    return json_response(
        shapes.TaskManagersResponse(taskmanagers=[translate.task_manager(tm) for tm in resources.task_managers])
    )


async def task_manager(call: RestCall) -> HttpResponse:
    """One TaskManager with the jobs that use its slots."""
    wanted = call.path("taskmanagerid")
    resources = await call.services.resource_manager.task_managers()
    for info in resources.task_managers:
        if info.id == wanted:
            return json_response(translate.task_manager_details(info))
    raise no_such("TaskManager", wanted)


async def shut_down(call: RestCall) -> HttpResponse:
    """Shut the cluster down: all its processes end. Its jobs are suspended, and continue when it is started again."""
    await call.services.dispatcher.shut_down_cluster(ShutDownCluster())
    return json_response(Empty())


async def resources(call: RestCall) -> HttpResponse:
    """The jobs that wait for slots, in order, and how many TaskManagers are starting."""
    resources = await call.services.resource_manager.overview()
    return json_response(msgspec.convert(resources, shapes.ClusterResources, from_attributes=True))


async def jobmanager_config(call: RestCall) -> HttpResponse:
    """The JobManager's effective configuration."""
    return json_response(_configuration(call))


async def job_jobmanager_config(call: RestCall) -> HttpResponse:
    """The configuration of the JobManager that runs a job."""
    await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    return json_response(_configuration(call))


def _configuration(call: RestCall) -> list[shapes.ConfigEntry]:
    settings = effective_settings(call.services.configuration)
    return [shapes.ConfigEntry(key=key, value=value) for key, value in settings.items()]


async def versions(call: RestCall) -> HttpResponse:
    """The versions that this JobManager runs; clients compare them before they pickle functions."""
    return json_response(call.services.versions)


async def healthz(_: RestCall) -> HttpResponse:
    """The process is alive."""
    return json_response(shapes.Health(status="ok"))


async def readyz(call: RestCall) -> HttpResponse:
    """There is a leader, and it accepts jobs."""
    try:
        await call.services.dispatcher.job_counts()
    except Unavailable:
        return json_response(Errors(errors=["there is no leader"]), 503, {"Retry-After": "1"})
    return json_response(shapes.Health(status="ready"))

"""Handlers of all that concerns the cluster."""

from __future__ import annotations

import time

from flintlock.api import cluster as shapes
from flintlock.api.jobs import Errors
from flintlock.config.options import OPTIONS, WEB_CANCEL, WEB_REFRESH
from flintlock.model.errors import Unavailable
from flintlock.model.jobs import JobQuery
from flintlock.model.states import JobStatus
from flintlock.rest.cluster import translate
from flintlock.rest.metrics.registry import job_counts
from flintlock.rest.secrets import without_secrets
from flintlock.rest.server.http import Answer, Call, answer, no_such


async def config(call: Call) -> Answer:
    """What a dashboard needs to know first."""
    services = call.services
    zone = time.localtime()
    return answer(
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


async def overview(call: Call) -> Answer:
    """How many TaskManagers, slots and jobs there are."""
    services = call.services
    resources = await services.resource_manager.overview()
    counts = job_counts(await services.dispatcher.list_jobs())
    return answer(
        shapes.ClusterOverview(
            taskmanagers=len(resources.task_managers),
            slots_total=sum(tm.slots for tm in resources.task_managers),
            slots_available=sum(tm.free_slots for tm in resources.task_managers),
            jobs_running=sum(n for status, n in counts.items() if not status.globally_terminal),
            jobs_finished=counts[JobStatus.FINISHED],
            jobs_cancelled=counts[JobStatus.CANCELED],
            jobs_failed=counts[JobStatus.FAILED],
            flink_version=services.versions.flintlock,
            flink_commit=services.revision,
        )
    )


async def task_managers(call: Call) -> Answer:
    """All registered TaskManagers."""
    resources = await call.services.resource_manager.overview()
    return answer(
        shapes.TaskManagersAnswer(taskmanagers=[translate.task_manager(tm) for tm in resources.task_managers])
    )


async def task_manager(call: Call) -> Answer:
    """One TaskManager with who holds its slots."""
    wanted = call.path("taskmanagerid")
    resources = await call.services.resource_manager.overview()
    for info in resources.task_managers:
        if info.id == wanted:
            return answer(translate.task_manager_details(info))
    raise no_such("TaskManager", wanted)


async def resources(call: Call) -> Answer:
    """Who waits for slots, in order, and how many TaskManagers are starting."""
    seen = await call.services.resource_manager.overview()
    return answer(
        shapes.ResourcesAnswer(
            waiting=[
                shapes.WaitingAnswer(
                    jobid=item.job_id,
                    name=item.name,
                    priority=item.priority,
                    request=item.request,
                    slots=item.slots,
                    since=item.since_ms,
                )
                for item in seen.waiting
            ],
            starting=seen.starting,
        )
    )


async def jobmanager_config(call: Call) -> Answer:
    """The JobManager's configuration: what was set, and what it is otherwise."""
    return answer(_configuration(call))


async def job_jobmanager_config(call: Call) -> Answer:
    """The configuration of the JobManager that runs a job."""
    await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    return answer(_configuration(call))


def _configuration(call: Call) -> list[shapes.ConfigEntry]:
    given = call.services.configuration.as_dict()
    defaults = {option.key: option.default_text or str(option.default) for option in OPTIONS}
    effective = without_secrets({**defaults, **given})
    return [shapes.ConfigEntry(key=key, value=effective[key]) for key in sorted(effective)]


async def versions(call: Call) -> Answer:
    """What runs here; clients compare before they pickle anything."""
    has = call.services.versions
    return answer(shapes.VersionsAnswer(flintlock=has.flintlock, python=has.python, pyspark=has.pyspark))


async def healthz(_: Call) -> Answer:
    """The process lives."""
    return answer(shapes.Health(status="ok"))


async def readyz(call: Call) -> Answer:
    """A Dispatcher leads and takes jobs."""
    try:
        await call.services.dispatcher.list_jobs()
    except Unavailable:
        return answer(Errors(errors=["nobody leads yet"]), 503, {"Retry-After": "1"})
    return answer(shapes.Health(status="ready"))

"""Handlers of all that concerns the cluster."""

from __future__ import annotations

import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from flintlock.model.errors import Unavailable
from flintlock.model.jobs import JobsOverview
from flintlock.model.options import OPTIONS, WEB_CANCEL, WEB_REFRESH
from flintlock.model.slots import ResourceOverview
from flintlock.model.states import JobStatus
from flintlock.rest import shapes, translate
from flintlock.rest.calls import Answer, Call, answer, no_such

_ENDED = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)


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
                web_rescale=False,
                web_history=False,
            ),
        )
    )


async def overview(call: Call) -> Answer:
    """How many TaskManagers, slots and jobs there are."""
    services = call.services
    resources = await services.resource_manager.overview()
    counts = _counts(await services.dispatcher.list_jobs())
    return answer(
        shapes.ClusterOverview(
            taskmanagers=len(resources.task_managers),
            slots_total=sum(tm.slots for tm in resources.task_managers),
            slots_available=sum(tm.free_slots for tm in resources.task_managers),
            jobs_running=sum(n for status, n in counts.items() if status not in _ENDED),
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
    """Who waits for slots, in order."""
    seen = await call.services.resource_manager.overview()
    return answer(
        shapes.ResourcesAnswer(
            waiting=[
                shapes.WaitingAnswer(jobid=item.job_id, request=item.request, slots=item.slots, since=item.since_ms)
                for item in seen.waiting
            ]
        )
    )


async def jobmanager_config(call: Call) -> Answer:
    """The JobManager's configuration: what was set, and what it is otherwise."""
    given = call.services.configuration.as_dict()
    defaults = {option.key: option.default_text or str(option.default) for option in OPTIONS}
    effective = {**defaults, **given}
    return answer([shapes.ConfigEntry(key=key, value=effective[key]) for key in sorted(effective)])


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
        return answer(shapes.Errors(errors=["nobody leads yet"]), 503, {"Retry-After": "1"})
    return answer(shapes.Health(status="ready"))


async def metrics(call: Call) -> Answer:
    """What Prometheus scrapes."""
    listing = await call.services.dispatcher.list_jobs()
    seen = await call.services.resource_manager.overview()
    return Answer(body=generate_latest(_registry(listing, seen)), content_type=CONTENT_TYPE_LATEST)


def _registry(listing: JobsOverview, seen: ResourceOverview) -> CollectorRegistry:
    """Make the gauges of this moment: nothing is kept between two scrapes, so nothing can go stale."""
    registry = CollectorRegistry()
    jobs = Gauge("flintlock_jobs", "Jobs by state.", ["state"], registry=registry)
    for status, count in _counts(listing).items():
        jobs.labels(status).set(count)
    slots = Gauge("flintlock_slots", "Slots by use.", ["use"], registry=registry)
    free = sum(tm.free_slots for tm in seen.task_managers)
    slots.labels("free").set(free)
    slots.labels("taken").set(sum(tm.slots for tm in seen.task_managers) - free)
    Gauge("flintlock_taskmanagers", "Registered TaskManagers.", registry=registry).set(len(seen.task_managers))
    Gauge("flintlock_slot_requests_waiting", "Requests in the queue.", registry=registry).set(len(seen.waiting))
    return registry


def _counts(listing: JobsOverview) -> dict[JobStatus, int]:
    counts = dict.fromkeys(JobStatus, 0)
    for job in listing.jobs:
        counts[job.status] += 1
    return counts

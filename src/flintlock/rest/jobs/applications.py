"""Handlers of the routes about applications, as Flink has them since 2.3.

The cluster of an application has one: its program, under the program's id, with the jobs that it has submitted. On
every other cluster each job is an application of its own, under the job's id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from flintlock.api import applications as shapes
from flintlock.api.job_lines import overview_entry, summary_of
from flintlock.model.errors import NotFound
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobQuery, JobSnapshot, JobsQuery, JobSummary
from flintlock.model.states import JobStatus
from flintlock.model.times import elapsed_ms
from flintlock.rest.cluster import handlers as cluster
from flintlock.rest.jobs import handlers as job_handlers
from flintlock.rest.jobs import translate
from flintlock.rest.jobs.listing import MAX_PAGE
from flintlock.rest.server.http import HttpResponse, RestCall, json_response

_MAX_EXCEPTIONS: Final = 20
_STATES: Final = {
    JobStatus.INITIALIZING: shapes.ApplicationState.CREATED,
    JobStatus.CREATED: shapes.ApplicationState.CREATED,
    JobStatus.FINISHED: shapes.ApplicationState.FINISHED,
    JobStatus.FAILING: shapes.ApplicationState.FAILING,
    JobStatus.FAILED: shapes.ApplicationState.FAILED,
    JobStatus.CANCELLING: shapes.ApplicationState.CANCELING,
    JobStatus.CANCELED: shapes.ApplicationState.CANCELED,
}  # all others: RUNNING
_WITH_JOBS: Final = {
    shapes.ApplicationState.FINISHED: shapes.ApplicationState.RUNNING,
    shapes.ApplicationState.FAILED: shapes.ApplicationState.FAILING,
    shapes.ApplicationState.CANCELED: shapes.ApplicationState.CANCELING,
}


async def overview(call: RestCall) -> HttpResponse:
    """The applications; on a cluster that is not an application's, the newest 1,000 jobs, each as one."""
    now_ms, program = call.services.clock_ms(), call.services.application
    page = await call.services.dispatcher.list_jobs(JobsQuery(limit=MAX_PAGE))
    found = [summary_of(line) for line in page.lines]
    if program is None:
        entries = [_entry(job, f"SingleJobApplication({job.name})", (job,), now_ms) for job in found]
    else:
        main = (await call.services.dispatcher.job(JobQuery(job_id=program))).summary()
        jobs = await _program_jobs(call, program)
        entries = [_entry(main, main.name, jobs, now_ms)]
    return json_response(shapes.ApplicationsOverview(applications=tuple(entries)))


async def details(call: RestCall) -> HttpResponse:
    """One application with its jobs."""
    now_ms, snapshot = call.services.clock_ms(), await _main(call)
    main = snapshot.summary()
    of_program = main.job_id == call.services.application
    jobs = await _program_jobs(call, main.job_id) if of_program else (main,)
    entry = _entry(main, main.name if of_program else f"SingleJobApplication({main.name})", jobs, now_ms)
    times = dict.fromkeys(map(str, shapes.ApplicationState), 0)
    for status, at_ms in snapshot.timestamps.items():
        times[_STATES.get(status, shapes.ApplicationState.RUNNING)] = at_ms
    return json_response(
        shapes.ApplicationDetails(
            id=entry.id,
            name=entry.name,
            status=entry.status,
            start_time=entry.start_time,
            end_time=entry.end_time,
            duration=entry.duration,
            timestamps=times,
            jobs=tuple(overview_entry(job, now_ms) for job in jobs),
        )
    )


async def exceptions(call: RestCall) -> HttpResponse:
    """The failures of an application's program, or of its only job, newest first."""
    history = translate.exceptions(await _main(call), _MAX_EXCEPTIONS).exception_history
    return json_response(
        shapes.ApplicationExceptions(exception_history=shapes.ApplicationExceptionHistory(entries=history.entries))
    )


async def jobmanager_config(call: RestCall) -> HttpResponse:
    """The configuration of the JobManager that runs an application."""
    await _main(call)
    return await cluster.jobmanager_config(call)


async def cancel(call: RestCall) -> HttpResponse:
    """Cancel an application: its program, then the jobs of that, or its only job; responds once that is durable."""
    await _main(call)
    return await job_handlers.cancel(call)


def application_state(main: JobStatus, jobs: Iterable[JobStatus]) -> shapes.ApplicationState:
    """Return the state of an application: it has not ended before its jobs have."""
    state = _STATES.get(main, shapes.ApplicationState.RUNNING)
    return state if all(job.globally_terminal for job in jobs) else _WITH_JOBS.get(state, state)


def _entry(main: JobSummary, name: str, jobs: tuple[JobSummary, ...], now_ms: int) -> shapes.ApplicationOverviewEntry:
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.status] = counts.get(job.status, 0) + 1
    state = application_state(main.status, (job.status for job in jobs))
    ends_ms = [main.end_ms, *(job.end_ms for job in jobs)]
    end_ms = -1 if min(ends_ms) < 0 else max(ends_ms)
    return shapes.ApplicationOverviewEntry(
        id=main.job_id,
        name=name,
        start_time=main.start_ms,
        end_time=end_ms,
        duration=elapsed_ms(main.start_ms, now_ms if end_ms < 0 else end_ms),
        status=state,
        jobs=counts,
    )


async def _main(call: RestCall) -> JobSnapshot:
    """Return the program of the application in the path, or its only job. Raises NotFound."""
    program = call.services.application
    if program is not None and call.job_id != program:
        raise NotFound(f"there is no application {call.job_id}: that of this cluster is {program}")
    return await call.services.dispatcher.job(JobQuery(job_id=call.job_id))


async def _program_jobs(call: RestCall, program: JobId) -> tuple[JobSummary, ...]:
    found: list[JobSummary] = []
    query = JobsQuery(limit=MAX_PAGE)
    while True:
        page = await call.services.dispatcher.list_jobs(query)
        found += [job for line in page.lines if (job := summary_of(line)).job_id != program]
        if page.next is None:
            return tuple(found)
        query = structs.replace(query, after=page.next)

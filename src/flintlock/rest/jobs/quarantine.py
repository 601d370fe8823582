"""Handlers of the routes about quarantined jobs."""

from __future__ import annotations

from flintlock.api import jobs as shapes
from flintlock.api.quarantine import QuarantineEntry, QuarantineListing
from flintlock.model.jobs import JobQuery, QuarantinedJob
from flintlock.rest.server.http import HttpResponse, RestCall, json_response


async def list_jobs(call: RestCall) -> HttpResponse:
    """The quarantined jobs: stored, but unreadable or impossible to run; with the reasons."""
    found = await call.services.dispatcher.quarantined_jobs()
    return json_response(QuarantineListing(jobs=tuple(map(_entry, found.jobs))))


async def show(call: RestCall) -> HttpResponse:
    """A quarantined job: the reason, and what is kept of it."""
    return json_response(_entry(await call.services.dispatcher.quarantined_job(JobQuery(job_id=call.job_id))))


async def retry(call: RestCall) -> HttpResponse:
    """Put a quarantined job back, under its own id; responds once that is durable and the job runs."""
    await call.services.dispatcher.retry_quarantined(JobQuery(job_id=call.job_id))
    return json_response(shapes.Empty(), 202)


async def drop(call: RestCall) -> HttpResponse:
    """Give a quarantined job up; responds once that is durable. Its records, files and artifacts are removed later."""
    await call.services.dispatcher.drop_quarantined(JobQuery(job_id=call.job_id))
    return json_response(shapes.Empty(), 202)


def _entry(job: QuarantinedJob) -> QuarantineEntry:
    return QuarantineEntry(
        jid=job.job_id,
        name=job.name,
        reason=job.reason,
        since=job.since_ms,
        readable=job.readable,
        directories=job.directories,
        artifacts=job.artifacts,
    )

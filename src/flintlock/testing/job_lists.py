"""Reads the whole listing of a Dispatcher, as summaries. For tests: a cluster may have a million jobs."""

from __future__ import annotations

from msgspec import structs

from flintlock.api.job_lines import summary_of
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.jobs import JobsQuery, JobSummary


async def all_jobs(dispatcher: DispatcherGateway, page: int = 100) -> tuple[JobSummary, ...]:
    """Return all jobs in the order of the listing."""
    found: list[JobSummary] = []
    query = JobsQuery(limit=page)
    while True:
        answer = await dispatcher.list_jobs(query)
        found += [summary_of(line) for line in answer.lines]
        if answer.next is None:
            return tuple(found)
        query = structs.replace(query, after=answer.next)

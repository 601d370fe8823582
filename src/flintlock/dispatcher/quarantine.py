"""Quarantined jobs: inspected, put back, or given up, by an operator or when their retention is over.

A quarantined job is listed as FAILED. Its graph, progress, artifacts and directories stay, so that it can be put back
once what kept it from running is repaired. Each change is one transaction, after which every leader does the same:

    retry   the graph is among those to run again, and the end of the job is forgotten: a leader recovers it
    drop    a dirty result takes the graph's place: a leader cleans up after the job, as after any other

So a leader that dies before it has begun to act on it leaves that to the next one, and both may be sent again. Changes
of this kind follow one another: they are rare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher import core
from flintlock.dispatcher.core import JobPhase
from flintlock.dispatcher.job import DispatchedJob, JobServices
from flintlock.dispatcher.recovery import JobRecovery
from flintlock.dispatcher.sink_writers import SinkWriters
from flintlock.dispatcher.submission import JobScope
from flintlock.dispatcher.writes import continue_without_damaged, log_and_continue
from flintlock.ha.store_rules import not_quarantined, still_cleaned_up
from flintlock.model import log_events
from flintlock.model.errors import Conflict, Corrupt, Forbidden, Invalid, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobResult, JobSnapshot, QuarantinedJob, QuarantinedJobs, StoredJob
from flintlock.model.states import JobStatus
from flintlock.model.tasks import RegionRecord

log: FilteringBoundLogger = structlog.get_logger()

_RETRY_S: Final = 5.0


class Quarantine:
    """The quarantined jobs of one term."""

    def __init__(
        self, shared: JobServices, scope: JobScope, recover: Callable[[], JobRecovery], sinks: SinkWriters
    ) -> None:
        self._shared: Final = shared
        self._stores: Final = shared.term.stores
        self._gate: Final = shared.term.gate
        self._scope: Final = scope
        self._recover: Final = recover
        self._sinks: Final = sinks
        self._changing: Final = asyncio.Lock()

    async def list_jobs(self) -> QuarantinedJobs:
        """Return the quarantined jobs."""
        found = await self._stores.graphs.quarantined()
        return QuarantinedJobs(jobs=tuple([await self._describe(each.job_id, each.reason) for each in found]))

    async def job(self, job_id: JobId) -> QuarantinedJob:
        """Return one of them. Raises NotFound."""
        return await self._describe(job_id, await self._reason(job_id))

    async def retry(self, job_id: JobId, done: asyncio.Future[None]) -> None:
        """Put a job back; the outcome is set on `done`: that it runs, or why it is still quarantined."""
        async with self._changing, AsyncExitStack() as until_it_runs:
            try:
                if not self._is_running(job_id):
                    stored = await self._graph(job_id)
                    former = None if stored is None else await self._former(stored)
                    until_it_runs.enter_context(self._sinks.returning(None if stored is None else stored.graph, former))
                    await self._restore(job_id, done)
            except (NotFound, Conflict, Unavailable) as error:
                if not done.done():
                    done.set_exception(error)
                return
            if not self._is_running(job_id):  # it is stored as a job to run: nothing may keep this leader from it
                await self._run(job_id, done)
        if not done.done():
            done.set_result(None)

    async def _restore(self, job_id: JobId, done: asyncio.Future[None]) -> None:
        """Put a job back, however long it takes: it may have taken place each time that it was not acknowledged.

        Until that is known, the job keeps its sinks, and nothing else is done with it. A client does not wait for it.
        """

        async def restore() -> None:
            try:
                await self._stores.graphs.restore(job_id)
            except Unavailable as error:
                if not done.done():
                    text = f"it is not known whether job {job_id} was put back: {error.public}; ask again"
                    done.set_exception(Unavailable(text))
                raise

        await self._gate.retry_until_acknowledged(restore)

    async def _former(self, stored: StoredJob) -> JobGraph | None:
        """Return the graph that runs again if the job fails; None if there is none. Raises Unavailable."""
        if stored.upgrade is None:
            return None
        with suppress(Forbidden, Invalid):  # as when it fails: then there is no way back
            if await self._shared.savepoints.way_back(stored.graph, stored.upgrade.former) is not None:
                return stored.upgrade.former
        return None

    async def _run(self, job_id: JobId, done: asyncio.Future[None]) -> None:
        while True:
            try:
                recovery = self._recover()
                recovered = await recovery.recover_job(job_id)
                break
            except Unavailable as error:
                if not done.done():
                    done.set_exception(Unavailable(f"job {job_id} is put back and will run: {error.public}"))
                await asyncio.sleep(_RETRY_S)
        for _ in self._shared.listing.expire([job_id]):
            await asyncio.sleep(0)
        self._shared.ended.forget([job_id])
        if recovered is None:
            for line in recovery.ended:
                self._shared.listing.put(line)
            if not done.done():
                with suppress(NotFound):
                    done.set_exception(Conflict(f"job {job_id} is quarantined again: {await self._reason(job_id)}"))
            return
        log.info(log_events.JOB_RESTORED, job_id=job_id)
        job = DispatchedJob(job_id, self._shared, JobPhase.INITIALIZING, stored=recovered.stored)
        self._scope.begin(job, partial(job.run_recovered, recovered.progress, recovered.history))
        self._shared.listing.touch(job_id)

    async def drop(self, job_id: JobId, done: asyncio.Future[None]) -> None:
        """Give a job up and begin to clean up after it; the outcome is set on `done`."""
        try:
            await self._drop(job_id)
        except (NotFound, Conflict, Unavailable) as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    async def _drop(self, job_id: JobId) -> None:
        async with self._changing:
            try:
                await self._reason(job_id)
            except NotFound:
                if await self._ended(job_id) is None:
                    raise
                return  # it was dropped before
            if job_id in self._scope.jobs:
                raise still_cleaned_up(job_id)
            result = await self._result_to_clean_up(job_id)
            await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.discard_quarantined(result))
            log.info(log_events.JOB_DROPPED, job_id=job_id)
            job = DispatchedJob(job_id, self._shared, JobPhase.CLEANING, result=result)
            self._scope.begin(job, job.clean_up_dirty)

    async def drop_expired(self) -> None:
        """Drop the jobs whose retention is over, again and again."""
        while True:
            await self._gate.wait_until_active()
            with log_and_continue(log_events.JOB_EXPIRY_FAILED):
                before_ms = core.expired_before_ms(self._shared.retention_clock.now_ms(), self._shared.retention_s)
                for each in await self._stores.graphs.quarantined():
                    ended = await self._ended(each.job_id)
                    if ended is not None and ended.retained_from_ms < before_ms:
                        with suppress(NotFound, Conflict):
                            await self._drop(each.job_id)
            await asyncio.sleep(core.expiry_period_s(self._shared.retention_s))

    def _is_running(self, job_id: JobId) -> bool:
        job = self._scope.jobs.get(job_id)
        return job is not None and job.visible and not job.ended

    async def _reason(self, job_id: JobId) -> str:
        for each in await self._stores.graphs.quarantined():
            if each.job_id == job_id:
                return each.reason
        raise not_quarantined(job_id)

    async def _describe(self, job_id: JobId, reason: str) -> QuarantinedJob:
        ended, job = await self._ended(job_id), await self._graph(job_id)
        return QuarantinedJob(
            job_id=job_id,
            name=job.graph.name if job is not None else ended.graph.name if ended is not None else "",
            reason=reason,
            since_ms=-1 if ended is None else ended.end_ms,
            readable=job is not None,
            directories=core.recorded_scratch(await self._progress(job_id)),
            artifacts=() if job is None else tuple(artifact.name for artifact in job.graph.artifacts),
        )

    async def _result_to_clean_up(self, job_id: JobId) -> JobResult:
        """Return a result that names all that the job leaves behind, as far as that can be read."""
        ended, job = await self._ended(job_id), await self._graph(job_id)
        now_ms = self._shared.clock_ms()
        return JobResult(
            job_id=job_id,
            name=ended.graph.name if ended is not None else job_id,
            status=ended.status if ended is not None else JobStatus.FAILED,
            start_ms=_start_ms(ended, now_ms),
            end_ms=now_ms if ended is None else ended.end_ms,
            ended_at_ms=self._shared.retention_clock.now_ms() if ended is None else ended.retained_from_ms,
            scratch=core.recorded_scratch(await self._progress(job_id)),
            blobs=() if job is None else core.blobs_of_job(job),
        )

    async def _ended(self, job_id: JobId) -> JobSnapshot | None:
        with suppress(Corrupt):
            return await self._shared.ended.get(job_id)
        return None

    async def _graph(self, job_id: JobId) -> StoredJob | None:
        with suppress(Corrupt, NotFound):
            return await self._stores.graphs.read_quarantined(job_id)
        return None

    async def _progress(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        with continue_without_damaged(log_events.JOB_PROGRESS_UNREADABLE, job_id=job_id):
            return await self._stores.progress.read(job_id)
        return ()


def _start_ms(ended: JobSnapshot | None, now_ms: int) -> int:
    return now_ms if ended is None else ended.timestamps.get(JobStatus.INITIALIZING, ended.end_ms)

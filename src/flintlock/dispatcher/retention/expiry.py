"""What the Dispatcher removes by itself: ended jobs after their retention, with their logs, and blobs without a job."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.config.options import BLOB_RETENTION, JOB_RETENTION
from flintlock.dispatcher import core
from flintlock.dispatcher.job import DispatchedJob, JobServices
from flintlock.dispatcher.listing.listing_loader import ListingLoader
from flintlock.dispatcher.recovery import Recovery
from flintlock.dispatcher.retention.retention_clock import RECORD_PERIOD_S, record_retention_clock
from flintlock.dispatcher.services import DispatcherServices
from flintlock.dispatcher.writes import log_and_continue
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, NotFound
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.tasks import LoggedJobsQuery, RemoveLogs

log: FilteringBoundLogger = structlog.get_logger()

LOGS_AT_ONCE: Final = 1000
"""The jobs of one page of a sweep of their logs."""

#: Removed jobs that are taken out of the listing together: that goes through all of it, in small steps.
_FORGOTTEN_AT_ONCE: Final = 10_000


class Retention:
    """Removes what is retained no longer, during one term."""

    def __init__(
        self,
        services: DispatcherServices,
        shared: JobServices,
        jobs: Mapping[JobId, DispatchedJob],
        loader: ListingLoader,
    ) -> None:
        self._services: Final = services
        self._stores: Final = shared.term.stores
        self._gate: Final = shared.term.gate
        self._resource_manager: Final = shared.term.resource_manager
        self._listing: Final = shared.listing
        self._ended: Final = shared.ended
        self._clock: Final = shared.retention_clock
        self._jobs: Final = jobs
        self._loader: Final = loader
        self._retention_s: Final = services.configuration.get(JOB_RETENTION)

    async def prune_blobs(self, recovery: Recovery) -> None:
        """Remove the blobs of jobs that no longer exist. Those of dirty jobs remain until their cleanup."""
        needed = {job.stored.graph.job_id: core.blobs_of_job(job.stored) for job in recovery.jobs}
        needed |= {result.job_id: tuple(BlobKey(blob) for blob in result.blobs) for result in recovery.dirty}
        await self._gate.wait_until_active()
        with log_and_continue(log_events.BLOB_PRUNING_FAILED):  # the next leader prunes
            needed |= await self._blobs_of_quarantined()
            await self._services.blobs.retain_only(needed)

    async def _blobs_of_quarantined(self) -> dict[JobId, tuple[BlobKey, ...]]:
        """Return what quarantined jobs need when they are put back. One whose graph cannot be read needs nothing."""
        needed: dict[JobId, tuple[BlobKey, ...]] = {}
        for each in await self._stores.graphs.quarantined():
            with suppress(Corrupt, NotFound):
                job = await self._stores.graphs.read_quarantined(each.job_id)
                needed[each.job_id] = core.blobs_of_job(job)
        return needed

    async def run_clock(self) -> None:
        """Record how far the retention clock has come, again and again."""
        while True:
            await self._gate.wait_until_active()
            await record_retention_clock(self._clock, self._stores.retention_clock)
            await asyncio.sleep(min(RECORD_PERIOD_S, core.expiry_period_s(self._retention_s)))

    async def expire_jobs(self) -> None:
        """Remove ended jobs when their retention is over, by the retention clock."""
        unconfirmed = False  # the last try raised: it may have removed some and not returned which
        await self._loader.loaded()  # a slice that was read before a removal must not be listed after it
        while True:
            await self._gate.wait_until_active()
            before_ms = core.expired_before_ms(self._clock.now_ms(), self._retention_s)
            unconfirmed, compare = True, unconfirmed
            with log_and_continue(log_events.JOB_EXPIRY_FAILED):
                if compare:
                    await self._forget(await self._listed_but_not_stored())
                await self._expire_before(before_ms)
                unconfirmed = False
            await asyncio.sleep(core.expiry_period_s(self._retention_s))

    async def _expire_before(self, before_ms: int) -> None:
        """Remove the jobs whose retention is over: from the store part by part, from the listing many at once."""
        gone: list[JobId] = []
        try:
            while some := await self._stores.ended.expire(before_ms):
                gone += some
                if len(gone) >= _FORGOTTEN_AT_ONCE:
                    await self._forget(gone)
                    gone = []
        finally:
            await self._forget(gone)

    async def _listed_but_not_stored(self) -> list[JobId]:
        """Return the jobs that are listed as ended, and no longer stored."""
        missing: list[JobId] = []
        for listed in self._listing.ended():
            known = await self._stores.results.known(listed)
            missing += [job_id for job_id in listed if job_id not in known and not await self._is_archived(job_id)]
        return missing

    async def _is_archived(self, job_id: JobId) -> bool:
        """Return whether an ended job is archived: a quarantined one has no result."""
        try:
            return await self._stores.ended.get(job_id) is not None
        except Corrupt:
            return True

    async def expire_blobs(self) -> None:
        """Remove uploads whose submission never arrived, or was refused."""
        retention_s = self._services.configuration.get(BLOB_RETENTION)
        while True:
            await asyncio.sleep(core.expiry_period_s(retention_s))
            await self._gate.wait_until_active()
            with log_and_continue(log_events.BLOB_PRUNING_FAILED):
                gone = await self._services.blobs.expire_unreferenced(retention_s, self._retention_s)
                if gone:
                    log.info(log_events.BLOBS_EXPIRED, count=len(gone))

    async def remove_old_logs(self) -> None:
        """Have the output of forgotten jobs removed, wherever it is: also where no TaskManager was at their expiry."""
        while True:
            await asyncio.sleep(core.expiry_period_s(self._retention_s))
            await self._gate.wait_until_active()
            with log_and_continue(log_events.LOG_REMOVAL_FAILED):
                removed = await self._remove_old_logs()
                if removed:
                    log.info(log_events.LOGS_REMOVED, jobs=removed)

    async def _remove_old_logs(self) -> int:
        """Go through the jobs with output page by page, however many there are; return how many were removed."""
        removed, after = 0, ""
        while page := (
            await self._resource_manager.logged_jobs(LoggedJobsQuery(after=after, limit=LOGS_AT_ONCE))
        ).job_ids:
            await self._gate.wait_until_active()
            old = await self._forgotten(page)
            if old:
                await self._resource_manager.remove_logs(RemoveLogs(job_ids=old))
            removed, after = removed + len(old), page[-1]
        return removed

    async def _forgotten(self, job_ids: Collection[JobId]) -> tuple[JobId, ...]:
        """Return those of some jobs that are neither live nor stored."""
        ended = [job_id for job_id in job_ids if job_id not in self._jobs]
        known = await self._stores.results.known(ended)
        gone = [job_id for job_id in ended if job_id not in known and not await self._is_archived(job_id)]
        return tuple(job_id for job_id in gone if job_id not in self._jobs)  # an id may have been submitted meanwhile

    async def _forget(self, expired: Collection[JobId]) -> None:
        """Drop what is known of removed jobs, a part of the listing in each step of the loop."""
        gone = [job_id for job_id in expired if (job := self._jobs.get(job_id)) is None or job.ended]
        for _ in self._listing.expire(gone):
            await asyncio.sleep(0)
        self._ended.forget(gone)
        if gone:
            log.info(log_events.JOBS_EXPIRED, count=len(gone))

"""What the Dispatcher removes by itself: ended jobs after their retention, with their logs, and blobs without a job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.config.options import BLOB_RETENTION, JOB_RETENTION
from flintlock.dispatcher import core
from flintlock.dispatcher.job import DispatchedJob, JobServices
from flintlock.dispatcher.recovery import Recovery
from flintlock.dispatcher.retention_clock import RECORD_PERIOD_S, record_retention_clock
from flintlock.dispatcher.services import DispatcherServices
from flintlock.dispatcher.writes import log_and_continue
from flintlock.model import log_events
from flintlock.model.errors import Corrupt
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.tasks import RemoveLogs

log: FilteringBoundLogger = structlog.get_logger()

_LOGS_AT_ONCE: Final = 1000  # jobs in one message


class Retention:
    """Removes what is retained no longer, during one term."""

    def __init__(self, services: DispatcherServices, shared: JobServices, jobs: Mapping[JobId, DispatchedJob]) -> None:
        self._services: Final = services
        self._stores: Final = shared.term.stores
        self._gate: Final = shared.term.gate
        self._resource_manager: Final = shared.term.resource_manager
        self._listing: Final = shared.listing
        self._ended: Final = shared.ended
        self._clock: Final = shared.retention_clock
        self._jobs: Final = jobs
        self._retention_s: Final = services.configuration.get(JOB_RETENTION)

    async def prune_blobs(self, recovery: Recovery) -> None:
        """Remove the blobs of jobs that no longer exist. Those of dirty jobs remain until their cleanup."""
        needed = {job.stored.graph.job_id: core.blobs_of(job.stored.graph) for job in recovery.jobs}
        needed |= {result.job_id: tuple(BlobKey(blob) for blob in result.blobs) for result in recovery.dirty}
        await self._gate.wait_until_active()
        with log_and_continue(log_events.BLOB_PRUNING_FAILED):
            await self._services.blobs.retain_only(needed)

    async def run_clock(self) -> None:
        """Record how far the retention clock has come, again and again."""
        while True:
            await self._gate.wait_until_active()
            await record_retention_clock(self._clock, self._stores.retention_clock)
            await asyncio.sleep(min(RECORD_PERIOD_S, core.expiry_period_s(self._retention_s)))

    async def expire_jobs(self) -> None:
        """Remove ended jobs when their retention is over, by the retention clock."""
        unconfirmed = False  # the last try raised: it may have removed some and not returned which
        while True:
            await self._gate.wait_until_active()
            before_ms = core.expired_before_ms(self._clock.now_ms(), self._retention_s)
            unconfirmed, compare = True, unconfirmed
            with log_and_continue(log_events.JOB_EXPIRY_FAILED):
                gone = await self._stores.ended.expire(before_ms)
                self._forget((*gone, *await self._listed_but_not_stored()) if compare else gone)
                unconfirmed = False
            await asyncio.sleep(core.expiry_period_s(self._retention_s))

    async def _listed_but_not_stored(self) -> list[JobId]:
        """Return the jobs that are listed as ended, and no longer stored."""
        listed = self._listing.ended()  # before reading: what ends meanwhile is not among them
        stored = {line.job_id for line in await self._stores.ended.summaries()}
        stored.update(await self._stores.results.ids())  # a job whose archive could not be written has a result only
        return [job_id for job_id in listed if job_id not in stored]

    async def expire_blobs(self) -> None:
        """Remove uploads whose submission never arrived, or was refused."""
        retention_s = self._services.configuration.get(BLOB_RETENTION)
        while True:
            await asyncio.sleep(core.expiry_period_s(retention_s))
            await self._gate.wait_until_active()
            with log_and_continue(log_events.BLOB_PRUNING_FAILED):
                gone = await self._services.blobs.expire_unreferenced(retention_s)
                if gone:
                    log.info(log_events.BLOBS_EXPIRED, count=len(gone))

    async def remove_old_logs(self) -> None:
        """Have the output of forgotten jobs removed, wherever it is: also where no TaskManager was at their expiry."""
        while True:
            await asyncio.sleep(core.expiry_period_s(self._retention_s))
            await self._gate.wait_until_active()
            with log_and_continue(log_events.LOG_REMOVAL_FAILED):
                logged = await self._resource_manager.logged_jobs()
                old = [job_id for job_id in logged.job_ids if await self._is_forgotten(job_id)]
                for start in range(0, len(old), _LOGS_AT_ONCE):
                    await self._resource_manager.remove_logs(
                        RemoveLogs(job_ids=tuple(old[start : start + _LOGS_AT_ONCE]))
                    )
                if old:
                    log.info(log_events.LOGS_REMOVED, jobs=len(old))

    async def _is_forgotten(self, job_id: JobId) -> bool:
        if job_id in self._jobs or self._listing.get(job_id) is not None:
            return False
        try:  # what the listing does not have is still a job while its result is stored
            return await self._stores.results.get(job_id) is None
        except Corrupt:
            return False

    def _forget(self, expired: tuple[JobId, ...]) -> None:
        gone = [job_id for job_id in expired if (job := self._jobs.get(job_id)) is None or job.ended]
        for job_id in gone:
            self._listing.remove(job_id)
        self._ended.forget(gone)
        if gone:
            log.info(log_events.JOBS_EXPIRED, count=len(gone))

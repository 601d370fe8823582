"""Ended jobs as clients query them: read from the store, with the latest few cached in memory.

Memory is bounded: whatever the number of ended jobs, only `RECENT` snapshots are cached (clients that waited for an
end query the details next), and `UNARCHIVED` outcomes that the store did not accept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.snapshots import recorded_snapshot
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.errors import Corrupt
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobOutcome, JobSnapshot
from flintlock.model.tasks import ResultRows

log: FilteringBoundLogger = structlog.get_logger()

RECENT: Final = 32
UNARCHIVED: Final = 16


class EndedJobs:
    """Reads ended jobs, and caches some."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._recent: dict[JobId, JobSnapshot] = {}  # least recently queried first; at most RECENT
        self._unarchived: dict[JobId, JobOutcome] = {}  # whose archiving failed, oldest first; at most UNARCHIVED

    def remember(self, snapshot: JobSnapshot) -> None:
        """Cache the snapshot of a job that just ended or was just queried."""
        job_id = snapshot.graph.job_id
        self._recent.pop(job_id, None)
        self._recent[job_id] = snapshot
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def keep_unarchived(self, outcome: JobOutcome) -> None:
        """Keep in memory an outcome that could not be archived, until it is, or newer ones displace it."""
        self._unarchived[outcome.snapshot.graph.job_id] = outcome
        if len(self._unarchived) > UNARCHIVED:
            del self._unarchived[next(iter(self._unarchived))]

    def unarchived(self, job_id: JobId) -> JobOutcome | None:
        """Return the outcome of a job that could not be archived, if it is still in memory."""
        return self._unarchived.get(job_id)

    def archived(self, snapshot: JobSnapshot) -> None:
        """A job whose archiving had failed is archived now."""
        self._unarchived.pop(snapshot.graph.job_id, None)
        self.remember(snapshot)

    def forget(self, job_ids: Iterable[JobId]) -> None:
        """Drop jobs that expired."""
        for job_id in job_ids:
            self._recent.pop(job_id, None)
            self._unarchived.pop(job_id, None)

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job: as archived, else what its result contains; None if there is neither."""
        unarchived = self._unarchived.get(job_id)
        if unarchived is not None:
            return unarchived.snapshot
        snapshot = self._recent.get(job_id)
        if snapshot is None:
            read = await self._archived(job_id)
            # It may have ended meanwhile: then the archive was read before that, and the result after it.
            snapshot = self._recent.get(job_id, read)
        if snapshot is not None:
            self.remember(snapshot)
        return snapshot

    async def rows(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return a collected result of an ended job; None if it has none of that name."""
        unarchived = self._unarchived.get(job_id)
        if unarchived is not None:
            return next((rows for rows in unarchived.results if rows.name == name), None)
        return await self._stores.ended.result(job_id, name)

    async def _archived(self, job_id: JobId) -> JobSnapshot | None:
        try:
            snapshot = await self._stores.ended.get(job_id)
        except Corrupt as error:
            log.warning(log_events.JOB_ARCHIVE_UNREADABLE, job_id=job_id, reason=error.public)
            snapshot = None
        if snapshot is None:
            result = await self._stores.results.get(job_id)
            snapshot = None if result is None else recorded_snapshot(result)
        return snapshot

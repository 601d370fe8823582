"""Ended jobs as clients ask for them: read from the store, the latest few kept in memory.

Memory is bounded: whatever the number of ended jobs, only `RECENT` snapshots are held (clients that waited for an end
ask for the details next), and `UNARCHIVED` outcomes that the store refused to take.
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
    """Reads ended jobs."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._recent: dict[JobId, JobSnapshot] = {}  # least recently asked for first; at most RECENT
        self._unarchived: dict[JobId, JobOutcome] = {}  # whose archiving failed, oldest first; at most UNARCHIVED

    def remember(self, snapshot: JobSnapshot) -> None:
        """Hold the snapshot of a job that just ended, or was just asked for."""
        job_id = snapshot.graph.job_id
        self._recent.pop(job_id, None)
        self._recent[job_id] = snapshot
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def keep_unarchived(self, outcome: JobOutcome) -> None:
        """Hold what could not be archived, for as long as there is room and the term lasts."""
        self._unarchived[outcome.snapshot.graph.job_id] = outcome
        if len(self._unarchived) > UNARCHIVED:
            del self._unarchived[next(iter(self._unarchived))]

    def forget(self, job_ids: Iterable[JobId]) -> None:
        """Drop jobs that expired."""
        for job_id in job_ids:
            self._recent.pop(job_id, None)
            self._unarchived.pop(job_id, None)

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job: as archived, else as much as its result tells."""
        unarchived = self._unarchived.get(job_id)
        if unarchived is not None:
            return unarchived.snapshot
        snapshot = self._recent.get(job_id)
        if snapshot is None:
            snapshot = await self._archived(job_id)
        if snapshot is not None:
            self.remember(snapshot)
        return snapshot

    async def rows(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return rows that an ended job kept."""
        unarchived = self._unarchived.get(job_id)
        if unarchived is not None:
            return next((rows for rows in unarchived.results if rows.name == name), None)
        return await self._stores.ended.result(job_id, name)

    async def _archived(self, job_id: JobId) -> JobSnapshot | None:
        try:
            snapshot = await self._stores.ended.get(job_id)
        except Corrupt as error:
            log.warning(log_events.JOB_ARCHIVE_UNREADABLE, job_id=job_id, error=error.public)
            snapshot = None
        if snapshot is None:
            result = await self._stores.results.get(job_id)
            snapshot = None if result is None else recorded_snapshot(result)
        return snapshot

"""Lists the ended jobs of earlier terms, slice by slice, while the leader leads already.

A leader needs none of them to accept and run jobs, so it does not wait for them. They come with the latest ends first,
and a page of the listing waits only until no job that belongs on it can be missing: the first page is complete almost
at once. A store that does not answer is retried; the slices that are there already are then listed again, which
changes nothing.

Rejected: reading all of them in recovery. With half a million ended jobs no leader was ready before a standby took it
for dead.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import EndedJobStore
from flintlock.model import log_events
from flintlock.model.errors import Unavailable

log: FilteringBoundLogger = structlog.get_logger()

_RETRY_S: Final = 1.0


class ListingLoader:
    """Loads the listing of one term. `run` once; `progressed` waits for it."""

    def __init__(self, listing: JobListing, store: EndedJobStore, gate: LeaderGate) -> None:
        self._listing: Final = listing
        self._store: Final = store
        self._gate: Final = gate
        self._progress = asyncio.Event()  # replaced whenever it is set
        self._loaded: Final = asyncio.Event()

    async def run(self) -> None:
        """Load all ended jobs. Raises what is fatal to the term: Fenced, a damaged store."""
        begun_s = asyncio.get_running_loop().time()
        while True:
            await self._gate.wait_until_active()
            try:
                count = await self._load()
                break
            except Unavailable as error:
                log.warning(log_events.ENDED_JOBS_NOT_LISTED, reason=error.public)
                await asyncio.sleep(_RETRY_S)
        elapsed_s = asyncio.get_running_loop().time() - begun_s
        log.info(log_events.ENDED_JOBS_LISTED, jobs=count, seconds=round(elapsed_s, 3))

    async def progressed(self) -> None:
        """Wait until more jobs are listed. Returns at once when all are."""
        if not self._loaded.is_set():
            await self._progress.wait()

    async def loaded(self) -> None:
        """Wait until all ended jobs are listed."""
        await self._loaded.wait()

    def stop(self) -> None:
        """Wake all who wait: the term is over."""
        self._loaded.set()
        self._notify()

    async def _load(self) -> int:
        count = 0
        async for lines in self._store.summaries():
            count += len(lines)
            if lines:
                self._listing.load(lines, lines[-1].end_ms)
                self._notify()
            await asyncio.sleep(0)
        self._listing.load((), None)
        self._loaded.set()
        self._notify()
        return count

    def _notify(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

"""A user who follows the listing of jobs during faults: page by page, and by its changes.

Promised is: a job is listed from its acknowledgement on, once, in its place; an end that a client was shown is in the
listing too, and stays as it is; and a client that follows the changes knows what the listing has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from flintlock.api.job_lines import id_and_status, summary_of
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import FlintlockError
from flintlock.model.jobs import JobLine, JobPosition, JobsQuery, ListingChangesQuery
from flintlock.model.states import JobStatus
from flintlock.testing.simulation.workload import ObservedJob

#: In how many runs a user follows the listing.
LISTING_RUNS: Final = 0.25
_UNKNOWN_VERSION: Final = -1


class ListingUser:
    """Reads the listing again and again, until cancelled; `check` compares it with how all jobs have ended."""

    def __init__(
        self,
        random: Random,
        jobs: list[ObservedJob],
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        is_faulty: Callable[[], bool],
        forgets: Callable[[ObservedJob], bool],
    ) -> None:
        self.violations: Final[list[str]] = []
        self._random: Final = random
        self._jobs: Final = jobs
        self._gateway: Final = gateway
        self._try_another: Final = try_another
        self._is_faulty: Final = is_faulty
        self._forgets: Final = forgets  # whether a job's retention may be over
        self._listed: Final[dict[str, JobStatus]] = {}  # as they were listed last
        self._followed: dict[str, JobStatus] = {}  # what the changes say
        self._version = _UNKNOWN_VERSION

    async def run(self) -> None:
        """Read the listing until cancelled: often while there are faults."""
        while True:
            await asyncio.sleep(self._random.uniform(0.2, 4.0 if self._is_faulty() else 30.0))
            try:
                await (self._list() if self._random.random() < 0.5 else self._follow())
            except FlintlockError:
                self._try_another()

    async def check(self) -> None:
        """Compare what is listed in the end with what was followed, with the counts, and with the jobs themselves."""
        while True:
            try:
                listed = await self._list()
                await self._follow()
                counts = (await self._gateway().job_counts()).by_status
                break
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(0.5)
        statuses = {str(job_id): status for job_id, status in map(id_and_status, listed)}
        if {job_id: self._followed.get(job_id) for job_id in statuses} != statuses:
            self.violations.append(f"listed is {statuses}, but the changes of the listing say {self._followed}")
        counted = {status: count for status, count in counts.items() if count}
        if counted != {status: list(statuses.values()).count(status) for status in statuses.values()}:
            self.violations.append(f"listed is {statuses}, but counted are {counted}")

    async def _list(self) -> list[JobLine]:
        """Read the whole listing, in pages, and check it against what clients knew before."""
        known = {str(job.acknowledged): job for job in self._jobs if job.acknowledged is not None}
        ended = {job_id for job_id, job in known.items() if job.ended and not job.restored}
        limit, after, lines = self._random.choice([1, 2, 100]), None, list[JobLine]()
        while True:
            page = await self._gateway().list_jobs(JobsQuery(limit=limit, after=after))
            lines += page.lines
            after = page.next
            if after is None:
                break
        # A job that is restored from the quarantine may move, where its start was not known, between two pages.
        self._check_order([line for line in lines if not _is_restored(known.get(str(id_and_status(line)[0])))])
        statuses = {str(job_id): status for job_id, status in map(id_and_status, lines)}
        for job_id, job in known.items():
            if job_id not in statuses and not self._forgets(job):
                self.violations.append(f"{job.key}: acknowledged as {job_id}, but not listed")
        for job_id, status in statuses.items():
            restored = _is_restored(known.get(job_id))
            if job_id in ended and not status.globally_terminal and not restored:
                self.violations.append(f"job {job_id} has ended, but is listed as {status}")
            before = self._listed.get(job_id, status)
            if before is not status and before.globally_terminal and not restored:
                self.violations.append(f"job {job_id} was listed as {before}, and now as {status}")
            self._listed[job_id] = status
        return lines

    def _check_order(self, lines: list[JobLine]) -> None:
        places = [JobPosition(start_ms=job.start_ms, job_id=job.job_id) for job in map(summary_of, lines)]
        ids = [place.job_id for place in places]
        if len(set(ids)) < len(ids):
            self.violations.append(f"a job is listed twice: {ids}")
        if places != sorted(places, key=lambda place: (-place.start_ms, place.job_id)):
            self.violations.append(f"the listing is not in order: {places}")

    async def _follow(self) -> None:
        """Apply the changes since the latest version; where they are not known, read the listing again."""
        changes = await self._gateway().listing_changes(ListingChangesQuery(since=self._version))
        if not changes.complete:
            listed = await self._list()  # after the version was read: what changes meanwhile is a change since then
            self._followed = dict[str, JobStatus]()
            changes_lines = listed
        else:
            changes_lines = list(changes.lines)
        self._followed |= {str(job_id): status for job_id, status in map(id_and_status, changes_lines)}
        self._version = changes.version


def _is_restored(job: ObservedJob | None) -> bool:
    """Return whether an operator has put a job back, perhaps since a listing began."""
    return job is not None and job.restored

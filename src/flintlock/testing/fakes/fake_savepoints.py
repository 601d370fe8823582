"""Savepoints that a test makes, delays or refuses."""

from __future__ import annotations

import asyncio

from flintlock.config.options import RESTORE_PATH
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobgraph import JobGraph


class FakeSavepoints:
    """Savepoints in memory, which outlast the Dispatchers that ask for them."""

    def __init__(self) -> None:
        self.made: list[tuple[TriggerId, str]] = []  # each one once, in the order in which they were completed
        self.asked = 0
        self.fail_with: Exception | None = None
        self.abandoned: list[JobId] = []
        self.restored: list[JobId] = []  # each job once, in the order in which they were restored
        self.disposed: list[str] = []
        self.identities: list[str] = []  # of what was disposed of
        self.undisposable: Exception | None = None  # raised for a savepoint that is to be removed
        self.progressed = False  # whether a job that was restored has committed a batch
        self.unreadable: Exception | None = None  # raised instead of whether a job may go back
        self.unprepared: Exception | None = None  # raised for the directory of a job that is to be stopped
        self.refuse_with: FlintlockError | None = None  # raised for a job that is to be restored
        self.unmade: FlintlockError | None = None  # raised for a job that is to be restored from what was never made
        self.unreadable_checkpoints: Exception | None = None  # raised instead of whether a job is restored
        self.answers = asyncio.Event()  # while it is not set, nothing that reads or writes files returns
        self.answers.set()
        self.proceed = asyncio.Event()  # a savepoint is complete when it is set
        self.proceed.set()

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:
        """Make a savepoint, unless it is there."""
        self.asked += 1
        await self.answers.wait()
        location = f"{directory or '/savepoints'}/{job.job_id[:6]}-{trigger_id}"
        await self.proceed.wait()
        if self.fail_with is not None:
            raise self.fail_with
        if (trigger_id, location) not in self.made:
            self.made.append((trigger_id, location))
        return location

    async def check_disposal(self, path: str) -> str:
        """Accept the path, or refuse it."""
        await self.answers.wait()
        if self.undisposable is not None:
            raise self.undisposable
        return f"identity of {path}"

    async def dispose(self, path: str, identity: str) -> None:
        """Remove a savepoint."""
        self.asked += 1
        await self.proceed.wait()
        if self.fail_with is not None:
            raise self.fail_with
        self.disposed.append(path)
        self.identities.append(identity)

    async def prepare(self, directory: str) -> None:
        """Accept the directory, or refuse it."""
        if self.unprepared is not None:
            raise self.unprepared

    async def check_restore(self, job: JobGraph) -> None:
        """Accept or refuse a job."""
        await self.answers.wait()
        if self.refuse_with is not None:
            raise self.refuse_with

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:
        """Return where `save` makes the savepoint."""
        return f"/savepoints/{job.job_id[:6]}-{trigger_id}"

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:
        """Accept or refuse a job, once a savepoint of the other one is complete."""
        await self.proceed.wait()
        if self.refuse_with is not None:
            raise self.refuse_with

    async def way_back(self, job: JobGraph, former: JobGraph) -> str | None:
        """Return the savepoint of a job, if it is there, and no batch was committed."""
        await self.answers.wait()
        if self.unreadable is not None:
            raise self.unreadable
        path = job.config.get(RESTORE_PATH.key)
        return path if not self.progressed and any(location == path for _, location in self.made) else None

    async def has_gone_on(self, job: JobGraph) -> bool:
        """Return whether a batch was committed."""
        await self.answers.wait()
        if self.unreadable is not None:
            raise self.unreadable
        return self.progressed

    async def is_restored(self, job: JobGraph) -> bool:
        """Return whether a job names no savepoint, or was restored, as far as its checkpoints can be read."""
        await self.answers.wait()
        if self.unreadable_checkpoints is not None:
            raise self.unreadable_checkpoints
        return not job.config.get(RESTORE_PATH.key) or job.job_id in self.restored

    async def restore(self, job: JobGraph) -> None:
        """Restore a job."""
        await self.answers.wait()
        await self.proceed.wait()
        if self.fail_with is not None:
            raise self.fail_with
        if self.unmade is not None and job.config.get(RESTORE_PATH.key) not in {place for _, place in self.made}:
            raise self.unmade
        self.restored.append(job.job_id)

    async def abandon_restore(self, job: JobGraph) -> None:
        """Note that what was restored of a job is removed."""
        self.abandoned.append(job.job_id)

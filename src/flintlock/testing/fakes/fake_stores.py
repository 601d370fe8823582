"""A JobProgressStore whose writes can be delayed or made to fail."""

from __future__ import annotations

import asyncio

from flintlock.model.ids import JobId, RegionId
from flintlock.model.jobs import JobHistory
from flintlock.model.tasks import RegionRecord


class FakeProgressStore:
    """A JobProgressStore. While `gate` is closed, writes neither happen nor return."""

    def __init__(self) -> None:
        self.records: dict[tuple[JobId, RegionId], RegionRecord] = {}
        self.history: list[RegionRecord] = []  # every write of a record, in order
        self.histories: list[JobHistory] = []  # every write of a job's history, in order
        self.gate = asyncio.Event()
        self.gate.set()
        self.history_gate = asyncio.Event()  # the same, for histories only
        self.history_gate.set()
        self.fail_with: Exception | None = None

    async def record(self, record: RegionRecord) -> None:
        """Store it."""
        await self.gate.wait()
        if self.fail_with is not None:
            raise self.fail_with
        self.records[record.job_id, record.region] = record
        self.history.append(record)

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return the records of a job."""
        keys = sorted(key for key in self.records if key[0] == job_id)
        return tuple(self.records[key] for key in keys)

    async def record_history(self, history: JobHistory) -> None:
        """Store it."""
        await self.gate.wait()
        await self.history_gate.wait()
        if self.fail_with is not None:
            raise self.fail_with
        self.histories.append(history)

    async def read_history(self, job_id: JobId) -> JobHistory | None:
        """Return the history of a job that was stored last."""
        return next((history for history in reversed(self.histories) if history.job_id == job_id), None)

    async def ids(self) -> tuple[JobId, ...]:
        """Return the jobs that have records."""
        return tuple({key[0] for key in self.records})

    async def remove(self, job_id: JobId) -> None:
        """Remove the records of a job."""
        for key in [key for key in self.records if key[0] == job_id]:
            del self.records[key]

"""Writes what a JobMaster records of its job: the records of each region in order, and the history before them.

A history that a newer one replaces before it is written is never written. A region's record waits for the history: an
attempt must not be recorded before the failure that led to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import JobProgressStore
from flintlock.jobmaster.events import Record, RecordHistory
from flintlock.model.ids import RegionId
from flintlock.model.jobs import JobHistory
from flintlock.model.tasks import RegionRecord

Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None]]
"""Starts a coroutine function as a task of the JobMaster's scope, under this name."""


class ProgressRecorder:
    """Writes the records of one job."""

    __slots__ = ("_gate", "_history", "_regions", "_store", "_unrecorded")

    def __init__(self, store: JobProgressStore, gate: LeaderGate) -> None:
        self._store = store
        self._gate = gate
        self._regions: dict[RegionId, asyncio.Task[None]] = {}  # the latest unfinished record of each region
        self._unrecorded: JobHistory | None = None  # the latest; a newer one replaces it
        self._history: asyncio.Task[None] | None = None  # records `_unrecorded`

    @property
    def unfinished(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks whose records are not durable."""
        return (*self._regions.values(), *(() if self._history is None else (self._history,)))

    def begin(self, effect: Record | RecordHistory, spawn: Spawn, on_recorded: Callable[[RegionRecord], None]) -> None:
        """Begin to write a record; `on_recorded` is called with the record of a region once it is durable."""
        match effect:
            case Record(record):
                work = partial(self._record, record, self._regions.get(record.region), on_recorded)
                self._regions[record.region] = spawn(work, f"record-{record.region}-{record.phase}")
            case RecordHistory(history):
                self._unrecorded = history
                if self._history is None:
                    self._history = spawn(self._record_history, "record-history")

    async def wait_until_durable(self, region: RegionId) -> bool:
        """Wait for the records of a region, and for the history; return False if their writing was cut short."""
        while (task := self._regions.get(region)) is not None and not task.done():
            await asyncio.wait((task,))
        while (history := self._history) is not None and not history.done():
            await asyncio.wait((history,))
        return task is None and history is None  # a task that was cancelled or has failed stays

    async def _record(
        self,
        record: RegionRecord,
        before: asyncio.Task[None] | None,
        on_recorded: Callable[[RegionRecord], None],
    ) -> None:
        await _ended(before)
        await _ended(self._history)
        await self._gate.retry_until_acknowledged(lambda: self._store.record(record))
        if self._regions.get(record.region) is asyncio.current_task():
            del self._regions[record.region]
        on_recorded(record)

    async def _record_history(self) -> None:
        while (history := self._unrecorded) is not None:
            self._unrecorded = None
            await self._gate.retry_until_acknowledged(lambda history=history: self._store.record_history(history))
        self._history = None


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Return once the task has ended, however it ended."""
    if task is not None:
        await asyncio.wait((task,))

"""Which TaskManager serves a request: an index of TaskManagers by how many slots they have free.

Requests are packed unless configured otherwise: of the TaskManagers that can serve a request, the one with the fewest
free slots does. Large requests need their slots on *one* TaskManager, and small ones that are spread over all of them
leave no room for those. Spread (`taskmanager.load-balance.mode: SLOTS`), the one with the most free slots serves, so
that tasks share engines only when they must. A request that names no number gets the most that it may have: its limit
if a TaskManager has as many free, else all slots of the largest idle TaskManager.

Finding one takes a time that grows with the slots of the largest TaskManager, not with the number of TaskManagers;
only where requests ask for more than their share of cores or memory, TaskManagers with free slots but without free
memory are skipped one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import SlotRequest
from flintlock.resourcemanager.capacity import Capacity, enough, need, slots_for


class _Entry(Struct, frozen=True):
    free: int
    left: Resources
    whole: Capacity


class FreeSlots:
    """TaskManagers that may be given work, by free slots. Among equals, the first to reach that number is chosen."""

    def __init__(self, *, spread: bool = False) -> None:
        self._spread = spread
        self._entries: dict[TaskManagerId, _Entry] = {}
        self._by_free: dict[int, dict[TaskManagerId, None]] = {}  # with at least one free slot
        self._idle: dict[int, dict[TaskManagerId, None]] = {}  # with all slots free, by their number

    def put(self, task_manager: TaskManagerId, *, free: int, left: Resources, whole: Capacity) -> None:
        """Record what of a TaskManager is free now."""
        self.remove(task_manager)
        self._entries[task_manager] = _Entry(free, left, whole)
        if free:
            self._by_free.setdefault(free, {})[task_manager] = None
        if free == whole.slots:
            self._idle.setdefault(free, {})[task_manager] = None

    def remove(self, task_manager: TaskManagerId) -> None:
        """Exclude a TaskManager from allocation. Harmless if it is not included."""
        entry = self._entries.pop(task_manager, None)
        if entry is None:
            return
        _discard(self._by_free, entry.free, task_manager)
        if entry.free == entry.whole.slots:
            _discard(self._idle, entry.free, task_manager)

    def find(self, request: SlotRequest) -> tuple[TaskManagerId, int] | None:
        """Return the TaskManager that serves the request best now, and with how many slots; None if none can."""
        if request.slots is not None:
            return self._with_free(request, request.slots)
        with_limit = None if request.at_most is None else self._with_free(request, request.at_most)
        return self._idle_one(request) if with_limit is None else with_limit

    def take(self, request: SlotRequest) -> TaskManagerId | None:
        """Find a TaskManager and subtract what the request takes of it; used to simulate allocation on a copy."""
        found = self.find(request)
        if found is None:
            return None
        task_manager, slots = found
        entry = self._entries[task_manager]
        taken = need(request.resources, slots, entry.whole)
        left = Resources(cpu=entry.left.cpu - taken.cpu, memory=entry.left.memory - taken.memory)
        self.put(task_manager, free=entry.free - slots, left=left, whole=entry.whole)
        return task_manager

    def copy(self) -> FreeSlots:
        """Return an independent index with the same content."""
        other = FreeSlots(spread=self._spread)
        other._entries = dict(self._entries)
        other._by_free = {free: dict(names) for free, names in self._by_free.items()}
        other._idle = {free: dict(names) for free, names in self._idle.items()}
        return other

    def _with_free(self, request: SlotRequest, slots: int) -> tuple[TaskManagerId, int] | None:
        enough_slots = sorted((free for free in self._by_free if free >= slots), reverse=self._spread)
        return next(
            (
                (name, slots)
                for name in self._in(self._by_free, enough_slots)
                if self._has_resources(name, request, slots)
            ),
            None,
        )

    def _idle_one(self, request: SlotRequest) -> tuple[TaskManagerId, int] | None:
        for name in self._in(self._idle, sorted(self._idle, reverse=True)):
            slots = slots_for(request, self._entries[name].whole.slots)
            if slots is not None and self._has_resources(name, request, slots):
                return name, slots
        return None

    def _has_resources(self, name: TaskManagerId, request: SlotRequest, slots: int) -> bool:
        entry = self._entries[name]
        return enough(entry.left, need(request.resources, slots, entry.whole), entry.whole)

    @staticmethod
    def _in(index: dict[int, dict[TaskManagerId, None]], keys: Iterable[int]) -> Iterable[TaskManagerId]:
        return (name for key in keys for name in index[key])


def _discard(index: dict[int, dict[TaskManagerId, None]], key: int, task_manager: TaskManagerId) -> None:
    bucket = index.get(key)
    if bucket is not None and task_manager in bucket:
        del bucket[task_manager]
        if not bucket:
            del index[key]

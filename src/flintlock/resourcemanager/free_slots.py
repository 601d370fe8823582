"""Which TaskManager serves a request: an index of TaskManagers by how many slots they have free.

Requests are packed: of the TaskManagers that can serve a request, the one with the fewest free slots does. Large
requests need their slots on *one* TaskManager, and whoever spreads small ones over all of them leaves no room for
those. A request that names no number gets the most that it may have: its limit where somebody has as many free, else
all slots of the largest TaskManager that is wholly idle.

Finding one takes a time that grows with the slots of the largest TaskManager, not with the number of TaskManagers.
"""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.ids import TaskManagerId
from flintlock.model.slots import SlotRequest


class _Entry(Struct, frozen=True):
    free: int
    total: int


class FreeSlots:
    """TaskManagers that may be given work, by free slots. Among equals, the one that came to that number first."""

    def __init__(self) -> None:
        self._entries: dict[TaskManagerId, _Entry] = {}
        self._by_free: dict[int, dict[TaskManagerId, None]] = {}  # with at least one free slot
        self._idle: dict[int, dict[TaskManagerId, None]] = {}  # with all slots free, by their number

    def put(self, task_manager: TaskManagerId, *, free: int, total: int) -> None:
        """Note how many of a TaskManager's slots are free now."""
        self.remove(task_manager)
        self._entries[task_manager] = _Entry(free, total)
        if free:
            self._by_free.setdefault(free, {})[task_manager] = None
        if free == total:
            self._idle.setdefault(total, {})[task_manager] = None

    def remove(self, task_manager: TaskManagerId) -> None:
        """Give it no work any more."""
        entry = self._entries.pop(task_manager, None)
        if entry is None:
            return
        _discard(self._by_free, entry.free, task_manager)
        if entry.free == entry.total:
            _discard(self._idle, entry.total, task_manager)

    def find(self, request: SlotRequest) -> tuple[TaskManagerId, int] | None:
        """Return the TaskManager that serves the request best now, and with how many slots; None if nobody can."""
        if request.slots is not None:
            return self._packed(request.slots)
        limit = request.at_most
        at_the_limit = None if limit is None else self._packed(limit)
        if at_the_limit is not None:
            return at_the_limit
        # Nobody has as many free as the limit, so whoever is idle has fewer in all.
        largest = max(self._idle, default=None)
        return None if largest is None else (next(iter(self._idle[largest])), largest)

    def _packed(self, slots: int) -> tuple[TaskManagerId, int] | None:
        fitting = min((free for free in self._by_free if free >= slots), default=None)
        return None if fitting is None else (next(iter(self._by_free[fitting])), slots)


def _discard(index: dict[int, dict[TaskManagerId, None]], key: int, task_manager: TaskManagerId) -> None:
    bucket = index.get(key)
    if bucket is not None and task_manager in bucket:
        del bucket[task_manager]
        if not bucket:
            del index[key]

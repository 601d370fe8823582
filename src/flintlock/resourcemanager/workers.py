"""Active mode, decided: how many workers to start, and which to release.

Workers are started for requests that wait now and that neither free slots nor workers on their way will serve; never
more than `resourcemanager.max-taskmanagers` at once, those included that are on their way in or out. One that nobody
has used for a while is released. One that died, fell silent or never came is replaced, if it is still needed, after a
wait that doubles each time until one has lived longer than that.

A worker whose engine died has said good-bye and comes back by itself: it counts as starting again, and is given up
only if it takes too long. TaskManagers that somebody else started are never touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.ids import TaskManagerId

_LONGEST_RETRY_S: Final = 300.0

Missing: TypeAlias = Callable[[int, int], int]
"""How many workers more are needed, beside so many on their way, if at most so many may be started."""

IdleSince: TypeAlias = Callable[[TaskManagerId], float | None]
"""Since when a registered TaskManager is idle; None if it is not."""


class WorkerRules(Struct, frozen=True, kw_only=True):
    """How many, and how patiently."""

    most: int
    idle_s: float
    retry_s: float
    registration_s: float


class StartWorker(Struct, frozen=True):
    """Start one."""


class ReleaseWorker(Struct, frozen=True):
    """End one."""

    id: TaskManagerId
    reason: str


Order: TypeAlias = StartWorker | ReleaseWorker


class Workers:
    """The workers of one term. Equal calls in equal order give equal answers."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules: Final = rules
        self._asked = 0  # ordered, not yet answered by the driver
        self._starting: dict[TaskManagerId, float] = {}  # since when they are expected to register
        self._serving: dict[TaskManagerId, float] = {}  # since when they are registered
        self._releasing: set[TaskManagerId] = set()
        self._failures = 0  # in a row
        self._not_before_s = -math.inf  # nobody is started sooner

    def coming(self) -> int:
        """Return how many are on their way."""
        return self._asked + len(self._starting)

    def is_leaving(self, worker: TaskManagerId) -> bool:
        """Tell whether it is being released: it must not be given anything any more."""
        return worker in self._releasing

    def decide(self, missing: Missing, idle_since_s: IdleSince, now_s: float) -> list[Order]:
        """Return what to do now. What is returned counts as ordered: asking again does not order it twice."""
        orders: list[Order] = []
        for worker, since_s in list(self._starting.items()):
            if now_s - since_s >= self._rules.registration_s:
                orders.append(self._give_up(worker, f"it has not registered within {now_s - since_s:.0f} s", now_s))
        for worker in list(self._serving):
            idle_s = idle_since_s(worker)
            if idle_s is not None and now_s - idle_s >= self._rules.idle_s:
                del self._serving[worker]
                self._releasing.add(worker)
                orders.append(ReleaseWorker(worker, f"it was idle for {now_s - idle_s:.0f} s"))
        if now_s >= self._not_before_s:
            there = self.coming() + len(self._serving) + len(self._releasing)
            count = missing(self.coming(), self._rules.most - there)
            self._asked += count
            orders += [StartWorker()] * count
        return orders

    def next_due_s(self, idle_since_s: IdleSince, now_s: float) -> float:
        """Return for how long from now `decide` has nothing to say, if nothing happens."""
        idle = [since_s for worker in self._serving if (since_s := idle_since_s(worker)) is not None]
        due = [
            *(since_s + self._rules.registration_s for since_s in self._starting.values()),
            *(since_s + self._rules.idle_s for since_s in idle),
            *([self._not_before_s] if self._not_before_s > now_s else []),
        ]
        return max(min(due, default=math.inf) - now_s, 0.0)

    # What happened

    def started(self, worker: TaskManagerId, now_s: float) -> None:
        """The driver has started one."""
        self._asked -= 1
        self._starting[worker] = now_s

    def start_failed(self, now_s: float) -> None:
        """The driver could not start one."""
        self._asked -= 1
        self._failed(0.0, now_s)

    def entered(self, worker: TaskManagerId, now_s: float) -> None:
        """A TaskManager has registered, a worker or not."""
        if self._starting.pop(worker, None) is not None:
            self._serving[worker] = now_s

    def left(self, worker: TaskManagerId, reason: str, *, returns: bool, now_s: float) -> list[Order]:
        """A TaskManager was lost, a worker or not."""
        if worker not in self._serving:
            return []
        if not returns:
            return [self._give_up(worker, reason, now_s)]
        del self._serving[worker]
        self._starting[worker] = now_s
        return []

    def ended(self, worker: TaskManagerId, now_s: float) -> None:
        """The process of a worker is gone, though nobody released it."""
        if worker in self._releasing:
            self._releasing.discard(worker)
        else:
            self._forget(worker, now_s)

    def released(self, worker: TaskManagerId) -> None:
        """A worker that was to be released is gone."""
        self._releasing.discard(worker)

    # Inside

    def _give_up(self, worker: TaskManagerId, reason: str, now_s: float) -> ReleaseWorker:
        self._forget(worker, now_s)
        self._releasing.add(worker)
        return ReleaseWorker(worker, reason)

    def _forget(self, worker: TaskManagerId, now_s: float) -> None:
        self._starting.pop(worker, None)
        since_s = self._serving.pop(worker, now_s)
        self._failed(now_s - since_s, now_s)

    def _failed(self, lived_s: float, now_s: float) -> None:
        self._failures = 1 if lived_s > self._wait_s(self._failures) else self._failures + 1
        self._not_before_s = now_s + self._wait_s(self._failures)

    def _wait_s(self, failures: int) -> float:
        if not failures:
            return 0.0
        return min(self._rules.retry_s * 2.0 ** min(failures - 1, 30), max(_LONGEST_RETRY_S, self._rules.retry_s))

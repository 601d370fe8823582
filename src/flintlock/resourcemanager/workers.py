"""Active mode, decided: how many workers to start, and which to release.

Workers are started for requests that wait now and that neither free slots nor starting workers will serve; never more
than `resourcemanager.max-taskmanagers` at once, including those that are starting or being released. A worker that was
idle for a while is released, and a start that still waits for resources is withdrawn when no request needs it any
more. One that died, timed out or never registered is replaced, if it is still needed, after a
backoff that doubles each time until one has lived longer than that.

A worker whose engine died has unregistered and registers again by itself: it counts as starting again, and is replaced
only if it takes too long. TaskManagers that were started independently are never touched.

Workers outlive the leader that started them. Those that the driver knows when a term begins are expected to register,
like new ones; one that registers and says that it is a worker (its leader was on another machine) is taken over then.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.backoff import Backoff
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.resourcemanager.capacity import Capacity, could_serve
from flintlock.resourcemanager.free_slots import FreeSlots
from flintlock.resourcemanager.request_queue import QueuedRequest

_LONGEST_RETRY_S: Final = 300.0

Missing: TypeAlias = Callable[[int, int], int]
"""(starting, at_most) -> how many more workers are needed beside those that are starting, at most `at_most`."""

IdleSince: TypeAlias = Callable[[TaskManagerId], float | None]
"""Since when a registered TaskManager is idle; None if it is not."""


class WorkerRules(Struct, frozen=True, kw_only=True):
    """Limits and timeouts of active mode, as configured."""

    limit: int
    idle_s: float
    retry_s: float
    registration_s: float


class StartWorker(Struct, frozen=True):
    """Start a worker."""


class WithdrawStart(Struct, frozen=True):
    """Withdraw a start that the driver has not confirmed, if it still waits for resources."""


class ReleaseWorker(Struct, frozen=True):
    """End a worker."""

    id: TaskManagerId
    reason: str


WorkerOrder: TypeAlias = StartWorker | WithdrawStart | ReleaseWorker


class Workers:
    """The workers of one term. Equal calls in equal order give equal answers."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules: Final = rules
        self._ordered = 0  # ordered, not yet confirmed by the driver
        self._starting: dict[TaskManagerId, float] = {}  # since when they are expected to register
        self._serving: dict[TaskManagerId, float] = {}  # since when they are registered
        self._releasing: set[TaskManagerId] = set()
        self._failures = 0  # in a row
        self._not_before_s = -math.inf  # no worker is started sooner

    def coming(self) -> int:
        """Return how many workers are ordered or starting."""
        return self._ordered + len(self._starting)

    def is_being_released(self, worker: TaskManagerId) -> bool:
        """Return whether it is being released: it must not get slots any more."""
        return worker in self._releasing

    def decide(self, missing: Missing, idle_since_s: IdleSince, now_s: float) -> list[WorkerOrder]:
        """Return what to do now. What is returned counts as ordered: a second call does not order it again.

        Except `WithdrawStart`: it may come too late, and counts when it is `withdrawn`.
        """
        orders: list[WorkerOrder] = []
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
            count = missing(self.coming(), self._rules.limit - there)
            self._ordered += count
            orders += [StartWorker()] * count
        return orders + [WithdrawStart()] * self._unneeded(missing)

    def next_due_s(self, idle_since_s: IdleSince, now_s: float) -> float:
        """Return the seconds until `decide` may return an order if no event comes first."""
        idle = [since_s for worker in self._serving if (since_s := idle_since_s(worker)) is not None]
        due = [
            *(since_s + self._rules.registration_s for since_s in self._starting.values()),
            *(since_s + self._rules.idle_s for since_s in idle),
            *([self._not_before_s] if self._not_before_s > now_s else []),
        ]
        return max(min(due, default=math.inf) - now_s, 0.0)

    # Events

    def take_over(self, workers: Iterable[TaskManagerId], now_s: float) -> None:
        """These workers of an earlier leader run: they are expected to register."""
        self._expect(workers, now_s)

    def started(self, worker: TaskManagerId, now_s: float) -> None:
        """The driver has started a worker."""
        self._ordered -= 1
        self._expect((worker,), now_s)

    def withdrawn(self) -> None:
        """The driver has withdrawn a start."""
        self._ordered -= 1

    def start_failed(self, now_s: float) -> None:
        """The driver could not start a worker."""
        self._ordered -= 1
        self._failed(0.0, now_s)

    def entered(self, worker: TaskManagerId, now_s: float, *, is_worker: bool = False) -> None:
        """A TaskManager has registered, a worker or not; `is_worker`: it says so itself."""
        known = self._starting.pop(worker, None) is not None
        if known or (is_worker and worker not in self._serving and worker not in self._releasing):
            self._serving[worker] = now_s

    def left(self, worker: TaskManagerId, reason: str, *, returns: bool, now_s: float) -> list[WorkerOrder]:
        """A TaskManager was lost, a worker or not."""
        if worker not in self._serving:
            return []
        if not returns:
            return [self._give_up(worker, reason, now_s)]
        del self._serving[worker]
        self._starting[worker] = now_s
        return []

    def ended(self, worker: TaskManagerId, now_s: float) -> None:
        """The process of a worker has ended by itself."""
        if worker in self._releasing:
            self._releasing.discard(worker)
        else:
            self._forget(worker, now_s)

    def released(self, worker: TaskManagerId) -> None:
        """The driver has ended a worker."""
        self._releasing.discard(worker)

    # Inside

    def _expect(self, workers: Iterable[TaskManagerId], now_s: float) -> None:
        """Expect workers to register, unless they have done so already: what is known of their start may be late."""
        known = self._serving.keys() | self._releasing
        self._starting.update({worker: now_s for worker in workers if worker not in known})

    def _unneeded(self, missing: Missing) -> int:
        """Return how many starts that are not confirmed could be withdrawn without being ordered again."""
        if not self._ordered:
            return 0
        coming = self.coming()
        fewest = bisect_left(range(coming - self._ordered, coming), True, key=lambda count: missing(count, 1) == 0)
        return self._ordered - fewest

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
        retry_s = self._rules.retry_s
        return Backoff(initial_s=retry_s, maximum_s=max(_LONGEST_RETRY_S, retry_s)).delay_s(failures)


def missing_workers(
    waiting: Iterable[QueuedRequest],
    free: FreeSlots,
    fresh: Capacity,
    *,
    coming: int,
    at_most: int,
    blocks: Callable[[QueuedRequest], bool],
) -> int:
    """Return how many fresh workers, beside those that are coming, all waiting requests need; at most `at_most`.

    Simulates allocation on `free`, which is changed. `blocks` says which request, if it cannot be served, holds up all
    behind it.
    """
    for number in range(coming):
        _add_fresh(free, fresh, number)
    missing = 0
    for request in waiting:
        if free.take(request.spec) is not None:
            continue
        if not could_serve(fresh, request.spec):
            if blocks(request):
                break  # it waits for a registered TaskManager, and no other request overtakes it
            continue
        if missing >= at_most:
            break
        missing += 1
        _add_fresh(free, fresh, coming + missing)
        free.take(request.spec)
    return missing


def _add_fresh(free: FreeSlots, fresh: Capacity, number: int) -> None:
    left = Resources(cpu=fresh.cpu, memory=fresh.memory)
    free.put(TaskManagerId(f"\0{number}"), free=fresh.slots, left=left, whole=fresh)

"""The lease under which a TaskManager's work runs, and the three times at which that work has to end.

The leader declares a silent TaskManager lost one lease length after it *received* its last heartbeat. A heartbeat is
received after it was sent, so a TaskManager that counts from the sending is always done first. Before the leader starts
the same tasks elsewhere, they have to be gone:

    0.8 of the lease    the TaskManager cancels its attempts by itself; its engine stays warm
    0.95 of it          the watchdog kills engine and runners: the TaskManager is frozen, or its engine does not stop
    1.0                 the leader may start the same tasks elsewhere

A registration is sent before the leader knows that incarnation at all, so it counts as the first heartbeat. A
TaskManager without work needs no lease. Times are those of one clock that also runs while the machine sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, structs

from flintlock.model.ids import InstanceId

#: When the TaskManager itself cancels its attempts, as a fraction of the lease.
YIELD_PART: Final = 0.8

#: When the watchdog kills engine and runners.
KILL_PART: Final = 0.95


class Lease(Struct, frozen=True, kw_only=True):
    """The permission to run attempts, until it ends."""

    sent_s: float  # when the latest answered heartbeat was sent
    length_s: float

    @property
    def yields_s(self) -> float:
        """When the TaskManager cancels its attempts."""
        return self.sent_s + YIELD_PART * self.length_s

    @property
    def kills_s(self) -> float:
        """When the watchdog kills engine and runners."""
        return self.sent_s + KILL_PART * self.length_s

    def is_open(self, now_s: float) -> bool:
        """Return whether attempts may continue, and new ones be admitted."""
        return now_s < self.yields_s

    def left_s(self, now_s: float) -> float:
        """Return how long it remains open; never negative."""
        return max(self.yields_s - now_s, 0.0)

    def renewed(self, sent_s: float) -> Lease:
        """Return the lease after the answer to a heartbeat; answers that arrive out of order change nothing."""
        return structs.replace(self, sent_s=max(self.sent_s, sent_s))


class CurrentLease:
    """The incarnation of this TaskManager that works now, and its lease. Written by `Registration` only."""

    def __init__(self, instance: InstanceId, clock_s: Callable[[], float]) -> None:
        self._clock_s: Final = clock_s
        self.instance: InstanceId = instance  # replaced whenever an incarnation is over
        self.lease: Lease | None = None  # None: no leader has granted one, or all work that it covered has ended
        self.acknowledged = False  # whether a leader has registered this instance

    def accepts_work(self) -> bool:
        """Return whether attempts may be admitted: the leader knows this instance, and its lease is open."""
        return self.acknowledged and self.is_open()

    def is_open(self) -> bool:
        """Return whether what runs may continue."""
        return self.lease is not None and self.lease.is_open(self._clock_s())

    def is_longer_than(self, longest_s: float) -> bool:
        """Return whether the lease is longer than an attempt may be covered for; 0 is no limit."""
        return bool(longest_s) and self.lease is not None and self.lease.length_s > longest_s

    def has_lapsed(self) -> bool:
        """Return whether the lease ended while its work may still be here: its JobMasters may have retried it."""
        return self.lease is not None and not self.lease.is_open(self._clock_s())

    def left_s(self) -> float:
        """Return how long it remains open; 0 if there is none."""
        return self.lease.left_s(self._clock_s()) if self.lease is not None else 0.0

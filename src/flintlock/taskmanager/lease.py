"""The lease under which a TaskManager's work goes on, and the three moments at which it has to end.

The leader gives up a silent TaskManager one lease length after it *heard* it. A heartbeat is heard after it was sent,
so who counts from the sending is always the first to be done. Before that moment the work has to be gone:

    0.8 of the lease    the TaskManager ends its attempts by itself; its engine stays warm
    0.95 of it          the watchdog kills engine and runners: the TaskManager is frozen, or its engine does not obey
    1.0                 the leader may start the same tasks elsewhere

A registration is sent before the leader hears of that life at all, so it counts as the first heartbeat. What does not
run needs no lease. Times are those of one clock that also runs while the machine sleeps.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, structs

#: When the TaskManager itself ends what runs, as a part of the lease.
YIELD_PART: Final = 0.8

#: When the watchdog does.
KILL_PART: Final = 0.95


class Lease(Struct, frozen=True, kw_only=True):
    """The right to run, until it ends."""

    sent_s: float  # when the latest answered heartbeat was sent
    length_s: float

    @property
    def yields_s(self) -> float:
        """When the TaskManager ends its attempts."""
        return self.sent_s + YIELD_PART * self.length_s

    @property
    def kills_s(self) -> float:
        """When the watchdog ends everything."""
        return self.sent_s + KILL_PART * self.length_s

    def is_open(self, now_s: float) -> bool:
        """Tell whether work may go on, and new work be taken."""
        return now_s < self.yields_s

    def left_s(self, now_s: float) -> float:
        """Return for how long it is open; never negative."""
        return max(self.yields_s - now_s, 0.0)

    def renewed(self, sent_s: float) -> Lease:
        """Return the lease after the answer to a heartbeat; answers that overtake each other change nothing."""
        return structs.replace(self, sent_s=max(self.sent_s, sent_s))

"""How long an event loop has stood still, and after what time its process must end for that.

Where a session in ZooKeeper says who leads, the threads of its client keep it alive, whatever the loop does: nobody
else can find out that the leader does nothing any more, or end it. So a thread of the same process does.

Rejected: to close the session from that thread. The loop may go on at any time, and act as a leader for some
instructions more; a process that has ended does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: The most that counts between two looks at the loop. A thread that looks more rarely did not run in between: neither
#: did the loop then, because the machine was paused or had no time for this process.
LONGEST_GAP_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class StandstillLimit:
    """What ends the process of a loop that stands still."""

    seconds: Callable[[], float]  # for how long it may; asked at each look
    end: Callable[[str], object]  # ends the process, with the reason; called by a thread


class Standstill:
    """Adds up how long one beat of a loop is overdue, while the process runs. Times are parameters, in seconds."""

    def __init__(self) -> None:
        self._due_s = 0.0  # when the beat is due that is waited for
        self._looked_s: float | None = None  # when it was looked last
        self._standing_s = 0.0

    def look(self, now_s: float, due_s: float) -> float:
        """Return for how long the loop has stood still; its next beat is due at `due_s`."""
        looked_s, self._looked_s = self._looked_s, now_s
        if due_s != self._due_s:
            self._due_s, self._standing_s = due_s, 0.0
        overdue_s = now_s - due_s
        if looked_s is not None and overdue_s > 0:
            self._standing_s += min(now_s - looked_s, overdue_s, LONGEST_GAP_S)
        return self._standing_s

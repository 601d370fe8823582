"""Which processes have been stopped (SIGSTOP) for too long.

A stopped process neither works nor ends, and says nothing: its task would hang for ever. Looks are counted, not
seconds: a TaskManager that was stopped together with its children, and wakes together with them, has not looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: How often is looked, while anything runs.
LOOK_S: Final = 1.0

#: At this many looks in a row a process must be found stopped before it is killed.
LOOKS: Final = 5


class StoppedProcessDetector:
    """How often in a row each process was found stopped. Equal looks in equal order give equal answers."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # looks by pid; replaced by each look

    def look(self, stopped: Mapping[int, bool]) -> frozenset[int]:
        """Take in how all processes are now; return those that are to be killed."""
        self._seen = {pid: self._seen.get(pid, 0) + 1 for pid, is_stopped in stopped.items() if is_stopped}
        return frozenset(pid for pid, looks in self._seen.items() if looks >= LOOKS)

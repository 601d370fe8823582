"""Detects processes that have been stopped (SIGSTOP) for too long.

A stopped process neither works nor ends, and sends nothing: its task would hang for ever. Observations are counted, not
seconds: a TaskManager that was stopped together with its children, and resumes together with them, has observed nothing
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Seconds between two observations, while anything runs.
OBSERVATION_INTERVAL_S: Final = 1.0

#: A process that was stopped at this many observations in a row is killed.
STRIKES: Final = 5


class StoppedProcessDetector:
    """Counts for each process at how many observations in a row it was stopped."""

    def __init__(self) -> None:
        self._strikes: dict[int, int] = {}  # by pid; replaced by each observation

    def observe(self, stopped: Mapping[int, bool]) -> frozenset[int]:
        """Record which of all processes are stopped now; return those that have to be killed."""
        self._strikes = {pid: self._strikes.get(pid, 0) + 1 for pid, is_stopped in stopped.items() if is_stopped}
        return frozenset(pid for pid, strikes in self._strikes.items() if strikes >= STRIKES)

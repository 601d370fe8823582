"""The time between two readings of a wall clock.

A wall clock may be set back between the two, or be another machine's: every duration that users see is computed here,
or in a process on its monotonic clock.
"""

from __future__ import annotations


def elapsed_ms(from_ms: int, to_ms: int) -> int:
    """Return the milliseconds from one time to another; 0 if the clock was set back in between."""
    return max(0, to_ms - from_ms)

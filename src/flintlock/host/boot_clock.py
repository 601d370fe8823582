"""A clock that all processes of one machine share, and that runs while the machine sleeps. Standard library only."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def boot_time_s() -> float:
    """Return a time that only grows, also while the machine sleeps, and is the same in all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def boot_id() -> str:
    """Return the id of this boot of the machine. Raises OSError. Linux only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

"""What a process of ours does so that it never outlives the one that started it, and never disturbs it.

Linux: the kernel sends SIGKILL when the parent ends (PR_SET_PDEATHSIG), and hands orphans to the template
(PR_SET_CHILD_SUBREAPER). Elsewhere the end of the parent is heard as the end of its socket. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; end at once if it has ended already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process, where the system can."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def wake_when_parent_ends() -> None:
    """Have the kernel continue this process, should it be stopped, when its parent ends; for one with a last duty."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def boot_time_s() -> float:
    """Return a time that only grows, also while the machine sleeps, and is the same in all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def children() -> frozenset[int]:
    """Return the pids of this process's children; empty where the system does not tell."""
    own = os.getpid()
    try:
        return frozenset(int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split())
    except OSError:
        return frozenset()


def threads() -> int:
    """Return how many threads this process has, those of C libraries included; 1 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


def kill_group(leader: int) -> None:
    """Kill a process group; harmless when it is gone."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a zombie
        return


class LocalProcesses:
    """The processes of this machine, as far as /proc tells. Satisfies `gateways.engine.ProcessTable`."""

    def is_stopped(self, pid: int) -> bool:
        """Tell whether a process is stopped; one that a debugger holds for a moment (`t`) is not."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["T"]

    def resident_bytes(self, pid: int) -> int:
        """Return how much memory a process has; 0 for one that is gone."""
        try:
            return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0

    def kill(self, pid: int) -> None:
        """Send SIGKILL; harmless for one that is gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

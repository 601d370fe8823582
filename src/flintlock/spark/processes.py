"""What a process of ours does so that it never outlives the one that started it, and never disturbs it.

Linux: the kernel sends SIGKILL when the parent ends (PR_SET_PDEATHSIG), and hands orphans to the template
(PR_SET_CHILD_SUBREAPER). Elsewhere the end of the parent is heard as the end of its socket.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends; end at once if it has ended already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process, where the system can."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


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


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

"""How a process of ours reacts to the end of its parent, and of the parents of its descendants.

Linux: the kernel sends a signal when the parent ends (PR_SET_PDEATHSIG), and makes orphans children of the template
(PR_SET_CHILD_SUBREAPER). Elsewhere a process notices the end of its parent by the end of its socket. Standard library
only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends.

    With the `parent`'s pid, exit at once if that process has ended already: otherwise one that ended before this call
    goes unnoticed.
    """
    expected = os.getppid() if parent is None else parent
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected:
        os._exit(0)


def wake_when_parent_ends() -> None:
    """Have the kernel continue this process, should it be stopped, when its parent ends. For the watchdog."""
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process, where the system supports it."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; nothing on other systems than Linux. Raises OSError."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

"""A leader that holds the lock but does nothing: noticed by its heartbeat, ended by the standby.

A stopped process keeps its locks. On one host that can be mended: whoever stands by sees the holder's heartbeat row
stand still for the whole of a stated timeout, and ends that process. The kernel then frees the lock, and the standby
takes it as after any other death.

Ending the wrong process must be impossible, since pids are used again. The process is first pinned by a pidfd, then
looked at: only one that has the lock file open is the holder; the signal goes to the pinned one. A holder that cannot
be looked at that way (no /proc, no pidfd: not Linux) is left alone and the operator is told.

A silence counts only while the standby itself is awake and looking. Two processes that were paused together, with
their machine or container, wake up together; the time in between says nothing about either.

Rejected: comparing the row's time with the clock (a clock that is set forward makes every leader look silent).
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Final

from msgspec import Struct

_GONE_S: Final = 5.0  # how long a killed process may take to be gone; the lock is free only then


class HeartbeatRow(Struct, frozen=True):
    """What the holder last wrote."""

    epoch: int
    session: str
    pid: int
    at_ms: int


class Silence:
    """How long a heartbeat has stood still, as far as somebody was looking."""

    def __init__(self, *, timeout_s: float, look_s: float) -> None:
        self._timeout_s: Final = timeout_s
        self._most_s: Final = 2 * look_s  # what one look can add: a longer gap was the looker's own sleep
        self._row: HeartbeatRow | None = None  # the newest that was seen
        self._seen_s = 0.0  # when it was last looked at
        self._silent_s = 0.0  # back to 0 with every new row

    def broken_by(self, row: HeartbeatRow | None, now_s: float) -> bool:
        """Take a look at the row (None: it could not be read) and tell whether its writer is to be given up."""
        if row is not None and row != self._row:
            self._row, self._silent_s = row, 0.0
        else:
            self._silent_s += min(now_s - self._seen_s, self._most_s)
        self._seen_s = now_s
        return self._row is not None and self._silent_s >= self._timeout_s

    @property
    def holder(self) -> int | None:
        """The pid of whoever wrote the newest row."""
        return None if self._row is None else self._row.pid


def end_holder(pid: int, lock: Path) -> str:
    """End the process that holds `lock` open, and wait until it is gone; say what was done. Blocks for seconds.

    Does nothing to this process itself, nor to one that has not opened the file.
    """
    if not hasattr(os, "pidfd_open"):
        return "left alone: this system has no pidfd, end it by hand"
    if pid == os.getpid():
        return "left alone: it is this very process"
    try:
        pinned = os.pidfd_open(pid)
    except OSError as error:
        return f"left alone: {error.strerror}"
    try:
        if not _has_open(pid, lock):
            return "left alone: that process has not opened the lock"
        try:
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
        except OSError as error:
            return f"left alone: {error.strerror}"
        gone = select.poll()
        gone.register(pinned, select.POLLIN)
        return "ended" if gone.poll(_GONE_S * 1000) else "killed, but not gone yet"
    finally:
        os.close(pinned)


def _has_open(pid: int, path: Path) -> bool:
    try:
        wanted = path.stat()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            if os.path.samestat(descriptor.stat(), wanted):
                return True
        except OSError:  # closed meanwhile
            continue
    return False

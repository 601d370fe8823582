"""A leader that holds the lock but does nothing: detected by its heartbeat, killed by a standby.

A stopped process keeps its locks. On one host a standby can resolve that: when the holder's heartbeat row has not
changed for a whole timeout, and more is proved (`silent_leader_watch`), it kills that process. The kernel then frees
the lock, and the standby takes it as after any other death.

Killing the wrong process must be impossible, since pids are used again. The process is first pinned by a
`ProcessHandle`, then inspected: only one that has the lock file open is the holder; the signal goes to the pinned
process. A holder that cannot be inspected that way (no /proc, no pidfd: not Linux) is left alone, and the log tells the
operator.

A silence counts only while the standby itself runs and polls. Two processes that were paused together, with their
machine or container, wake up together; the time in between says nothing about either.

Rejected: comparing the row's time with the clock (a clock that is set forward makes every leader look silent).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from msgspec import Struct

from flintlock.host.processes.process import ProcessHandle

_EXIT_S: Final = 5.0  # how long a killed process may take to end; the lock is free only then


class HeartbeatRow(Struct, frozen=True):
    """The heartbeat that the holder of the lock wrote last."""

    epoch: int
    session: str
    pid: int
    at_ms: int


class SilenceDetector:
    """Measures how long a heartbeat row has not changed, counting only the time in which it was polled and read."""

    def __init__(self, *, timeout_s: float, poll_s: float) -> None:
        self._timeout_s: Final = timeout_s
        self._longest_gap_s: Final = 2 * poll_s  # what one poll can add: in a longer gap this process slept
        self._polled_s = 0.0  # when it was last polled
        self.row: HeartbeatRow | None = None  # the newest; written by `observe`
        self.silent_s = 0.0  # back to 0 with every new row; written by `observe` and `restart`

    @property
    def timed_out(self) -> bool:
        """Whether the writer of the row was silent for too long."""
        return self.row is not None and self.silent_s >= self._timeout_s

    def observe(self, row: HeartbeatRow | None, now_s: float) -> None:
        """Record what was polled. None: this process could not read it, which says nothing about its writer."""
        if row is not None and row != self.row:
            self.row, self.silent_s = row, 0.0
        elif row is not None:
            self.silent_s += min(now_s - self._polled_s, self._longest_gap_s)
        self._polled_s = now_s

    def restart(self) -> None:
        """Count from zero: the writer has shown that it lives, or was judged."""
        self.silent_s = 0.0


def kill_holder(pid: int, lock: Path) -> str:
    """Kill the process that has `lock` open, and wait for its end; return what was done. Blocks for seconds.

    Does nothing to this process itself, nor to one that has not opened the file.
    """
    if pid == os.getpid():
        return "left alone: it is this very process"
    try:
        with ProcessHandle(pid) as handle:
            if not _has_open(pid, lock):
                return "left alone: that process has not opened the lock"
            handle.send(signal.SIGKILL)
            return "killed" if handle.wait(_EXIT_S) else "killed, but it has not ended yet"
    except OSError as error:
        return f"left alone: {error.strerror or error}; end it by hand"


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

"""A leader that lives but does nothing: frozen, or stuck. On one host its standby ends it, by the kernel's own means.

A frozen process keeps its lock for as long as it is frozen. Killing it is safe here, as both are on one machine and a
pidfd names one process and no other: what is dead writes nothing, and the kernel frees the lock. What is ended is
only ever a process that has the lock file open; a row that names somebody else ends nobody.

Silence is counted in looks, not by a clock: a standby that was frozen itself has not looked meanwhile, and gives a
holder that wakes up together with it all the time there is. Each sign of life counts: the heartbeat's row, and the
lock file's own time, which a holder whose disk is full can still set.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct


class SignOfLife(Struct, frozen=True):
    """What was seen of the holder: its process, and what changes while it works."""

    pid: int
    epoch: int
    at_ms: int
    touched_ns: int


class Silence:
    """Decides whether the holder has been silent for too long."""

    def __init__(self, patience: int) -> None:
        self._patience: Final = patience
        self._seen: SignOfLife | None = None
        self._looks = 0  # since something changed

    def look(self, sign: SignOfLife | None) -> bool:
        """Take a look at the holder. True: nothing has changed for `patience` looks; then it begins anew."""
        if sign is None or sign != self._seen:
            self._seen, self._looks = sign, 0
            return False
        self._looks += 1
        if self._looks < self._patience:
            return False
        self._seen, self._looks = None, 0
        return True


def end_holder(pid: int, lock: Path) -> bool:
    """Kill the process if it has the lock file open; tell whether it was. Raises OSError where that is not allowed.

    Linux only: elsewhere nothing names a process for sure, and nobody is ended.
    """
    if not hasattr(os, "pidfd_open") or pid == os.getpid():
        return False
    try:
        process = os.pidfd_open(pid)  # from here on the number cannot come to mean another process
    except ProcessLookupError:
        return False
    try:
        if not _has_open(pid, lock):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def _has_open(pid: int, path: Path) -> bool:
    wanted = path.stat()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.path.samestat(wanted, descriptor.stat()):
                return True
    return False

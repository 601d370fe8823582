"""Single processes of this machine: identified, inspected, signalled. Standard library only on Linux.

A pid alone proves nothing, since pids are used again. `start_time_of` identifies a process for as long as the machine
runs; a `ProcessHandle` addresses one without a race.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from flintlock.host.boot_clock import boot_id

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # in a second


class ProcessStat(NamedTuple):
    """One entry of the system's process table."""

    pid: int
    parent: int
    group: int
    session: int
    start_time: str  # as `start_time_of` returns it


class ProcessHandle:
    """A pidfd: addresses one process, whatever becomes of its pid. A context manager. Linux only."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is no such process, or the system has no pidfd."""
        if not hasattr(os, "pidfd_open"):
            raise OSError("this system has no pidfd")
        self._descriptor: Final = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Raises OSError if the process has ended, or must not be signalled."""
        signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process, which need not be a child; return whether it has ended."""
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        return bool(ended.poll(max(timeout_s, 0) * 1000))

    def close(self) -> None:
        """Close the handle. Call it once."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LocalProcesses:
    """The processes of this machine, as far as /proc shows them. Satisfies `gateways.engine.ProcessTable`."""

    def is_stopped(self, pid: int) -> bool:
        """Return whether a process is stopped; one that is being traced by a debugger (`t`) is not."""
        fields = _stat_fields(pid)
        return fields is not None and fields[0] == "T"

    def resident_bytes(self, pid: int) -> int:
        """Return the resident memory of a process; 0 for one that has ended."""
        try:
            return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0

    def kill(self, pid: int) -> None:
        """Send SIGKILL; harmless for one that has ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def start_time_of(pid: int) -> str | None:
    """Return what distinguishes this process from any other that had or will have its pid; None if it has ended.

    On Linux this does not depend on the clock: boot id and ticks since boot.
    """
    if sys.platform != "linux":
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
        except psutil.Error:
            return None
    try:
        found = read_process(pid, boot_id())
    except OSError:
        return None
    return None if found is None else found.start_time


def read_process(pid: int, boot: str) -> ProcessStat | None:
    """Return the current state of a process; None for one that has ended, reaped or not. `boot` is `boot_id()`."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return ProcessStat(pid, int(fields[1]), int(fields[2]), int(fields[3]), f"{boot}:{fields[19]}")


def cpu_time_s(pid: int) -> float | None:
    """Return how much CPU time the threads of a process have used; None where the system does not show it."""
    fields = _stat_fields(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS


def user_of(pid: int) -> int | None:
    """Return the id of the user that a process runs as; None for one that has ended, or where that is not shown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    return None if found is None else int(found[1])


def children() -> frozenset[int]:
    """Return the pids of this process's children; empty where the system does not show them."""
    own = os.getpid()
    try:
        return frozenset(int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split())
    except OSError:
        return frozenset()


def threads() -> int:
    """Return the number of this process's threads, those of C libraries included; 1 where the system hides them."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 1


def kill_group(leader: int) -> None:
    """Kill a process group; harmless when it has ended."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS raises the latter for a zombie
        return


def _stat_fields(pid: int) -> list[str] | None:
    """Return what follows the command's name in /proc/PID/stat, the state first."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()

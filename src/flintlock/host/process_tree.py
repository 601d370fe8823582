"""Ends whole families of processes: the recorded ones, and all that came from them, however they tried to leave.

A member is whoever descends from a recorded process, is in its process group or its session, or carries the
TaskManager's mark in its environment. The last is for those whose parent died first and who are init's children now: a
runner is killed by the kernel together with its template, and what user code has started in it would live on.

All are stopped first and the search repeated until it finds nobody new, then all are killed: somebody who is stopped
starts nobody else. A process is signalled only through a handle of its own (pidfd), so a number that was given to
somebody else in between is never touched. Standard library only: the watchdog is made of this.

Rejected: a cgroup (not every user may make one); one process group (user code may leave it).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

#: The variable by which everything that a TaskManager started knows it.
MARK: Final = "FLINTLOCK_TASKMANAGER"

#: How long the kernel may take to end a process that was sent SIGKILL.
KILL_S: Final = 5.0

#: How often new members are looked for; each round can only find what was forked before its parent was stopped.
_ROUNDS: Final = 20


class Process(NamedTuple):
    """One line of the system's table of processes."""

    pid: int
    parent: int
    group: int
    session: int
    start_time: str


def boot_id() -> str:
    """Return what tells this boot of the machine from any other. Raises OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int, boot: str) -> Process | None:
    """Return a process as it is now; None for one that has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), f"{boot}:{fields[19]}")


def kill_trees(roots: Mapping[int, str], *, mark: str = "", spare: Iterable[int] = ()) -> frozenset[int]:
    """Kill these processes (pid to start time) with their families, and all that carry the mark; wait for their end.

    Returns the pids that were killed. Nobody in `spare` is touched, nor is this process. Idempotent. Linux only.
    """
    spared = frozenset((*spare, os.getpid()))
    handles: dict[int, int] = {}  # pid -> pidfd
    try:
        for _ in range(_ROUNDS):
            found = [one for one in _members(roots, mark, handles) if one.pid not in spared and one.pid not in handles]
            caught = [one for one in found if _caught(one, handles)]
            if not caught:
                break
        for handle in handles.values():
            _send(handle, signal.SIGKILL)
        _wait(handles.values())
    finally:
        for handle in handles.values():
            os.close(handle)
    return frozenset(handles)


def _members(roots: Mapping[int, str], mark: str, caught: Iterable[int]) -> list[Process]:
    table = {one.pid: one for one in _all_processes()}
    living = {pid for pid, start_time in roots.items() if pid in table and table[pid].start_time == start_time}
    # A session or group keeps its number while it has members: that of a recorded process is its own.
    members = {pid for pid, one in table.items() if pid in living or {one.group, one.session} & living}
    members |= {pid for pid in table if mark and pid not in members and _carries(pid, mark)}
    members |= {pid for pid in caught if pid in table}
    grown = True
    while grown:
        more = {pid for pid, one in table.items() if one.parent in members} - members
        members |= more
        grown = bool(more)
    return [table[pid] for pid in sorted(members)]


def _all_processes() -> Iterator[Process]:
    boot = boot_id()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            one = read_process(int(entry.name), boot)
            if one is not None:
                yield one


def _carries(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or somebody else's


def _caught(one: Process, handles: dict[int, int]) -> bool:
    """Stop a process and keep its handle; False if it has ended, or may not be touched."""
    try:
        handle = os.pidfd_open(one.pid)
    except OSError:
        return False
    # The handle came first: if the process that has the pid now is the one that was seen, the handle is its own.
    again = read_process(one.pid, one.start_time.partition(":")[0])
    if again is None or again.start_time != one.start_time or not _send(handle, signal.SIGSTOP):
        os.close(handle)
        return False
    handles[one.pid] = handle
    return True


def _send(handle: int, number: signal.Signals) -> bool:
    if sys.platform != "linux":
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    return True


def _wait(handles: Iterable[int]) -> None:
    give_up_s = time.monotonic() + KILL_S
    for handle in handles:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        with suppress(OSError):
            ended.poll(max(give_up_s - time.monotonic(), 0) * 1000)

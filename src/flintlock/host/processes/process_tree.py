"""Kills whole process trees: the recorded processes and all that came from them, however they tried to detach.

A process belongs to a tree if it descends from a recorded process, is in that one's process group or session, or
carries the TaskManager's tag in its environment. The last is for those whose parent died first and that are children of
init now: a runner is killed by the kernel together with its template, and what user code has started in it would live
on.

All are stopped first and the search is repeated until it finds no new member, then all are killed: a stopped process
starts no other. A process is signalled only through its own `ProcessHandle`, so a pid that was given to another process
in between is never touched. Standard library only: the watchdog is made of this.

Rejected: a cgroup (not every user may make one); one process group (user code may leave it); psutil's
`children(recursive=True)` (it neither finds orphans by tag nor signals without a race).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.host.boot_clock import boot_id
from flintlock.host.processes.process import ProcessHandle, ProcessStat, read_process

#: The environment variable that carries the tag of the TaskManager in everything that it started.
TAG_VARIABLE: Final = "FLINTLOCK_TASKMANAGER"

#: How long the kernel may take to end a process that was sent SIGKILL.
KILL_S: Final = 5.0

#: The most searches for new members; each can only find what was forked before its parent was stopped.
_ROUNDS: Final = 20


def kill_trees(roots: Mapping[int, str], *, tag: str = "", exclude: Iterable[int] = ()) -> frozenset[int]:
    """Kill these processes (pid to start time) with their trees, and all that carry the tag; wait for their end.

    Returns the pids that were killed. Those in `exclude` are not touched, nor is this process. Idempotent. Linux only.
    """
    excluded = frozenset((*exclude, os.getpid()))
    handles: dict[int, ProcessHandle] = {}  # of the processes that were stopped
    try:
        for _ in range(_ROUNDS):
            members = _members(roots, tag, handles)
            fresh = [one for one in members if one.pid not in excluded and one.pid not in handles]
            stopped = [one for one in fresh if _stop(one, handles)]
            if not stopped:
                break
        for handle in handles.values():
            with suppress(OSError):
                handle.send(signal.SIGKILL)
        give_up_s = time.monotonic() + KILL_S
        for handle in handles.values():
            with suppress(OSError):
                handle.wait(give_up_s - time.monotonic())
    finally:
        for handle in handles.values():
            handle.close()
    return frozenset(handles)


def _members(roots: Mapping[int, str], tag: str, stopped: Iterable[int]) -> list[ProcessStat]:
    table = {one.pid: one for one in _all_processes()}
    living = {pid for pid, start_time in roots.items() if pid in table and table[pid].start_time == start_time}
    # A session or group keeps its number while it has members: that of a recorded process is its own.
    members = {pid for pid, one in table.items() if pid in living or {one.group, one.session} & living}
    members |= {pid for pid in table if tag and pid not in members and _has_tag(pid, tag)}
    members |= {pid for pid in stopped if pid in table}
    grown = True
    while grown:
        more = {pid for pid, one in table.items() if one.parent in members} - members
        members |= more
        grown = bool(more)
    return [table[pid] for pid in sorted(members)]


def _all_processes() -> Iterator[ProcessStat]:
    boot = boot_id()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            one = read_process(int(entry.name), boot)
            if one is not None:
                yield one


def _has_tag(pid: int, tag: str) -> bool:
    try:
        return f"{TAG_VARIABLE}={tag}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or belongs to another user


def _stop(one: ProcessStat, handles: dict[int, ProcessHandle]) -> bool:
    """Stop a process and keep its handle; False if it has ended, or may not be touched."""
    try:
        handle = ProcessHandle(one.pid)
    except OSError:
        return False
    # The handle came first: if the process that has the pid now is the one that was found, the handle is its own.
    again = read_process(one.pid, one.start_time.partition(":")[0])
    try:
        if again is None or again.start_time != one.start_time:
            raise ProcessLookupError(one.pid)
        handle.send(signal.SIGSTOP)
    except OSError:
        handle.close()
        return False
    handles[one.pid] = handle
    return True

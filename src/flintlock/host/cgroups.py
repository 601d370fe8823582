"""Control groups (version 2): limits on memory and cores that apply to a process and all that it starts.

A TaskManager may make groups where its own group has been delegated to it: a service unit with `Delegate=yes`, or a
container that owns its groups. The kernel allows processes in leaves only, so the TaskManager first moves itself (and
what it has started so far) into a leaf of its own; where other processes share its group, that is impossible, and it
moves back. Whether it can is found out once, by trying; where it cannot, `memory_limit` does what is possible for a
single process.

Memory that a runner shares with its template is counted there, where it was first used.

Rejected: version 1 (one hierarchy for each resource, deprecated); siblings of the own group (another process manages
them); `systemd-run` (a bus, a daemon and a process more for each task); waiting for an empty group by trying to remove
it every few milliseconds (the kernel reports a change of `cgroup.events`).
"""

from __future__ import annotations

import os
import re
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.model.errors import Unavailable

CPU_PERIOD_US: Final = 100_000

#: How long a group may take to become empty once its processes were killed.
EMPTY_S: Final = 1.0

_CONTROLLERS: Final = ("memory", "cpu")
_PREFIX: Final = "flintlock"


class Group:
    """One group of processes. Made by `Cgroups.group`."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def add(self, pid: int) -> None:
        """Move a process into it; what that one starts from then on is in it, too. Raises OSError if it has ended."""
        _write(self.path / "cgroup.procs", str(pid))

    def killed_for_memory(self) -> bool:
        """Return whether the kernel has killed a process of the group because the group exceeded its memory."""
        found = re.search(r"^oom_kill (\d+)", _read(self.path / "memory.events"), re.MULTILINE)
        return found is not None and int(found[1]) > 0

    def remove(self) -> None:
        """Kill what is left in it, and remove it. Idempotent; one that does not become empty stays behind.

        Blocks for up to `EMPTY_S`: not for the event loop's thread.
        """
        with suppress(OSError):
            _write(self.path / "cgroup.kill", "1")
        with suppress(OSError):
            _wait_until_empty(self.path / "cgroup.events")
        with suppress(OSError):
            self.path.rmdir()


class Cgroups:
    """A group below which others may be made. Made by `claim`."""

    def __init__(self, root: Path, controllers: frozenset[str]) -> None:
        self.root: Final = root
        self.controllers: Final = controllers

    def group(self, name: str, *, memory: int = 0, cpu: float = 0.0) -> Group:
        """Make a group of that name whose processes together may use so much (0: no limit). Raises OSError."""
        group = Group(self.root / f"{_PREFIX}-{os.getpid()}-{name}")
        group.path.mkdir(exist_ok=True)
        if memory > 0:
            _write(group.path / "memory.max", str(memory))
            with suppress(OSError):
                _write(group.path / "memory.swap.max", "0")  # where there is swap, the limit would mean little
            _write(group.path / "memory.oom.group", "1")
        if cpu > 0 and "cpu" in self.controllers:
            _write(group.path / "cpu.max", f"{max(int(cpu * CPU_PERIOD_US), 1000)} {CPU_PERIOD_US}")
        return group


def claim(proc: Path = Path("/proc")) -> Cgroups:
    """Prepare this process's own group to contain others. Raises Unavailable with the reason if that is impossible.

    Call it before starting threads and processes that must stay in the group: this process moves into a leaf.
    """
    own = own_group(_read(proc / "self/cgroup"), _read(proc / "self/mountinfo"))
    if own is None:
        raise Unavailable("this system has no cgroups of version 2")
    offered = frozenset(_read(own / "cgroup.controllers").split())
    if "memory" not in offered:
        raise Unavailable(f"{own} has no memory controller")
    wanted = offered & frozenset(_CONTROLLERS)
    try:
        if not wanted <= frozenset(_read(own / "cgroup.subtree_control").split()):
            _delegate(own, wanted, proc)
    except OSError as error:
        raise Unavailable(f"{own} is not delegated to this process: {error.strerror or error}") from error
    if not os.access(own, os.W_OK):
        raise Unavailable(f"{own} is not delegated to this process")
    for leftover in own.glob(f"{_PREFIX}-*-*"):  # of a TaskManager that was killed; those in use are not removed
        with suppress(OSError):
            leftover.rmdir()
    return Cgroups(own, wanted)


def own_group(membership: str, mounts: str) -> Path | None:
    """Return the directory of a process's group, from its files in /proc; None without version 2."""
    member = re.search(r"^0::(/.*)$", membership, re.MULTILINE)
    mount = re.search(r"^\S+ \S+ \S+ (\S+) (\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    if member is None or mount is None:
        return None
    root, place = mount[1].rstrip("/"), Path(mount[2])
    inside = member[1].removeprefix(root) if member[1].startswith(f"{root}/") or member[1] == root else member[1]
    return place / inside.strip("/")


def _delegate(own: Path, wanted: frozenset[str], proc: Path) -> None:
    """Enable controllers for groups below our own, which no process may be in. Undone where it fails."""
    leaf = own / f"{_PREFIX}-main"
    leaf.mkdir(exist_ok=True)
    moved: list[int] = []
    try:
        for pid in _own_processes(own, proc):
            _write(leaf / "cgroup.procs", str(pid))
            moved.append(pid)
        _write(own / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(wanted)))
    except OSError:
        for pid in moved:
            with suppress(OSError):
                _write(own / "cgroup.procs", str(pid))
        with suppress(OSError):
            leaf.rmdir()
        raise


def _own_processes(own: Path, proc: Path) -> tuple[int, ...]:
    """Return those of this process and its children that are in the group."""
    here = os.getpid()
    found: list[int] = []
    for pid in map(int, _read(own / "cgroup.procs").split()):
        parent = _read(proc / str(pid) / "stat").rpartition(")")[2].split()[1:2]
        if pid == here or parent == [str(here)]:
            found.append(pid)
    return tuple(found)


def _wait_until_empty(events: Path) -> None:
    """Return when no process is left in the group, or after `EMPTY_S`. Raises OSError if the group is gone."""
    give_up_s = time.monotonic() + EMPTY_S
    descriptor = os.open(events, os.O_RDONLY | os.O_CLOEXEC)
    try:
        changed = select.poll()
        changed.register(descriptor, select.POLLPRI)  # how the kernel reports that the file's content is another
        while b"populated 1" in os.pread(descriptor, 4096, 0):
            if not changed.poll(max(give_up_s - time.monotonic(), 0.0) * 1000):
                return
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """Write to one of the kernel's files: in one call, and without creating it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)

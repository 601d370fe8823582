"""Where JobManagers listen, told in the state directory.

`run/jobmanager.json`, `run/jobmanager-1.json`, … : one for each JobManager that listens, with its process.
`cluster.json`: the one that leads, with its epoch. Written when its leadership is confirmed, and taken away by itself
before it gives leadership up; so nobody ever removes what somebody newer has written. A leader that dies leaves it
behind: its process tells readers that it is not to be believed, and the next leader writes over it. The others stay
when their process ends, so that a client that was configured with the address of one finds the rest.

Rejected: all addresses in one file, which every JobManager would have to change under a lock that a frozen one holds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from flintlock.client.processes import PidFile, read_pid_file, running
from flintlock.entrypoints.process import own_pid, write_json
from flintlock.model.ids import Epoch
from flintlock.rest.leaders import LeaderInfo

LEADER_FILE: Final = "cluster.json"
_POLL_S: Final = 0.05


class Announcement(Struct, frozen=True, kw_only=True, rename="kebab"):
    """One JobManager: where it listens, which process it is, and the epoch in which it leads."""

    cluster_id: str
    rest: str
    rpc: str
    pid: int = 0
    start_time: float = 0.0
    epoch: int = 0


class Announcements:
    """What one JobManager tells of itself."""

    def __init__(self, state_dir: Path, name: str, announcement: Announcement) -> None:
        self._member_file: Final = state_dir / "run" / f"{name}.json"
        self._leader_file: Final = state_dir / LEADER_FILE
        process = own_pid()
        self._own: Final = structs.replace(announcement, pid=int(process["pid"]), start_time=process["start-time"])

    def listen(self) -> None:
        """Tell where this one listens. What is told stays when the process has ended: readers look at the process.

        If another JobManager of that name runs, this one adds its pid to the name: both want to be found.
        """
        path = self._member_file
        other = read_pid_file(path)
        if other is not None and other.pid != self._own.pid and running(other) is not None:
            path = path.with_stem(f"{path.stem}-{self._own.pid}")
        write_json(path, self._own)

    def lead(self, epoch: Epoch) -> None:
        """Tell that this one leads, unless somebody who runs has led later: then this one does not know yet."""
        found = _read(self._leader_file)
        if found is not None and found.epoch > epoch:
            process = PidFile(pid=found.pid, start_time=found.start_time)
            if running(process) is not None:  # else the store was made anew, and epochs begin again
                return
        write_json(self._leader_file, structs.replace(self._own, epoch=epoch))

    def step_down(self) -> None:
        """Take that back, if it still stands there. Only for one that still holds leadership. Idempotent."""
        found = _read(self._leader_file)
        if found is not None and (found.pid, found.start_time) == (self._own.pid, self._own.start_time):
            self._leader_file.unlink(missing_ok=True)


class LeaderFile:
    """A LeaderRetrieval from `cluster.json`. `run` keeps it current; a look costs one `stat`."""

    def __init__(self, state_dir: Path) -> None:
        self._path: Final = state_dir / LEADER_FILE
        self._version: tuple[int, int] | None = None  # inode and time of what was read last
        self._leader: LeaderInfo | None = None
        self._changed = asyncio.Event()  # set, and replaced, when the leader is another

    @property
    def leader(self) -> LeaderInfo | None:
        """Who leads, as far as is known; it may have died meanwhile."""
        return self._leader

    async def changed(self, seen: LeaderInfo | None) -> LeaderInfo | None:
        """Wait until somebody else leads than `seen`, or nobody; return who."""
        while self._leader == seen:
            await self._changed.wait()
        return self._leader

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_POLL_S)

    def look(self) -> None:
        """Look once."""
        try:
            seen = self._path.stat()
            version = (seen.st_ino, seen.st_mtime_ns)
        except OSError:
            version = None
        if version == self._version:
            return
        self._version = version
        found = _read(self._path) if version is not None else None
        leader = None if found is None else LeaderInfo(rest=found.rest, rpc=found.rpc, epoch=Epoch(found.epoch))
        if leader != self._leader:
            self._leader = leader
            self._changed.set()
            self._changed = asyncio.Event()


def _read(path: Path) -> Announcement | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Announcement)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None

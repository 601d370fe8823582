"""Which JobManagers run on this machine, told in the state directory.

For the command line, and for TaskManagers of an embedded cluster. JobManagers themselves ask the HA services who leads,
and with ZooKeeper so does everybody.

`run/jobmanager.json`, `run/jobmanager-1.json`, … : one for each JobManager that listens, with its process.
`cluster.json`: the one that leads, with its epoch. Written when its leadership is confirmed, and taken away when it
ends; nobody removes what somebody newer has written. A leader that dies leaves it behind: its process tells readers
that it is not to be believed, and the next leader writes over it. The others stay when their process ends, so that a
client that was configured with the address of one finds the rest.

Rejected: all addresses in one file, which every JobManager would have to change under a lock that a frozen one holds.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from flintlock.entrypoints.process import own_pid, write_json
from flintlock.host.pid_files import PidFile, read_pid_file, running
from flintlock.model.ids import Epoch

LEADER_FILE: Final = "cluster.json"


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
        """Take that back, if it still stands there. Idempotent.

        It is looked at again once it is aside: another may have written its own meanwhile, which goes back unless
        there is one already.
        """
        if not self._is_own(self._leader_file):
            return
        aside = self._leader_file.with_name(f".{LEADER_FILE}.{self._own.pid}.old")
        try:
            self._leader_file.replace(aside)
        except FileNotFoundError:
            return
        if not self._is_own(aside):
            with suppress(FileExistsError):
                self._leader_file.hardlink_to(aside)
        aside.unlink()

    def _is_own(self, path: Path) -> bool:
        found = _read(path)
        return found is not None and (found.pid, found.start_time) == (self._own.pid, self._own.start_time)


def _read(path: Path) -> Announcement | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Announcement)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None

"""The files in which the JobManagers of one host announce themselves, in the state directory.

They are for the command line, and for TaskManagers of an embedded cluster. JobManagers themselves ask the HA services
which one leads, and with ZooKeeper so do TaskManagers and clients.

`run/jobmanager.json`, `run/jobmanager-1.json`, … : one for each JobManager that listens, with its process. It stays
when the process has ended, so that a client that was configured with the address of one JobManager finds the others.
`cluster.json`: the JobManager that leads, with its epoch. It is written when leadership is confirmed and removed when
the term ends; a JobManager never removes what a newer leader has written. A leader that dies leaves it behind: readers
check its process, and the next leader overwrites it. Their format is `host.pid_files.ClusterFile`.

A file that cannot be written, as on a full disk, is written as soon as that is possible: clients with an address, and
TaskManagers that are registered, do without it. One thread writes the files, in order: a disk that stalls holds up
neither the event loop nor the exit of the process.

Rejected: all addresses in one file, which every JobManager would have to change under a lock; a stopped JobManager
could keep that lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from msgspec import structs

from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.entrypoints.process import write_json
from flintlock.host.processes.daemon_threads import DaemonThreads
from flintlock.host.processes.pid_files import (
    LEADER_FILE,
    ClusterFile,
    identity,
    read_job_manager_file,
    read_pid_file,
    running,
)
from flintlock.model import log_events
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import Epoch

log = structlog.get_logger()

_RETRY_S: Final = 1.0
_EXIT_S: Final = 2.0  # how long the exit of the process waits for the disk


class Announcements:
    """Writes the files of one JobManager."""

    def __init__(self, state_dir: Path, name: str, *, cluster_id: str, rest: str, rpc: str) -> None:
        self._member_file: Final = state_dir / "run" / f"{name}.json"
        self._leader_file: Final = state_dir / LEADER_FILE
        own = identity(os.getpid())
        self._own: Final = ClusterFile(
            pid=own.pid, start_time=own.start_time, cluster_id=cluster_id, rest=rest, rpc=rpc
        )

    def listen(self) -> None:
        """Write where this JobManager listens. The file stays when the process has ended: readers check the process.

        If another JobManager of that name runs, this one adds its pid to the name, so that both are found.
        """
        path = self._member_file
        other = read_pid_file(path)
        if other is not None and other.pid != self._own.pid and running(other) is not None:
            path = path.with_stem(f"{path.stem}-{self._own.pid}")
        write_json(path, self._own)

    def lead(self, epoch: Epoch) -> None:
        """Write that this JobManager leads, unless a newer leader that runs has written its file.

        A newer epoch of a process that has ended is overwritten: the store was removed, and epochs begin again.
        """
        found = read_job_manager_file(self._leader_file)
        if found is not None and found.epoch > epoch and running(found) is not None:
            return
        write_json(self._leader_file, structs.replace(self._own, epoch=epoch))

    def step_down(self) -> None:
        """Remove the leader file, if it is this JobManager's. Idempotent.

        The file is renamed, then checked again: another leader may have written its own in between, which is put back
        unless there is a newer one.
        """
        if not self._is_own(self._leader_file):
            return
        removed = self._leader_file.with_name(f".{LEADER_FILE}.{self._own.pid}.old")
        try:
            self._leader_file.replace(removed)
        except FileNotFoundError:
            return
        if not self._is_own(removed):
            with suppress(FileExistsError):
                self._leader_file.hardlink_to(removed)
        removed.unlink()

    def _is_own(self, path: Path) -> bool:
        found = read_job_manager_file(path)
        return found is not None and (found.pid, found.start_time) == (self._own.pid, self._own.start_time)


async def keep_announced(announcements: Announcements, dispatcher: CurrentDispatcher) -> None:
    """Announce where this JobManager listens, and when it leads, until cancelled. What cannot be written is retried."""
    writer = DaemonThreads(1, "announcements")
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_until_written(writer, announcements.listen), name="announce-address")
            while True:
                token = await dispatcher.wait_for_leader()
                epoch = token.epoch
                leading = tasks.create_task(
                    _until_written(writer, lambda epoch=epoch: announcements.lead(epoch)),
                    name=f"announce-leader-{epoch}",
                )
                try:
                    await dispatcher.wait_until_over(token)
                finally:
                    leading.cancel()
                    stepping_down = writer.submit(announcements.step_down)  # after a write that has begun
                await _written(stepping_down, RepeatedFailure())
    finally:
        writer.submit(announcements.step_down)
        writer.close(_EXIT_S)


async def _until_written(writer: DaemonThreads, write: Callable[[], None]) -> None:
    failure = RepeatedFailure()
    while not await _written(writer.submit(write), failure):  # noqa: ASYNC110 (nothing tells when a disk has room)
        await asyncio.sleep(_RETRY_S)


async def _written(writing: Future[None], failure: RepeatedFailure) -> bool:
    """Wait for a write; return whether it succeeded. One that has not begun is cancelled with its caller."""
    try:
        await asyncio.wrap_future(writing)
    except OSError as error:
        reason = str(error)
        if failure.occurred(reason, asyncio.get_running_loop().time()):
            log.warning(log_events.ANNOUNCEMENT_NOT_WRITTEN, reason=reason)
        return False
    return True

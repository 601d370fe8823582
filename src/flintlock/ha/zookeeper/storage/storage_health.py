"""Whether this JobManager reads and writes the storage directory, and what follows from that for leading.

A network file system may hang for one host and work for the others, be mounted there for reading only, or hang or be
full for all. A leader that cannot write writes nothing, but running work continues under it. It steps down only when
another candidate can: then that one can do better. If none can, a change of leader would only end the running work. So
each candidate publishes in its latch whether it reads and writes the directory, and one that does not lets those that
do lead. If there is none, one that only reads it may lead: it can recover the jobs and let their work continue. A
process that has just started says that it writes only once it has: on a disk that is full for all, leaders would step
down for one after another.

The verdicts of two processes about one directory that hangs for both come at different times. The leader waits longer
(STEP_DOWN_S) than a standby takes to notice (CHECK_S and CHECK_LIMIT_S).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final

import structlog

from flintlock.model import log_events
from flintlock.model.errors import FlintlockError

log = structlog.get_logger(__name__)

#: The pause between two checks, and how long one may take.
CHECK_S: Final = 5.0
CHECK_LIMIT_S: Final = 10.0

#: How long a leader does not write to the directory before it looks for a candidate that does.
STEP_DOWN_S: Final = 30.0

#: What a latch says of its candidate. An empty one is of a version that does not check.
READY: Final = b"storage-reached"
NOT_READY: Final = b"storage-not-reached"


class Access(IntEnum):
    """What this process can do with the storage directory."""

    NONE = 0
    READS = 1
    WRITES = 2


class StorageHealth:
    """What this process knows of the storage directory. `run` keeps it current.

    Neither check may have a time limit of its own, or wait for what hangs elsewhere: one that hangs is not followed by
    another one, so that no threads are lost to it.
    """

    def __init__(self, check: Callable[[], Awaitable[None]], check_writable: Callable[[], Awaitable[None]]) -> None:
        self._check: Final = check
        self._check_writable: Final = check_writable
        self._checked = False  # whether there has been a check
        self._failing_since_s: float | None = None  # None while it can be written, and before the first check
        self.access = Access.READS  # as the last check has shown; the directory was read when it was opened
        self.on_change: Callable[[], None] = lambda: None  # called when `access` has changed
        self.changed = asyncio.Event()  # set, and replaced, when `access` changes

    @property
    def reached(self) -> bool:
        """Whether the directory could be read at the last check."""
        return self.access >= Access.READS

    @property
    def ready(self) -> bool:
        """Whether it could be read and written."""
        return self.access is Access.WRITES

    @property
    def latch_data(self) -> bytes:
        """What this process's latch says."""
        return READY if self.ready else NOT_READY

    def failing_s(self) -> float:
        """Return for how long the directory could not be read and written."""
        return 0.0 if self._failing_since_s is None else asyncio.get_running_loop().time() - self._failing_since_s

    async def run(self) -> None:
        """Check at once, and then periodically, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            reading = _Check(self._check, tasks, "it did not answer")
            writing = _Check(self._check_writable, tasks, "it answered, but nothing could be written to it")
            while True:
                begun_s = asyncio.get_running_loop().time()
                access = Access.NONE
                problem = await reading.problem(begun_s + CHECK_LIMIT_S)
                if not problem:
                    problem = await writing.problem(begun_s + CHECK_LIMIT_S)
                    access = Access.READS if problem else Access.WRITES
                self._update(access, problem, begun_s)
                await asyncio.sleep(CHECK_S)

    def _update(self, access: Access, problem: str, begun_s: float) -> None:
        if access is self.access and self._checked:
            return
        if access is not Access.WRITES:
            self._failing_since_s = begun_s if self._failing_since_s is None else self._failing_since_s
            log.warning(log_events.STORAGE_NOT_REACHED, reason=problem)
        elif self._failing_since_s is not None:
            self._failing_since_s = None
            log.info(log_events.STORAGE_REACHED_AGAIN)
        self._checked = True
        if access is not self.access:
            self.access = access
            self.changed.set()
            self.changed = asyncio.Event()
            self.on_change()


class _Check:
    """One of the two checks, which is not begun again while it is under way."""

    def __init__(self, check: Callable[[], Awaitable[None]], tasks: asyncio.TaskGroup, hanging: str) -> None:
        self._check: Final = check
        self._tasks: Final = tasks
        self._hanging: Final = f"high-availability.storageDir: {hanging} within {CHECK_LIMIT_S:g} s"
        self._pending: asyncio.Task[str] | None = None

    async def problem(self, until_s: float) -> str:
        """Return why the check fails, or that it has not ended by this time; "": it has succeeded."""
        self._pending = self._pending or self._tasks.create_task(self._run(), name="storage-check")
        done, _ = await asyncio.wait((self._pending,), timeout=until_s - asyncio.get_running_loop().time())
        if not done:
            return self._hanging
        found, self._pending = self._pending.result(), None
        return found

    async def _run(self) -> str:
        try:
            await self._check()
        except FlintlockError as error:
            return error.public or repr(error)
        return ""

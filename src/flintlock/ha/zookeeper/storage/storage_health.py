"""Whether this JobManager reaches the storage directory, and what follows from that for leading.

A network file system may hang for one host and work for the others, or hang for all. A leader that cannot reach it
writes nothing, but running work continues under it. It steps down only when another candidate does reach it: then that
one can do better. If none does, a change of leader would only end the running work. So each candidate publishes in its
latch whether it reaches the directory, and one that does not lets those that do lead.

The verdicts of two processes about one directory that hangs for both come at different times. The leader waits longer
(STEP_DOWN_S) than a standby takes to notice (CHECK_S and CHECK_LIMIT_S).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from flintlock.model import log_events
from flintlock.model.errors import FlintlockError

log = structlog.get_logger(__name__)

#: The pause between two checks, and how long one may take.
CHECK_S: Final = 5.0
CHECK_LIMIT_S: Final = 10.0

#: How long a leader does not reach the directory before it looks for a candidate that does.
STEP_DOWN_S: Final = 30.0

#: What a latch says of its candidate. An empty one is of a version that does not check.
READY: Final = b"storage-reached"
NOT_READY: Final = b"storage-not-reached"


class StorageHealth:
    """What this process knows of the storage directory. `run` keeps it current."""

    def __init__(self, check: Callable[[], Awaitable[None]]) -> None:
        self._check: Final = check
        self._failing_since_s: float | None = None  # None while it can be reached
        self.on_change: Callable[[], None] = lambda: None  # called when `reached` has changed
        self.changed = asyncio.Event()  # set, and replaced, when `reached` changes

    @property
    def reached(self) -> bool:
        """Whether the last check succeeded."""
        return self._failing_since_s is None

    @property
    def latch_data(self) -> bytes:
        """What this process's latch says."""
        return READY if self.reached else NOT_READY

    def failing_s(self) -> float:
        """Return for how long the directory has not been reached."""
        return 0.0 if self._failing_since_s is None else asyncio.get_running_loop().time() - self._failing_since_s

    async def run(self) -> None:
        """Check periodically, until cancelled. A check that hangs is not followed by another one."""
        pending: asyncio.Task[str | None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(CHECK_S)
                begun_s = asyncio.get_running_loop().time()
                pending = pending or tasks.create_task(self._find_problem(), name="storage-check")
                done, _ = await asyncio.wait((pending,), timeout=CHECK_LIMIT_S)
                if done:
                    self._update(pending.result(), begun_s)
                    pending = None
                else:
                    self._update(f"high-availability.storageDir did not answer within {CHECK_LIMIT_S:g} s", begun_s)

    async def _find_problem(self) -> str | None:
        try:
            await self._check()
        except FlintlockError as error:
            return error.public
        return None

    def _update(self, problem: str | None, begun_s: float) -> None:
        if (problem is None) == self.reached:
            return
        self._failing_since_s = None if problem is None else begun_s
        if problem is None:
            log.info(log_events.STORAGE_REACHED_AGAIN)
        else:
            log.warning(log_events.STORAGE_NOT_REACHED, reason=problem)
        self.changed.set()
        self.changed = asyncio.Event()
        self.on_change()

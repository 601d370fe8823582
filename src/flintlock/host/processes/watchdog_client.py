"""A TaskManager's side of its watchdog: starts it, sends it the deadline of all work, replaces it when it has ended.

A watchdog that does not acknowledge a deadline within some seconds is stopped or stuck: it is killed, and another one
is started and gets the same deadline. It is killed *before* its pipe closes, because a watchdog whose pipe closes kills
the engine.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from flintlock.host.processes.watchdog import DEADLINE, DeadlineReader
from flintlock.model import log_events

log = structlog.get_logger()

#: How long a watchdog may take to acknowledge a deadline, and one that has just been started.
ACKNOWLEDGE_S: Final = 3.0
START_S: Final = 20.0

#: The pause before a watchdog is replaced, and how long one may take to exit when its pipe is closed.
RETRY_S: Final = 0.2
EXIT_S: Final = 10.0


@asynccontextmanager
async def running_watchdog(run_dir: Path, tag: str) -> AsyncGenerator[WatchdogClient]:
    """Keep a watchdog running; on exit it has ended, and so has everything that is recorded in the run directory."""
    client = WatchdogClient(run_dir, tag)
    async with asyncio.TaskGroup() as tasks:
        supervision = tasks.create_task(client.supervise(), name="watchdog")
        try:
            yield client
        finally:
            supervision.cancel()


class WatchdogClient:
    """Sends deadlines to the watchdog; see `running_watchdog`."""

    def __init__(self, run_dir: Path, tag: str) -> None:
        self._run_dir: Final = run_dir
        self._tag: Final = tag
        self._deadline_s = math.inf  # written by watch
        self._commands: asyncio.StreamWriter | None = None  # while there is a watchdog
        # As long; set to expire while an acknowledgement is outstanding. Not one `asyncio.timeout` for each deadline:
        # they are sent outside the task that reads, which is the one to interrupt.
        self._acknowledgement: asyncio.Timeout | None = None
        self.pid: int | None = None  # as long

    def watch(self, until_s: float) -> None:
        """Have everything killed at this time (of `boot_time_s`), unless a later call replaces it. Infinity: never."""
        self._deadline_s = until_s
        self._send(ACKNOWLEDGE_S)

    async def supervise(self) -> None:
        """Keep one running; ends only when cancelled."""
        while True:
            try:
                reason = await self._run_one()
            except OSError as error:
                reason = str(error)
            log.warning(log_events.WATCHDOG_REPLACED, reason=reason)
            await asyncio.sleep(RETRY_S)

    async def _run_one(self) -> str:
        """Start a watchdog and read its acknowledgements; return why it has to be replaced."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "flintlock.host.processes.watchdog",
            str(self._run_dir), self._tag, str(os.getpid()),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        by_force = True
        try:
            return await self._read(process)
        except asyncio.CancelledError:
            by_force = False
            raise
        finally:
            self._commands = self._acknowledgement = self.pid = None
            await _end(process, by_force=by_force)

    async def _read(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        deadlines = DeadlineReader()
        try:
            async with asyncio.timeout(None) as acknowledgement:
                self._commands, self._acknowledgement, self.pid = process.stdin, acknowledgement, process.pid
                self._send(START_S)
                while data := await process.stdout.read(1 << 16):
                    if deadlines.feed(data) == self._deadline_s:
                        acknowledgement.reschedule(None)
        except TimeoutError:
            return "it does not answer"
        return "it has ended"

    def _send(self, timeout_s: float) -> None:
        if self._commands is None or self._acknowledgement is None or self._acknowledgement.expired():
            return
        self._commands.write(DEADLINE.pack(self._deadline_s))
        if self._acknowledgement.when() is None:
            self._acknowledgement.reschedule(asyncio.get_running_loop().time() + timeout_s)


async def _end(process: asyncio.subprocess.Process, *, by_force: bool) -> None:
    """Return when it has ended: by SIGKILL, or because its pipe is closed."""
    if by_force:
        with suppress(ProcessLookupError):
            process.kill()
    elif process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(EXIT_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

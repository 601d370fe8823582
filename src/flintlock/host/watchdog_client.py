"""A TaskManager's side of its watchdog: started with it, told until when work may go on, replaced when it is gone.

A watchdog that does not repeat what it was told within some seconds is stopped or stuck: it is killed, and another is
started and told the same. It is killed *before* its pipe closes, because one that hears the pipe close ends the engine.
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

from flintlock.host.watchdog import MOMENT, Moments
from flintlock.model import log_events

log = structlog.get_logger()

#: How long a watchdog may take to answer, and one that has just been started.
ANSWER_S: Final = 3.0
START_S: Final = 20.0

#: How long is waited before a watchdog is replaced, and for one to end when its pipe is closed.
RETRY_S: Final = 0.2
END_S: Final = 10.0


@asynccontextmanager
async def running_watchdog(run_dir: Path, mark: str) -> AsyncGenerator[WatchdogClient]:
    """Keep a watchdog running; on exit it is gone, and so is everything in the run directory that was left to it."""
    keeper = WatchdogClient(run_dir, mark)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keeper.keep(), name="watchdog")
        try:
            yield keeper
        finally:
            keeping.cancel()


class WatchdogClient:
    """Tells the watchdog; see `running_watchdog`."""

    def __init__(self, run_dir: Path, mark: str) -> None:
        self._run_dir: Final = run_dir
        self._mark: Final = mark
        self._kill_at_s = math.inf  # written by watch
        self._commands: asyncio.StreamWriter | None = None  # while there is a watchdog
        self._patience: asyncio.Timeout | None = None  # as long; set to end while an answer is waited for
        self.pid: int | None = None  # as long

    def watch(self, kill_at_s: float) -> None:
        """Have everything killed at this moment (of `boot_time_s`), unless told otherwise before. Infinity: never."""
        self._kill_at_s = kill_at_s
        self._say(ANSWER_S)

    async def keep(self) -> None:
        """Keep one running; ends only when cancelled."""
        while True:
            try:
                reason = await self._life_of_one()
            except OSError as error:
                reason = str(error)
            log.warning(log_events.WATCHDOG_REPLACED, reason=reason)
            await asyncio.sleep(RETRY_S)

    async def _life_of_one(self) -> str:
        """Start one and hear it; return why it is no longer of use."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "flintlock.host.watchdog", str(self._run_dir), self._mark, str(os.getpid()),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        useless = True
        try:
            return await self._hear(process)
        except asyncio.CancelledError:
            useless = False
            raise
        finally:
            self._commands = self._patience = self.pid = None
            await _ended(process, useless=useless)

    async def _hear(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        moments = Moments()
        try:
            async with asyncio.timeout(None) as patience:
                self._commands, self._patience, self.pid = process.stdin, patience, process.pid
                self._say(START_S)
                while data := await process.stdout.read(1 << 16):
                    if moments.feed(data) == self._kill_at_s:
                        patience.reschedule(None)
        except TimeoutError:
            return "it does not answer"
        return "it has ended"

    def _say(self, patience_s: float) -> None:
        if self._commands is None or self._patience is None or self._patience.expired():
            return
        self._commands.write(MOMENT.pack(self._kill_at_s))
        if self._patience.when() is None:
            self._patience.reschedule(asyncio.get_running_loop().time() + patience_s)


async def _ended(process: asyncio.subprocess.Process, *, useless: bool) -> None:
    """Return when it is gone: a useless one by force, another by the end of its pipe."""
    if useless:
        with suppress(ProcessLookupError):
            process.kill()
    elif process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

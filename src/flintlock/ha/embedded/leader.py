"""Where the leader is, in the embedded store: a row that the leader writes and other processes read.

The row outlives its leader until the next one begins: the lock decides which process leads, the row only says where it
listens. A reader that cannot connect there waits for the row to change. Readers poll it, as standbys poll the lock.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Final

import structlog

from flintlock.ha.embedded.stores import StoreFile, check_token
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.payloads import LEADER_INFO
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, Incompatible, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)


class SqliteLeaderRegister:
    """A LeaderRegister in the embedded store."""

    def __init__(self, file: StoreFile, poll_s: float) -> None:
        self._file: Final = file
        self._poll_s: Final = poll_s

    async def publish(self, info: LeaderInfo) -> None:
        """Publish where the leader listens."""
        payload = LEADER_INFO.encode(info)

        def work(connection: sqlite3.Connection) -> None:
            check_token(connection, info.token)
            connection.execute("INSERT OR REPLACE INTO leader_info VALUES (1, ?)", (payload,))

        await self._file.writer.write(work)

    async def current(self) -> LeaderInfo | None:
        """Return what the leader published last."""
        rows = await self._file.rows("SELECT payload FROM leader_info")
        try:
            return LEADER_INFO.decode(rows[0][0], "the leader") if rows else None
        except (Corrupt, Incompatible) as error:
            log.warning(log_events.RECORD_UNREADABLE, reason=error.public)
            return None

    async def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then each change."""
        yielded: list[LeaderInfo | None] = []  # the last one, if there was one
        problem = RepeatedFailure()
        while True:
            try:
                info = await self.current()
                problem.ended()
                if yielded != [info]:
                    yielded = [info]
                    yield info
            except Unavailable as error:
                if problem.occurred(error.public, asyncio.get_running_loop().time()):
                    log.warning(log_events.LEADER_UNREADABLE, reason=error.public)
            await asyncio.sleep(self._poll_s)

    async def declare_dead(self, dead: FencingToken) -> bool:  # noqa: ARG002  # a Protocol's
        """Do nothing: the kernel has released the lock of a dead process, and nothing else is in the way."""
        return False

"""Where the leader is, in the embedded store: a row that the leader writes and the others read.

The row outlives its leader until the next one begins: the lock file says who leads, this only where to find it. Whoever
finds nobody there waits for the row to change. Readers look every so often, as standbys look at the lock.
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
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)


class SqliteLeaderRegister:
    """A LeaderRegister in the embedded store."""

    def __init__(self, file: StoreFile, poll_s: float) -> None:
        self._file: Final = file
        self._poll_s: Final = poll_s

    async def publish(self, info: LeaderInfo) -> None:
        """Tell where the leader listens."""
        payload = LEADER_INFO.encode(info)

        def work(connection: sqlite3.Connection) -> None:
            check_token(connection, info.token)
            connection.execute("INSERT OR REPLACE INTO leader_info VALUES (1, ?)", (payload,))

        await self._file.writer.write(work)

    async def current(self) -> LeaderInfo | None:
        """Return what the leader told last."""
        rows = await self._file.rows("SELECT payload FROM leader_info")
        try:
            return LEADER_INFO.decode(rows[0][0], "the leader") if rows else None
        except (Corrupt, Incompatible) as error:
            log.warning(log_events.RECORD_UNREADABLE, reason=error.public)
            return None

    async def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then each change."""
        told: list[LeaderInfo | None] = []  # what was yielded last, if anything was
        while True:
            try:
                info = await self.current()
                if told != [info]:
                    told = [info]
                    yield info
            except Unavailable as error:
                log.warning(log_events.LEADER_UNREADABLE, reason=error.public)
            await asyncio.sleep(self._poll_s)

    async def declare_dead(self, dead: FencingToken) -> bool:  # noqa: ARG002  # whoever it was
        """Do nothing: the kernel has given the lock of a dead process back, and nothing else is in the way."""
        return False

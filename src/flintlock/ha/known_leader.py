"""What a process has heard of the leader."""

from __future__ import annotations

import asyncio

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.protocols import LeaderRetrieval


class KnownLeader:
    """What one process has heard last, for those who must not wait for an answer. `follow` keeps it current."""

    def __init__(self) -> None:
        self._told: LeaderInfo | None = None  # written by `hear`
        self._news = asyncio.Event()  # set, and replaced, with each change

    @property
    def told(self) -> LeaderInfo | None:
        """Whoever leads, ready or not; it may have died meanwhile."""
        return self._told

    @property
    def serving(self) -> LeaderInfo | None:
        """Whoever leads and is ready to serve; it may have died meanwhile."""
        return self._told if self._told is not None and self._told.confirmed else None

    def hear(self, told: LeaderInfo | None) -> None:
        """Take note of what was told."""
        if told != self._told:
            self._told = told
            self._news.set()
            self._news = asyncio.Event()

    async def changed(self, seen: LeaderInfo | None) -> LeaderInfo | None:
        """Wait until something else is told than `seen`; return it."""
        while self._told == seen:
            await self._news.wait()
        return self._told

    async def follow(self, source: LeaderRetrieval) -> None:
        """Hear what is told until cancelled."""
        async for told in source.changes():
            self.hear(told)

"""Answers of the leader, kept for a moment: what everybody asks all the time need not be asked for everybody.

A copy is never older than `OLDEST_S` when it is given away, counted from the moment the leader was asked. It belongs to
one epoch: when somebody else leads it is gone. Whoever has changed something through this JobManager sees it in the
next answer: a change that was passed on makes all copies old, those too that are just being fetched.

Rejected: fetching ahead, by a clock. A standby that nobody asks has nothing to fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.errors import Unavailable

OLDEST_S: Final = 0.5


class Copy(Struct, frozen=True, kw_only=True):
    """An answer of the leader's."""

    leader: LeaderInfo
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    asked_s: float


Fetch: TypeAlias = Callable[[], Awaitable[Copy]]
_Key: TypeAlias = tuple[str, LeaderInfo, int]


class Copies:
    """The copies of one JobManager, by path."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s: Final = clock_s
        self._kept: Final[dict[str, Copy]] = {}  # the newest of each path
        self._fetches: Final[dict[_Key, asyncio.Future[Copy]]] = {}  # under way; many may wait for one
        self._changes = 0  # how often `outdate` was called

    def outdate(self) -> None:
        """Make all copies old: something was changed through this JobManager."""
        self._changes += 1
        self._kept.clear()

    async def get(self, path: str, leader: LeaderInfo, fetch: Fetch) -> Copy:
        """Return a copy that is young enough; `fetch` makes one. Raises what `fetch` raises, to all who wait for it."""
        kept = self._kept.get(path)
        if kept is not None and kept.leader == leader and self._clock_s() - kept.asked_s <= OLDEST_S:
            return kept
        key = (path, leader, self._changes)
        under_way = self._fetches.get(key)
        if under_way is not None:
            return await asyncio.shield(under_way)
        return await self._fetched(key, fetch)

    def age_s(self, copy: Copy) -> float:
        """Return how old a copy is."""
        return self._clock_s() - copy.asked_s

    async def _fetched(self, key: _Key, fetch: Fetch) -> Copy:
        done: asyncio.Future[Copy] = asyncio.get_running_loop().create_future()
        self._fetches[key] = done
        try:
            copy = await fetch()
        except BaseException as error:
            told = error if isinstance(error, Exception) else Unavailable("whoever asked has left; ask again")
            done.set_exception(told)
            done.exception()  # often nobody else waits: that is no error of its own
            raise
        finally:
            del self._fetches[key]
        done.set_result(copy)
        if key[2] == self._changes and copy.status == 200:
            self._kept[key[0]] = copy
        return copy

"""How a TaskManager learns where the leader listens. Each HA backend provides a `LeaderFinder`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from flintlock.ha.leader_info import KnownLeader
from flintlock.ha.protocols import LeaderRetrieval
from flintlock.model.errors import Unavailable


class LeaderFinder:
    """Finds the leader's RPC address. `find` raises Unavailable while no leader is known.

    `wait_for_change` returns when `find` may give another answer than before.
    """

    def __init__(self, find: Callable[[], str], wait_for_change: Callable[[], Awaitable[object]]) -> None:
        self.find: Final = find
        self._wait_for_change: Final = wait_for_change
        self._followed = ""  # the address that `follow` returned last

    def follow(self) -> str:
        """Return the leader's address; from now on `moved` waits for another one. Raises Unavailable."""
        self._followed = self.find()
        return self._followed

    async def moved(self) -> None:
        """Return when the leader's address differs from the one that `follow` returned; at once if it returned none."""
        while True:
            with suppress(Unavailable):
                if self.find() != self._followed:
                    return
            await self._wait_for_change()


@asynccontextmanager
async def following_register(retrieval: LeaderRetrieval, register: str) -> AsyncGenerator[LeaderFinder]:
    """Provide a finder that follows a leader register while the context lasts. `register` names it in errors."""
    known = KnownLeader()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(known.follow(retrieval.changes()), name="known-leader")
        try:
            yield finder_of(known, register)
        finally:
            following.cancel()


def finder_of(known: KnownLeader, register: str) -> LeaderFinder:
    """Return a finder that answers from what the process knows of the leader register."""

    def find() -> str:
        leader = known.serving
        if leader is None:
            raise Unavailable(f"{register} names no JobManager that leads and is ready")
        return leader.rpc

    return LeaderFinder(find, lambda: known.changed(known.latest))

"""How a TaskManager finds whoever leads: through ZooKeeper where that is configured, else by the state directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from flintlock.config.configuration import Configuration
from flintlock.config.options import JM_RPC_ADDRESS, JM_RPC_PORT
from flintlock.entrypoints.process import Settings
from flintlock.ha.leader_info import KnownLeader
from flintlock.ha.zookeeper.settings import leader_retrieval, uses_zookeeper
from flintlock.host.pid_files import job_managers
from flintlock.model.errors import Unavailable

_LOOK_S: Final = 0.2


class LeaderFinder:
    """Tells where the leader listens, as far as is known; `look` raises Unavailable while nobody is known to lead.

    `news` returns when it is worth while to look again.
    """

    def __init__(self, look: Callable[[], str], news: Callable[[], Awaitable[object]]) -> None:
        self.look: Final = look
        self._news: Final = news
        self._followed = ""  # whom `follow` gave last

    def follow(self) -> str:
        """Return where the leader listens, and from now on wait in `moved` for another. Raises Unavailable."""
        self._followed = self.look()
        return self._followed

    async def moved(self) -> None:
        """Return when somebody leads at another address than `follow` gave last; at once if it gave none yet."""
        while True:
            with suppress(Unavailable):
                if self.look() != self._followed:
                    return
            await self._news()


@asynccontextmanager
async def leader_finder(settings: Settings) -> AsyncGenerator[LeaderFinder]:
    """Give what finds the leader of this process's cluster while the context lasts.

    Raises Invalid if ZooKeeper is configured without a quorum, Unavailable if that cannot be reached.
    """
    configuration = settings.configuration
    if not uses_zookeeper(configuration):
        look = by_state_directory(configuration, settings.state_dir)
        yield LeaderFinder(look, lambda: asyncio.sleep(_LOOK_S))
        return
    known = KnownLeader()
    async with leader_retrieval(configuration) as retrieval, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(known.follow(retrieval.changes()), name="known-leader")
        try:
            yield LeaderFinder(lambda: told_by_zookeeper(known), lambda: known.changed(known.latest))
        finally:
            following.cancel()


def told_by_zookeeper(known: KnownLeader) -> str:
    """Return where the leader listens that ZooKeeper tells of. Raises Unavailable if it tells of none that serves."""
    leader = known.serving
    if leader is None:
        raise Unavailable("ZooKeeper tells of no JobManager that leads and is ready")
    return leader.rpc


def by_state_directory(configuration: Configuration, state_dir: Path) -> Callable[[], str]:
    """Return how to find the leader of an embedded cluster: where it is configured to be, or where its files say.

    A configured port is the first JobManager's. On its host another one may lead, at a port of its own: that one
    counts while the state directory tells of it and its process runs.
    """

    def look() -> str:
        address, port = configuration.get(JM_RPC_ADDRESS), configuration.get(JM_RPC_PORT)
        if port:
            leader = next((file for file in job_managers(state_dir) if file.epoch), None)
            beside = leader is not None and leader.rpc.rpartition(":")[0] == address
            return leader.rpc if leader is not None and beside else f"{address}:{port}"
        try:
            return str(msgspec.json.decode((state_dir / "cluster.json").read_bytes())["rpc"])
        except (OSError, msgspec.DecodeError, KeyError) as error:
            raise Unavailable(f"no JobManager is known in {state_dir}") from error

    return look

"""High availability of a simulated process: the real election over a fake ZooKeeper, records in memory.

The stores refuse a leader that was succeeded as soon as the ensemble has the new epoch, as transactions that check its
znode do. The caller's `TermStep` decides how a store is reached: it may delay, crash, or wait through a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, TypeVar

from flintlock.ha.leader_finding import LeaderFinder, finder_of
from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.ha.payloads import LEADER_INFO
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.election import LatchElection
from flintlock.ha.zookeeper.leader import ZooKeeperLeaderRegister, ZooKeeperLeaderRetrieval
from flintlock.ha.zookeeper.operations import Create
from flintlock.ha.zookeeper.storage.storage_health import StorageHealth
from flintlock.ha.zookeeper.writer import FencedWriter
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import Epoch, FencingToken
from flintlock.rpc.transport import DEFAULT_TIMEOUT_S, Fence, TokenSource, Withdraw
from flintlock.testing.fakes.fake_zookeeper import FakeEnsemble, FakeLink
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryStores, remove_all_records
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess

G = TypeVar("G")
TermStep: TypeAlias = Callable[[FencingToken, str], Awaitable[None]]
"""Awaited before and after each operation of a store, with the term that it belongs to and its name."""

_PATHS: Final = tree.Tree("/flintlock", "simulated")


class DurableCluster:
    """All that outlives every process: the ensemble, and the records."""

    def __init__(self, network: SimulatedNetwork, session_timeout_s: float) -> None:
        self.records: Final = MemoryCluster()
        self.ensemble: Final = FakeEnsemble(network, session_timeout_s)
        self.ensemble.on_change = self._on_change
        self.on_term: Callable[[FencingToken], None] = lambda _: None  # called as each term begins
        self.ensemble.ensure(_PATHS.latches)
        no_leader = tree.EpochRecord(epoch=Epoch(0), session="")
        self.ensemble.transact((Create(_PATHS.epoch, tree.EPOCH.encode(no_leader)),), 0)

    @property
    def token(self) -> FencingToken:
        """The token of the newest term that has begun."""
        return self.records.token

    def leader_info(self) -> LeaderInfo | None:
        """Return what the leader has published."""
        node = self.ensemble.get(_PATHS.leader)
        return None if node is None else LEADER_INFO.decode(node.data, "the leader")

    def _on_change(self, path: str, data: bytes) -> None:
        if path == _PATHS.epoch:
            self.records.token = tree.EPOCH.decode(data, "the cluster").token
            self.on_term(self.token)


class SimulatedHa:
    """HaServices of one JobManager process. Its link runs as a task of that process."""

    def __init__(
        self,
        durable: DurableCluster,
        process: SimulatedProcess,
        step: TermStep,
        storage: StorageHealth | None = None,
    ) -> None:
        self._durable: Final = durable
        self._step: Final = step
        link = FakeLink(durable.ensemble, process)
        process.spawn(link.run(), "zookeeper-link")
        if storage is not None:
            process.spawn(storage.run(), "storage-health")
        self.election: Final = LatchElection(
            link=link,
            paths=_PATHS,
            new_session=lambda: f"{process.name}/{link.session}",
            clock_s=asyncio.get_running_loop().time,
            storage_health=storage,
        )
        self.leader: Final = ZooKeeperLeaderRegister(link, _PATHS, FencedWriter(link, _PATHS, self.election.guard))
        self.leader_timeout_s: Final = durable.ensemble.timeout_s
        self.standstill_limit_s: Final = self.leader_timeout_s
        self.link: Final = link
        self.blobs: Final = None
        self.blocking_jobs: Final = None

    def stores(self, token: FencingToken) -> MemoryStores:
        """Return the stores bound to a term."""
        return MemoryStores(self._durable.records, token, partial(self._step, token))

    async def cleanup_all_data(self, token: FencingToken) -> None:
        """Remove every record."""
        await remove_all_records(self._durable.records, token, partial(self._step, token))

    async def declare_dead(self, dead: FencingToken) -> None:
        """Declare this leader dead, if the ensemble can be reached."""
        try:
            await self.leader.declare_dead(dead)
        except FlintlockError:
            return


def leader_finder(durable: DurableCluster, process: SimulatedProcess) -> LeaderFinder:
    """Return a finder for a process that only follows: it knows the leader that the ensemble last reported."""
    link, known = FakeLink(durable.ensemble, process), KnownLeader()
    process.spawn(link.run(), "zookeeper-link")
    process.spawn(known.follow(ZooKeeperLeaderRetrieval(link, _PATHS).changes()), "known-leader")
    return finder_of(known, "ZooKeeper")


class TermProcess:
    """The Host and Connector of one term. `on_action` is called for each call that it answers or sends."""

    def __init__(self, process: SimulatedProcess, on_action: Callable[[str], None]) -> None:
        self._process: Final = process
        self._on_action: Final = on_action

    @property
    def address(self) -> str:
        """Where others find it."""
        return self._process.address

    def serve(self, gateway: type[G], implementation: G, fence: Fence | None = None) -> Withdraw:
        """See `rpc.transport.Host.serve`."""

        def check(token: FencingToken | None) -> None:
            if fence is not None:
                fence(token)
            self._on_action(f"answered a call of {gateway.__name__}")

        return self._process.serve(gateway, implementation, check)

    def connect(
        self, gateway: type[G], address: str, token: TokenSource | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> G:
        """See `rpc.transport.Connector.connect`."""

        def checked() -> FencingToken | None:
            self._on_action(f"called {gateway.__name__} at {address}")
            return None if token is None else token()

        return self._process.connect(gateway, address, checked, timeout_s)

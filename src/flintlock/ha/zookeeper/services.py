"""HA services in ZooKeeper: JobManagers on several hosts, one ensemble, one storage directory.

ZooKeeper holds the election and small pointers (`tree`); payloads are files under the storage directory
(`payload_files`), which every JobManager must reach. `link` is the connection, `election` the election, `writer` the
fence that every write passes; `jobs` and `records` are the stores, `blobs` the copies of blobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.blocking_jobs import ZooKeeperBlockingJobs
from flintlock.ha.zookeeper.cleanup import Cleaner
from flintlock.ha.zookeeper.election import LatchElection
from flintlock.ha.zookeeper.leader import ZooKeeperLeaderRegister, ZooKeeperLeaderRetrieval
from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.ha.zookeeper.operations import Create
from flintlock.ha.zookeeper.records import ZooKeeperStores
from flintlock.ha.zookeeper.security import UNPROTECTED, ZooKeeperSecurity
from flintlock.ha.zookeeper.storage.blobs import ZooKeeperBlobCopies
from flintlock.ha.zookeeper.storage.payload_files import PayloadFiles, payload_files
from flintlock.ha.zookeeper.storage.storage_health import StorageHealth
from flintlock.ha.zookeeper.storage.sweep import Sweeper, sweep_later
from flintlock.ha.zookeeper.writer import FencedWriter, Storage, read_epoch
from flintlock.model.errors import Corrupt
from flintlock.model.ids import Epoch, FencingToken


class ZooKeeperHaServices:
    """Election and stores of one cluster, as long as `zookeeper_ha` is open."""

    def __init__(self, storage: Storage, election: LatchElection) -> None:
        self._storage: Final = storage
        self.election: Final = election
        self.leader: Final = ZooKeeperLeaderRegister(storage.link, storage.paths, storage.writer)
        self.blobs: Final = ZooKeeperBlobCopies(storage, lambda: election.leading)
        self.blocking_jobs: Final = ZooKeeperBlockingJobs(storage.link, storage.paths.blocking_jobs)

    @property
    def leader_timeout_s(self) -> float:
        """The session timeout that the ensemble has granted."""
        return self._storage.link.timeout_s

    @property
    def standstill_limit_s(self) -> float:
        """The same: the threads of ZooKeeper's client keep the session alive, whatever the loop does."""
        return self.leader_timeout_s

    @property
    def link(self) -> ZooKeeperLink:
        """The connection."""
        return self._storage.link

    async def sweep(self, token: FencingToken) -> int:
        """Remove payloads of older epochs that nothing points to; return how many. A term does so by itself, later."""
        return await Sweeper(self._storage, token).sweep()

    def stores(self, token: FencingToken) -> ZooKeeperStores:
        """Return the stores bound to a term."""
        return ZooKeeperStores(self._storage, token)

    async def cleanup_all_data(self, token: FencingToken) -> None:
        """Remove all pointers, then all payloads."""
        await Cleaner(self._storage, token).remove_all()


@asynccontextmanager
async def zookeeper_ha(
    quorum: str,
    *,
    root: str,
    cluster_id: str,
    storage_dir: str,
    session_timeout_s: float,
    connection_timeout_s: float,
    new_session: Callable[[], str],
    clock_s: Callable[[], float],
    security: ZooKeeperSecurity = UNPROTECTED,
) -> AsyncGenerator[ZooKeeperHaServices]:
    """Connect to the ensemble and create what does not exist yet; on exit the session ends, and with it leadership.

    `clock_s` only grows and runs while the machine sleeps. Raises Refused for settings that cannot be used,
    Incompatible if a newer version has led this cluster, Unavailable for an ensemble or a storage directory that cannot
    be reached now.
    """
    files = payload_files(storage_dir, cluster_id)
    link = ZooKeeperLink(
        quorum,
        session_timeout_s=session_timeout_s,
        connection_timeout_s=connection_timeout_s,
        clock_s=clock_s,
        security=security,
    )
    try:
        await link.open()
        paths = tree.Tree(root, cluster_id)
        await link.ensure(paths.latches)
        await link.ensure(paths.blocking_jobs)
        await link.close_znodes(paths.base)
        initial = tree.EpochRecord(epoch=Epoch(0), session="")
        await link.transact([Create(paths.epoch, tree.EPOCH.encode(initial))])  # refused if it exists
        with suppress(Corrupt):  # its election reports it; Incompatible: the cluster has been led by a newer version
            await read_epoch(link, paths)
        await _open_storage(link, paths, files)
        health = StorageHealth(files.check_readable, files.check_writable)
        election = LatchElection(
            link=link,
            paths=paths,
            new_session=new_session,
            clock_s=clock_s,
            chores=lambda token: sweep_later(storage, token),
            storage_health=health,
        )
        storage: Storage = Storage(link, paths, files, FencedWriter(link, paths, election.guard))
        failure: Exception | None = None  # the body's own: it is raised as it is, not in the TaskGroup's group
        async with asyncio.TaskGroup() as tasks:
            checking = tasks.create_task(health.run(), name="storage-health")
            try:
                yield ZooKeeperHaServices(storage, election)
            except Exception as error:  # noqa: BLE001  # raised again below
                failure = error
            finally:
                checking.cancel()
        if failure is not None:
            raise failure
    finally:
        await link.close()
        await files.close()


@asynccontextmanager
async def zookeeper_leader(
    quorum: str,
    *,
    root: str,
    cluster_id: str,
    session_timeout_s: float,
    connection_timeout_s: float,
    clock_s: Callable[[], float],
    security: ZooKeeperSecurity = UNPROTECTED,
) -> AsyncGenerator[ZooKeeperLeaderRetrieval]:
    """Connect to the ensemble to read which process leads; nothing is written. Raises as `zookeeper_ha` does."""
    link = ZooKeeperLink(
        quorum,
        session_timeout_s=session_timeout_s,
        connection_timeout_s=connection_timeout_s,
        clock_s=clock_s,
        security=security,
    )
    try:
        await link.open()
        yield ZooKeeperLeaderRetrieval(link, tree.Tree(root, cluster_id))
    finally:
        await link.close()


async def _open_storage(link: ZooKeeperLink, paths: tree.Tree, files: PayloadFiles) -> None:
    """Make sure that the storage directory is the cluster's: its first JobManager marks it, the others check that.

    If two are first at the same time, the marker that ZooKeeper names counts.
    """
    node = await link.get(paths.storage)
    if node is None:
        await files.claim()
        own = files.marker
        if await link.transact([Create(paths.storage, own.encode())]) is None:
            return
        await files.discard([own])
        node = await link.get(paths.storage)
    files.marker = "" if node is None else node.data.decode("ascii", "replace")
    await files.check_directory()
    await files.prepare()

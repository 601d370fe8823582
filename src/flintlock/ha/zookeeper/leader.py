"""Where the leader is, in ZooKeeper: an ephemeral znode, which goes with the leader's session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import structlog

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.payloads import LEADER_INFO
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.kazoo_client import reading
from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.ha.zookeeper.operations import Check, Create, Delete, Op, SetData
from flintlock.ha.zookeeper.security import UNPROTECTED, ZooKeeperSecurity
from flintlock.ha.zookeeper.writer import FencedWriter, read_epoch
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, Incompatible, Unavailable
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)

#: The pause before a store that did not answer is read again.
_RETRY_S: Final = 0.1


class ZooKeeperLeaderRetrieval:
    """A LeaderRetrieval in ZooKeeper: it only reads."""

    def __init__(self, link: ZooKeeperLink, paths: tree.Tree) -> None:
        self._link: Final = link
        self._paths: Final = paths

    async def current(self) -> LeaderInfo | None:
        """Return what the leader published last."""
        node = await self._link.get(self._paths.leader)
        return None if node is None else _decoded(node.data)

    async def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then each change."""
        yielded: list[LeaderInfo | None] = []  # the last one, if there was one
        while True:
            changed = asyncio.Event()
            try:
                node = await self._link.get_watched(self._paths.leader, changed)
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
                await self._link.connected()
                continue
            info = None if node is None else _decoded(node.data)
            if yielded != [info]:
                yielded = [info]
                yield info
            await changed.wait()


class ZooKeeperLeaderRegister(ZooKeeperLeaderRetrieval):
    """A LeaderRegister in ZooKeeper."""

    def __init__(self, link: ZooKeeperLink, paths: tree.Tree, writer: FencedWriter) -> None:
        super().__init__(link, paths)
        self._writer: Final = writer

    async def publish(self, info: LeaderInfo) -> None:
        """Publish where the leader listens."""
        path, data = self._paths.leader, LEADER_INFO.encode(info)
        while True:
            node = await self._link.get(path)
            known = None if node is None else _decoded(node.data)
            if node is None:
                ops: tuple[Op, ...] = (Create(path, data, ephemeral=True),)
            elif known is not None and known.token == info.token:
                ops = (SetData(path, data, node.version),)
            else:  # of a leader whose session has not expired yet: it must not be removed with that session
                ops = (Delete(path, node.version), Create(path, data, ephemeral=True))
            if await self._writer.attempt(info.token, ops) is None:
                return

    async def declare_dead(self, dead: FencingToken) -> bool:
        """Remove the dead leader's latch, and what it published."""
        paths = self._paths
        while True:
            record, version = await read_epoch(self._link, paths)
            latch = f"{paths.latches}/{record.latch}"
            if record.token != dead or not record.latch or not await self._link.exists(latch):
                return False
            ops: list[Op] = [Check(paths.epoch, version), Delete(latch)]
            if await self._link.exists(paths.leader):
                ops.append(Delete(paths.leader))
            if await self._link.transact(ops) is None:  # else something changed meanwhile: read again
                log.warning(log_events.LEADER_REMOVED, epoch=dead.epoch)
                return True


def serving_leader(
    quorum: str,
    paths: tree.Tree,
    *,
    connect_s: float,
    wait_s: float,
    former: str = "",
    security: ZooKeeperSecurity = UNPROTECTED,
) -> LeaderInfo | None:
    """Return the leader that is ready to serve, without an event loop; None if after `wait_s` there is none.

    One at the REST address `former` is returned only then: it may have died.

    Raises Unavailable if the ensemble cannot be reached within `connect_s`, Refused for a quorum that cannot be parsed.
    """
    with reading(quorum, connect_s, security) as read:
        deadline_s = time.monotonic() + wait_s
        while True:
            data, leader = read(paths.leader), None
            with suppress(Corrupt):
                leader = None if data is None else LEADER_INFO.decode(data, "the leader")
            serving = leader if leader is not None and leader.confirmed else None
            if (serving is not None and serving.rest != former) or time.monotonic() >= deadline_s:
                return serving
            time.sleep(_RETRY_S)  # noqa: TID251  # for clients, which have no event loop


def _decoded(data: bytes) -> LeaderInfo | None:
    try:
        return LEADER_INFO.decode(data, "the leader")
    except (Corrupt, Incompatible) as error:
        log.warning(log_events.RECORD_UNREADABLE, reason=error.public)
        return None

"""Where the leader is, in ZooKeeper: an ephemeral znode, which goes with the leader's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import structlog

from flintlock.ha import zookeeper_tree as tree
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.payloads import LEADER_INFO
from flintlock.ha.zookeeper_link import Check, Create, Delete, Node, Op, SetData, ZooKeeperLink
from flintlock.ha.zookeeper_writer import FencedWriter, read_epoch
from flintlock.model.errors import Corrupt, Incompatible, Unavailable
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)

#: How long a reader waits before it asks again a store that did not answer.
_AGAIN_S: Final = 0.1


class ZooKeeperLeaderRetrieval:
    """A LeaderRetrieval in ZooKeeper."""

    def __init__(self, link: ZooKeeperLink, paths: tree.Tree, writer: FencedWriter) -> None:
        self._link: Final = link
        self._paths: Final = paths
        self._writer: Final = writer

    async def publish(self, info: LeaderInfo) -> None:
        """Tell where the leader listens."""
        path, data = self._paths.leader, LEADER_INFO.encode(info)
        while True:
            node = await self._link.get(path)
            known = None if node is None else _read(node)
            if node is None:
                ops: tuple[Op, ...] = (Create(path, data, ephemeral=True),)
            elif known is not None and known.token == info.token:
                ops = (SetData(path, data, node.version),)
            else:  # of a leader whose session has not expired yet: it must not vanish with that one
                ops = (Delete(path, node.version), Create(path, data, ephemeral=True))
            if await self._writer.attempt(info.token, ops) is None:
                return

    async def current(self) -> LeaderInfo | None:
        """Return what the leader told last."""
        node = await self._link.get(self._paths.leader)
        return None if node is None else _read(node)

    async def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then each change."""
        told: list[LeaderInfo | None] = []  # what was yielded last, if anything was
        while True:
            changed = asyncio.Event()
            try:
                node = await self._link.get_watched(self._paths.leader, changed)
            except Unavailable:
                await asyncio.sleep(_AGAIN_S)
                await self._link.connected()
                continue
            info = None if node is None else _read(node)
            if told != [info]:
                told = [info]
                yield info
            await changed.wait()

    async def bury(self, dead: FencingToken) -> bool:
        """Remove the dead leader's latch, and what it told."""
        paths = self._paths
        record, version = await read_epoch(self._link, paths)
        if record.token != dead or not record.latch:
            return False
        ops: list[Op] = [Check(paths.epoch, version), Delete(f"{paths.latches}/{record.latch}")]
        if await self._link.exists(paths.leader):
            ops.append(Delete(paths.leader))
        buried = await self._link.transact(ops) is None
        log.warning("leader-buried", epoch=dead.epoch, buried=buried)
        return buried


def _read(node: Node) -> LeaderInfo | None:
    try:
        return LEADER_INFO.decode(node.data, "the leader")
    except (Corrupt, Incompatible) as error:
        log.warning("unreadable record left out", reason=error.public)
        return None

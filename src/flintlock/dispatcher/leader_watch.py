"""Every JobManager watches the one that leads, and says so when it is dead: then a standby leads at once.

Dead is whose connection has broken and is then refused for `GRACE_S`, or whose address answers that it is not in that
term, as a process does that was started again. A leader that is frozen, or that a network hides, keeps its term until
its session has expired: nobody can tell the two apart. A wrong guess is harmless (`LeaderRegister.bury`), but must not
be made again and again: a leader of another machine that tells a loopback address is refused there without being dead,
and is not watched. Such a cluster is configured wrongly, and each JobManager says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import structlog

from flintlock.gateways.leader import LeaderGateway, LeaderLiveness
from flintlock.ha.known_leader import KnownLeader
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.protocols import LeaderRegister
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc.attendance import attended

log = structlog.get_logger(__name__)

#: Waits before the question is put again, once the open call has ended.
ASK_AGAIN_S: Final = (0.05, 0.1, 0.1)
GRACE_S: Final = sum(ASK_AGAIN_S)

#: How long to wait before asking again a store that could not be told.
_AGAIN_S: Final = 0.2


class LeaderWatch:
    """Watches whoever leads, unless that is this process. `connect` gives gateways whose calls may stay open.

    `host` is this machine's name.
    """

    def __init__(
        self,
        *,
        known: KnownLeader,
        register: LeaderRegister,
        connect: Callable[[str], LeaderGateway],
        is_own: Callable[[FencingToken], bool],
        host: str,
    ) -> None:
        self._known: Final = known
        self._register: Final = register
        self._connect: Final = connect
        self._is_own: Final = is_own
        self._host: Final = host

    async def run(self) -> None:
        """Watch one leader after another until cancelled."""
        leader = self._known.told
        while True:
            if leader is None or self._is_own(leader.token) or not self._can_be_watched(leader):
                leader = await self._known.changed(leader)
                continue
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(leader), name=f"leader-watch-{leader.token.epoch}")
                leader = await self._succeeded(leader)
                watching.cancel()

    def _can_be_watched(self, leader: LeaderInfo) -> bool:
        if not is_loopback(leader.rpc) or leader.host == self._host:
            return True
        log.warning(
            log_events.LEADER_UNREACHABLE, host=leader.host, told=leader.rpc, reason="it tells a loopback address"
        )
        return False

    async def _succeeded(self, leader: LeaderInfo) -> LeaderInfo | None:
        """Wait until another term is told of, or none; that one is ready to serve is no reason to ask it anew."""
        told: LeaderInfo | None = leader
        while told is not None and (told.token, told.rpc) == (leader.token, leader.rpc):
            told = await self._known.changed(told)
        return told

    async def _watch(self, leader: LeaderInfo) -> None:
        gateway, message = self._connect(leader.rpc), LeaderLiveness(token=leader.token)

        async def ask() -> str | None:
            try:
                await gateway.attend(message)
            except Unavailable as error:
                return f"nothing listens at {leader.rpc}" if error.unreachable else None
            except FlintlockError as error:  # of another version, or no JobManager at all: its session decides
                log.warning(log_events.LEADER_LIVENESS_CHECK_FAILED, leader=leader.rpc, reason=error.public)
                return None
            return f"what listens at {leader.rpc} is not in that term"

        reason = await attended(ask, ASK_AGAIN_S)
        log.warning(log_events.LEADER_DEAD, epoch=leader.token.epoch, reason=reason)
        while True:
            try:
                await self._register.bury(leader.token)
            except FlintlockError as error:
                log.info(log_events.LEADER_REMOVAL_FAILED, epoch=leader.token.epoch, reason=error.public)
                await asyncio.sleep(_AGAIN_S)
            else:
                return


def is_loopback(address: str) -> bool:
    """Tell whether `host:port` can only be connected to on the very machine that listens there."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

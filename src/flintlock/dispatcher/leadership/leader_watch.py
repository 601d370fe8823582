"""Every JobManager watches the leader and declares it dead when it has died, so that a standby leads at once.

A leader is dead if a connection to it has broken and is then refused for `GRACE_S`, or if the process at its address
answers that it does not lead in that term, as one does that was started again. A leader that is frozen, or behind a
partitioned network, keeps its term until its session has expired: the two cannot be distinguished.

So is a leader of an earlier attempt of the same application, at once: YARN has given that up before it has started this
one. It may still run, on a node that is lost, and is fenced then as any other.

A wrong verdict is harmless (`LeaderRegister.declare_dead`) but must not be repeated endlessly. So a closed port alone
proves nothing: a leader that has refused every connection since its term began is not reachable from here (its port is
not published, say), and keeps its term. Otherwise two JobManagers that cannot reach each other would depose each other
in turn. A leader on another machine that advertises a loopback address is not even tried. Such clusters are
misconfigured, and each JobManager logs a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from flintlock.gateways.leader import LeaderGateway, LeaderLivenessProbe, StandbyAddresses
from flintlock.ha.leader_info import ApplicationAttempt, KnownLeader, LeaderInfo
from flintlock.ha.protocols import LeaderRegister
from flintlock.host.addresses import is_loopback_host
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc.liveness import wait_for_verdict

log = structlog.get_logger(__name__)

#: Pauses before the liveness call is repeated, once the open one has ended.
RETRY_DELAYS_S: Final = (0.05, 0.1, 0.1)
GRACE_S: Final = sum(RETRY_DELAYS_S)

#: Pause before a store that did not answer is called again.
_RETRY_S: Final = 0.2


class LeaderWatch:
    """Watches the leader, unless that is this process. `connect` returns gateways whose calls may stay open.

    `own` is where this JobManager is reached, and the name of its machine; the leader lists it by that. `attempt` is
    which one of its application it is, if those are counted.
    """

    def __init__(
        self,
        *,
        known: KnownLeader,
        register: LeaderRegister,
        connect: Callable[[str], LeaderGateway],
        is_own: Callable[[FencingToken], bool],
        own: StandbyAddresses,
        attempt: ApplicationAttempt | None = None,
    ) -> None:
        self._known: Final = known
        self._register: Final = register
        self._connect: Final = connect
        self._is_own: Final = is_own
        self._own: Final = own
        self._attempt: Final = attempt

    async def run(self) -> ApplicationStatus:
        """Watch one leader after another, until one of them shuts the cluster down; return the status then."""
        leader = self._known.latest
        while True:
            if leader is None or self._is_own(leader.token) or not self._can_be_watched(leader):
                leader = await self._known.changed(leader)
                continue
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(leader), name=f"leader-watch-{leader.token.epoch}")
                succeeded = tasks.create_task(self._wait_for_successor(leader), name=f"successor-{leader.token.epoch}")
                await asyncio.wait((watching, succeeded), return_when=asyncio.FIRST_COMPLETED)
                status = watching.result() if watching.done() else None
                if status is not None:
                    succeeded.cancel()
                    return status
                leader = await succeeded
                watching.cancel()

    def _can_be_watched(self, leader: LeaderInfo) -> bool:
        if not is_loopback(leader.rpc) or leader.host == self._own.host or self._supersedes(leader):
            return True
        self._warn_unreachable(leader, "it advertises a loopback address")
        return False

    def _supersedes(self, leader: LeaderInfo) -> bool:
        return self._attempt is not None and self._attempt.supersedes(leader.attempt)

    def _warn_unreachable(self, leader: LeaderInfo, reason: str) -> None:
        log.warning(log_events.LEADER_UNREACHABLE, host=leader.host, address=leader.rpc, reason=reason)

    async def _wait_for_successor(self, leader: LeaderInfo) -> LeaderInfo | None:
        """Wait until another term, or none, is published; a leader that becomes `confirmed` is watched already."""
        latest: LeaderInfo | None = leader
        while latest is not None and (latest.token, latest.rpc) == (leader.token, leader.rpc):
            latest = await self._known.changed(latest)
        return latest

    async def _watch(self, leader: LeaderInfo) -> ApplicationStatus | None:
        """Return the status with which the leader shuts the cluster down; None once the leader is declared dead."""
        if self._supersedes(leader):
            await self._declare_dead(leader, "it is of an earlier attempt of this application")
            return None
        gateway = self._connect(leader.rpc)
        message = LeaderLivenessProbe(token=leader.token, standby=self._own)
        reached, warned = is_loopback(leader.rpc), False  # on this machine a closed port is the kernel's own answer

        async def probe() -> str | None:
            nonlocal reached, warned
            try:
                end = await gateway.watch_liveness(message)
            except Unavailable as error:
                if not error.unreachable:
                    reached = True  # the connection was there, and broke
                    return None
                if reached:
                    return f"nothing listens at {leader.rpc}"
                if not warned:
                    warned = True
                    self._warn_unreachable(leader, "it has refused every connection from here")
                return None
            except FlintlockError as error:  # of another version, or no JobManager at all: its session decides
                log.warning(log_events.LEADER_LIVENESS_CHECK_FAILED, leader=leader.rpc, reason=error.public)
                return None
            if end.shut_down is not None:
                raise _ShutDown(end.shut_down)
            return f"what listens at {leader.rpc} does not lead in that term"

        try:
            reason = await wait_for_verdict(probe, RETRY_DELAYS_S)
        except _ShutDown as shut_down:
            log.info(log_events.CLUSTER_SHUTTING_DOWN, status=shut_down.status, epoch=leader.token.epoch)
            return shut_down.status
        await self._declare_dead(leader, reason)
        return None

    async def _declare_dead(self, leader: LeaderInfo, reason: str) -> None:
        log.warning(log_events.LEADER_DEAD, epoch=leader.token.epoch, reason=reason)
        while True:
            try:
                await self._register.declare_dead(leader.token)
            except FlintlockError as error:
                log.info(log_events.LEADER_REMOVAL_FAILED, epoch=leader.token.epoch, reason=error.public)
                await asyncio.sleep(_RETRY_S)
            else:
                return


class _ShutDown(Exception):
    """The leader shuts the cluster down."""

    def __init__(self, status: ApplicationStatus) -> None:
        super().__init__(status)
        self.status: Final = status


def is_loopback(address: str) -> bool:
    """Return whether `host:port` can only be reached from the machine that listens there."""
    return is_loopback_host(address.rpartition(":")[0])

"""What JobManagers may ask of the leader."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from flintlock.model.application import ApplicationStatus
from flintlock.model.ids import FencingToken


class StandbyAddresses(Struct, frozen=True, kw_only=True):
    """Where a JobManager is reached: REST by clients, RPC by other JobManagers, and the name of its machine."""

    rest: str
    rpc: str
    host: str = ""


class JobManagerInfo(Struct, frozen=True, kw_only=True):
    """One JobManager of the cluster as its leader knows it; `since_ms`: since when it leads, or watches the leader."""

    rest: str
    rpc: str
    host: str = ""
    epoch: int = 0  # in which it leads; 0: a standby
    since_ms: int = 0


class LeaderLivenessProbe(Struct, frozen=True, kw_only=True):
    """JobManager to JobManager: about the leader of this term. `standby`: which one keeps the call open."""

    token: FencingToken
    standby: StandbyAddresses | None = None


class TermEnd(Struct, frozen=True, kw_only=True):
    """The term is over; with a status, because the whole cluster shuts down."""

    shut_down: ApplicationStatus | None = None


class LeaderAnswer(Struct, frozen=True, kw_only=True):
    """The answering process is alive; `in_term` says whether it is in the term that was asked about."""

    in_term: bool


class LeaderGateway(Protocol):
    """A JobManager, whether it leads or not."""

    async def watch_liveness(self, message: LeaderLivenessProbe) -> TermEnd:
        """Answer when that term is over, at once if this process is not in it.

        A caller notices the death of the leader by the breaking of the connection, long before a session would expire.
        A caller that is answered with a status ends, too.
        """
        ...

    async def check_liveness(self, message: LeaderLivenessProbe) -> LeaderAnswer:
        """Answer at once. A process that is frozen, or whose event loop stands still, does not."""
        ...

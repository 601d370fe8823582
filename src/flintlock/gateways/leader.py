"""What JobManagers may ask of the leader."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from flintlock.model.ids import FencingToken


class LeaderLivenessProbe(Struct, frozen=True, kw_only=True):
    """JobManager to JobManager: answered once that term has ended."""

    token: FencingToken


class LeaderGateway(Protocol):
    """A JobManager, whether it leads or not."""

    async def watch_liveness(self, message: LeaderLivenessProbe) -> None:
        """Return when that term is over, at once if this process does not lead in it.

        A caller notices the death of the process by its broken connection, long before the session would expire.
        """
        ...

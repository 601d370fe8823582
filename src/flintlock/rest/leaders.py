"""Who leads, as a JobManager that does not lead needs to know it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from flintlock.model.ids import Epoch


class LeaderInfo(Struct, frozen=True, kw_only=True):
    """Where the leader listens, and in which epoch it leads."""

    rest: str
    rpc: str
    epoch: Epoch


class LeaderRetrieval(Protocol):
    """Tells who leads."""

    @property
    def leader(self) -> LeaderInfo | None:
        """Whoever was last known to lead; it may have died meanwhile."""
        ...

    async def changed(self, seen: LeaderInfo | None) -> LeaderInfo | None:
        """Wait until somebody else leads than `seen`, or nobody; return who."""
        ...

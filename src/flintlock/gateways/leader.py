"""What JobManagers may ask of the one that leads."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from flintlock.model.ids import FencingToken


class LeaderLiveness(Struct, frozen=True, kw_only=True):
    """JobManager to JobManager: for as long as nobody answers this, that term goes on."""

    token: FencingToken


class LeaderGateway(Protocol):
    """A JobManager, whether it leads or not."""

    async def attend(self, message: LeaderLiveness) -> None:
        """Answer when that term is over, at once if this process is not in it.

        Whoever asks hears of a death by the breaking of the connection, long before a session would expire.
        """
        ...

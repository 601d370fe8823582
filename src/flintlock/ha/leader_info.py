"""Where the leader listens, and what one process knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from msgspec import Struct

from flintlock.gateways.leader import StandbyAddresses
from flintlock.model.ids import FencingToken


class ApplicationAttempt(Struct, frozen=True, kw_only=True):
    """Which start of an application's JobManager a process is, where something counts them, as YARN does.

    The next one is started when the one before has been given up: it may still run, but nothing waits for it.
    """

    application: str
    number: int

    def supersedes(self, other: ApplicationAttempt | None) -> bool:
        """Return whether the other one was given up before this one was started."""
        return other is not None and other.application == self.application and other.number < self.number


class LeaderInfo(Struct, frozen=True, kw_only=True):
    """What a leader publishes about itself.

    It does so twice: when its term begins, so that its death is noticed from then on, and when it is ready to serve
    (`confirmed`), from which on clients and TaskManagers may connect to it.
    """

    token: FencingToken
    rpc: str  # host:port for TaskManagers and other JobManagers
    rest: str  # the URL for clients
    confirmed: bool = True
    host: str = ""  # the machine's own name: a loopback address means something there only
    attempt: ApplicationAttempt | None = None


LeaderCheck: TypeAlias = Callable[[LeaderInfo], Awaitable[bool]]
"""Calls the leader; returns whether it answered. Takes as long as the answer: the caller limits the time."""


class LeaderAddresses(Struct, frozen=True, kw_only=True):
    """Where one JobManager is reached, whether it leads or not."""

    rpc: str
    rest: str
    host: str = ""
    attempt: ApplicationAttempt | None = None

    def leads(self, token: FencingToken, *, confirmed: bool) -> LeaderInfo:
        """Return what it publishes when it leads."""
        return LeaderInfo(
            token=token, rpc=self.rpc, rest=self.rest, confirmed=confirmed, host=self.host, attempt=self.attempt
        )

    def as_standby(self) -> StandbyAddresses:
        """Return what it says of itself to the leader that it watches."""
        return StandbyAddresses(rest=self.rest, rpc=self.rpc, host=self.host)


class KnownLeader:
    """The leader that this process knows of, for readers that must not wait for a store. `follow` keeps it current."""

    def __init__(self) -> None:
        self._latest: LeaderInfo | None = None  # written by `update`
        self._changed = asyncio.Event()  # set, and replaced, with each change

    @property
    def latest(self) -> LeaderInfo | None:
        """The leader, ready or not; it may have died meanwhile."""
        return self._latest

    @property
    def serving(self) -> LeaderInfo | None:
        """The leader if it is ready to serve; it may have died meanwhile."""
        return self._latest if self._latest is not None and self._latest.confirmed else None

    def update(self, latest: LeaderInfo | None) -> None:
        """Replace what is known, and wake those that wait for a change."""
        if latest != self._latest:
            self._latest = latest
            self._changed.set()
            self._changed = asyncio.Event()

    async def changed(self, seen: LeaderInfo | None) -> LeaderInfo | None:
        """Wait until the latest differs from `seen`; return it."""
        while self._latest == seen:
            await self._changed.wait()
        return self._latest

    async def follow(self, changes: AsyncIterator[LeaderInfo | None]) -> None:
        """Apply each change (see `LeaderRetrieval.changes`) until cancelled."""
        async for latest in changes:
            self.update(latest)

"""Election in memory: a test decides which process leads, or lets the candidate lead that has waited longest.

A grant reaches its holder when it contends, and only then is the epoch raised, as it is with a lock or a latch. A
leader can be deposed *silently*: a newer one leads, and the old one goes on until it is notified, as after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.store_rules import fence
from flintlock.ha.terms import Offer, RevocableScope
from flintlock.model.ids import Epoch, FencingToken

StepHook: TypeAlias = Callable[[str], Awaitable[None]]
"""Awaited before and after each operation, with its name: `graphs.put:before`, `graphs.put:after`."""


async def yielding(_name: str) -> None:
    """Let other tasks run, as any real store does: the default step."""
    await asyncio.sleep(0)


class _Candidate:
    """One process in the election. A restarted process is another candidate of the same name."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.wake: Final = asyncio.Event()  # set whenever the leader may have changed
        self.scope: RevocableScope | None = None  # set while in a term
        self.lost = False  # it was notified of the loss; until the next term begins
        self.withdrawn = False  # contends no more

    def lose(self) -> None:
        """Receive the notification that leadership is lost."""
        self.lost = True
        if self.scope is not None:
            self.scope.revoke()


class MemoryLeadership:
    """Which process leads. `token` is the durable record that stores check; `holder` was granted leadership last."""

    def __init__(self, *, automatic: bool = False) -> None:
        self.token = FencingToken(Epoch(0), "")  # written when a term begins, and by a store that adopts a newer one
        self.info: LeaderInfo | None = None  # what the leader has published; removed with its term
        self.pauses: Final[dict[FencingToken, str]] = {}  # leaders that a test has cut off from the store, and why
        self.info_listeners: Final[set[asyncio.Event]] = set()  # set when `info` changes
        self._automatic: Final = automatic
        self._granted: str | None = None  # a grant that its holder has not taken up yet
        self._leader: _Candidate | None = None  # from the beginning of its term until it ends or another's begins
        self._candidates: Final[dict[str, _Candidate]] = {}  # the latest of each name
        self._waiting: Final[list[_Candidate]] = []  # longest first

    @property
    def holder(self) -> str | None:
        """The process that leads, or is about to."""
        return self._granted or (self._leader.name if self._leader else None)

    @property
    def contending(self) -> tuple[str, ...]:
        """The processes that wait for leadership, longest first."""
        return tuple(candidate.name for candidate in self._waiting)

    def grant(self, holder: str, *, silently: bool = False) -> None:
        """Let `holder` lead, as soon as it contends. The former leader is notified, unless `silently`."""
        old, self._leader = self._leader, None
        self._granted = holder
        if old is not None and not silently:
            old.lose()
        self._wake_all()

    def revoke(self, holder: str | None = None) -> None:
        """Notify `holder` (None: the leader) that it leads no more, even if a silent grant has deposed it before."""
        name = holder or self.holder
        if self._granted == name:
            self._granted = None
        if self._leader is not None and self._leader.name == name:
            self._leader = None
            self.publish_leader(None)
        if name in self._candidates:
            self._candidates[name].lose()
        self._settle()

    def declare_dead(self, dead: FencingToken) -> bool:
        """Take leadership from the leader with this token; return False if there is none."""
        leader = self._leader
        if leader is None or self.token != dead:
            return False
        self.revoke(leader.name)
        return True

    def remove_candidate(self, holder: str) -> None:
        """Free the leadership of a process that has ended. Its tasks are not notified."""
        candidate = self._candidates.get(holder)
        if candidate is not None:
            del self._candidates[holder]
            self.withdraw(candidate)
            self.give_up(candidate)
        if self._granted == holder:
            self._granted = None

    def publish_leader(self, info: LeaderInfo | None) -> None:
        """Replace what the leader has published."""
        self.info = info
        for event in self.info_listeners:
            event.set()

    def enter_election(self, name: str) -> _Candidate:
        """Enter the election."""
        candidate = self._candidates[name] = _Candidate(name)
        return candidate

    async def elected(self, candidate: _Candidate) -> None:
        """Return when the candidate has been granted leadership."""
        self._waiting.append(candidate)
        try:
            self._settle()
            while not self._is_granted(candidate):
                candidate.wake.clear()
                await candidate.wake.wait()
        finally:
            if candidate in self._waiting:
                self._waiting.remove(candidate)

    def begin(self, candidate: _Candidate) -> FencingToken | None:
        """Raise the epoch and return the new token; None if the grant was revoked in the meantime."""
        if not self._is_granted(candidate):
            return None
        self._granted, self._leader, candidate.lost = None, candidate, False
        self.publish_leader(None)
        epoch = Epoch(self.token.epoch + 1)
        self.token = FencingToken(epoch, f"{candidate.name}-{epoch}")
        return self.token

    def give_up(self, candidate: _Candidate) -> None:
        """End the candidate's term. A term of another one that has begun is not affected."""
        candidate.scope = None
        if self._leader is candidate:
            self._leader = None
            self.publish_leader(None)
        self._settle()

    def withdraw(self, candidate: _Candidate) -> None:
        """Let the candidate contend no more; its present term goes on. A grant not taken up is free again."""
        if self._is_granted(candidate):
            self._granted = None
        candidate.withdrawn = True
        if candidate in self._waiting:
            self._waiting.remove(candidate)
        self._settle()

    def _is_granted(self, candidate: _Candidate) -> bool:
        latest = self._candidates.get(candidate.name) is candidate
        return self._granted == candidate.name and latest and not candidate.withdrawn

    def _settle(self) -> None:
        """Grant a free leadership to the next candidate, if that is automatic."""
        if self._automatic and self._granted is None and self._leader is None and self._waiting:
            self._granted = self._waiting[0].name
        self._wake_all()

    def _wake_all(self) -> None:
        for candidate in self._waiting:
            candidate.wake.set()


class MemoryElection:
    """A LeaderElection of one simulated process."""

    def __init__(self, leadership: MemoryLeadership, holder: str, step: StepHook) -> None:
        self._leadership: Final = leadership
        self._holder: Final = holder
        self._step: Final = step

    def resign(self) -> None:
        """Give up leadership, so that the next candidate leads."""
        self._leadership.remove_candidate(self._holder)

    async def terms(self) -> AsyncIterator[AbstractAsyncContextManager[FencingToken]]:
        """Yield a term each time leadership is granted."""
        leadership = self._leadership
        candidate = leadership.enter_election(self._holder)
        try:
            while True:
                await leadership.elected(candidate)
                await self._step("election.begin:before")
                token = leadership.begin(candidate)
                if token is None:
                    continue
                await self._step("election.begin:after")
                offer = Offer(token, give_up=lambda: leadership.give_up(candidate))
                try:
                    yield self._term(offer, candidate)
                finally:
                    offer.withdraw()
        finally:
            leadership.withdraw(candidate)

    def paused(self, token: FencingToken) -> str | None:
        """Return why a leader must not act at present."""
        return self._leadership.pauses.get(token)

    @asynccontextmanager
    async def _term(self, offer: Offer, candidate: _Candidate) -> AsyncGenerator[FencingToken]:
        with offer as token:
            async with RevocableScope() as scope:
                candidate.scope = scope
                if candidate.lost:
                    scope.revoke()
                yield token


class MemoryLeaderRegister:
    """A LeaderRegister of one simulated process."""

    def __init__(self, leadership: MemoryLeadership, step: StepHook) -> None:
        self._leadership: Final = leadership
        self._step: Final = step

    async def publish(self, info: LeaderInfo) -> None:
        """Publish where the leader listens."""
        await self._step("leader.publish:before")
        self._leadership.token = fence(self._leadership.token, info.token)
        self._leadership.publish_leader(info)
        await self._step("leader.publish:after")

    async def current(self) -> LeaderInfo | None:
        """Return what the leader published last."""
        await self._step("leader.current:before")
        info = self._leadership.info
        await self._step("leader.current:after")
        return info

    async def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then each change."""
        changed = asyncio.Event()
        self._leadership.info_listeners.add(changed)
        try:
            latest: list[LeaderInfo | None] = []  # what was yielded last, if anything was
            while True:
                changed.clear()
                info = await self.current()
                if latest != [info]:
                    latest = [info]
                    yield info
                await changed.wait()
        finally:
            self._leadership.info_listeners.discard(changed)

    async def declare_dead(self, dead: FencingToken) -> bool:
        """Take leadership from the leader with this token, so that another process leads."""
        await self._step("leader.declare_dead:before")
        was_leader = self._leadership.declare_dead(dead)
        await self._step("leader.declare_dead:after")
        return was_leader

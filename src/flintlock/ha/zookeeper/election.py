"""Election by a latch in ZooKeeper: of the processes that contend, the one whose znode has the lowest number leads.

Each candidate makes an ephemeral znode and watches the one before it, so a change wakes one process, not all. Being
first is not enough: the term begins with a transaction that checks the candidate's own latch and raises the epoch, and
from then on the stores refuse whoever led before.

A leader steps down when its latch is gone (a standby has buried it, or its session expired), when somebody newer leads,
and by its own clock (`tenure`). It asks the ensemble ten times in each session timeout, which is how it knows that its
session lives; writes count as well. Giving leadership up removes the latch, so the next one leads at once.

Whoever has led contends with a new latch, behind the others.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import structlog

from flintlock.ha.terms import Offer, RevocableScope
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.leadership_deadline import LeadershipDeadline
from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.ha.zookeeper.operations import Check, Delete, LinkState, Op, SetData
from flintlock.ha.zookeeper.writer import read_epoch
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, Fenced, FlintlockError, Incompatible, Unavailable
from flintlock.model.ids import Epoch, FencingToken

log = structlog.get_logger(__name__)

#: How often the ensemble is asked, as a part of the session timeout.
BEAT_AT: Final = 0.1

#: How long to wait before contending again after something went wrong.
_AGAIN_S: Final = 0.1


class LatchElection:
    """A LeaderElection by latch. One in each process, or their latches would wait for each other."""

    def __init__(
        self,
        *,
        link: ZooKeeperLink,
        paths: tree.Tree,
        new_session: Callable[[], str],
        clock_s: Callable[[], float],
        chores: Callable[[FencingToken], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._link: Final = link
        self._paths: Final = paths
        self._new_session: Final = new_session
        self._clock_s: Final = clock_s
        self._chores: Final = chores  # run beside each term, and end with it
        self._left: Final[set[str]] = set()  # candidates of ours whose latch may still be there
        self._given_up: Final[set[FencingToken]] = set()  # all former terms of this process
        self._terms: Final[dict[FencingToken, _Term]] = {}  # from the raising of its epoch until it is given up
        self._resigned = False  # set by `resign`, for good

    @property
    def leading(self) -> FencingToken | None:
        """The token of the term that this process leads, as far as it knows."""
        return next(reversed(self._terms), None)

    def resign(self) -> None:
        """Give leadership up at once, though the term's body has not ended, and never contend again. Idempotent.

        The latch goes in a transaction that is on its way when this returns. From now on nothing more is written under
        the term's token, and its body is told to end.
        """
        self._resigned = True
        for term in self._terms.values():
            term.end("this process resigns")
            self._take_away(term)

    def guard(self, token: FencingToken) -> None:
        """Refuse a write that a leader of this process must not send: Unavailable while it is cut off, then Fenced.

        Tokens of other processes are left to the fence at the ensemble.
        """
        reason = self.paused(token)
        if reason is None:
            return
        if token in self._given_up or self._terms[token].tenure.over is not None:
            raise Fenced(f"epoch {token.epoch} leads no more: {reason}")
        raise Unavailable(f"nothing is written now: {reason}")

    def paused(self, token: FencingToken) -> str | None:
        """Return why a leader must not act just now."""
        if token in self._given_up:
            return "its term was given up"
        term = self._terms.get(token)
        return None if term is None else term.tenure.look(self._clock_s())

    async def terms(self) -> AsyncIterator[AbstractAsyncContextManager[FencingToken]]:
        """Yield a term each time the latch is gained and the epoch raised."""
        while True:
            term = await self._gain()
            offer = Offer(term.token, give_up=lambda term=term: self._give_up(term))
            try:
                yield self._lead(offer, term)
            finally:
                offer.withdraw()

    async def _gain(self) -> _Term:
        while True:
            if self._resigned:
                await asyncio.get_running_loop().create_future()  # until cancelled
            candidate, latch = uuid.uuid4().hex, None
            self._left.add(candidate)  # until it leads: whatever happens, its latch must not stay
            try:
                await self._link.connected()
                await self._remove_left(candidate)
                latch = await self._link.create_sequential(f"{self._paths.latches}/{candidate}-", b"")
                name = latch.rsplit("/", 1)[-1]
                while await self._is_first(name):
                    if self._resigned:
                        self._remove_soon(candidate, latch)
                        break
                    term = await self._begin(name)
                    if term is not None:
                        self._left.discard(candidate)
                        return term
            except (Unavailable, Corrupt) as error:
                log.warning(log_events.LEADERSHIP_NOT_TAKEN, reason=error.public)
                await asyncio.sleep(_AGAIN_S)
            except BaseException:  # told to end while waiting: the latch would block the others
                self._remove_soon(candidate, latch)
                raise

    async def _remove_left(self, fresh: str) -> None:
        """Remove latches of ours that an error, or a lost connection, has left there."""
        for name in await self._link.children(self._paths.latches):
            candidate = name.rpartition("-")[0]
            if candidate in self._left and candidate != fresh:
                await self._link.transact([Delete(f"{self._paths.latches}/{name}")])
        self._left.intersection_update({fresh})

    async def _is_first(self, name: str) -> bool:
        """Wait until this latch is the first one; False if it is gone."""
        while True:
            latches = sorted(await self._link.children(self._paths.latches), key=_number)
            if name not in latches:
                return False
            before = latches.index(name) - 1
            if before < 0:
                return True
            changed = asyncio.Event()
            if await self._link.exists(f"{self._paths.latches}/{latches[before]}", changed):
                await changed.wait()

    async def _begin(self, latch: str) -> _Term | None:
        """Raise the epoch in a transaction that holds only while the latch is there. None: look again."""
        link, paths, path = self._link, self._paths, f"{self._paths.latches}/{latch}"
        session, sent_s = link.session, self._clock_s()
        record, version = await read_epoch(link, paths)
        epoch = Epoch(record.epoch + 1)
        fresh = tree.EpochRecord(epoch=epoch, session=self._new_session(), latch=latch)
        ops: list[Op] = [Check(path), SetData(paths.epoch, tree.EPOCH.encode(fresh), version)]
        if await link.exists(paths.leader):  # what a former leader told, whose session has not expired yet
            ops.append(Delete(paths.leader))
        if await link.transact(ops) is not None:
            return None
        tenure = LeadershipDeadline(session=session, timeout_s=link.timeout_s, acknowledged_s=sent_s)
        term = _Term(fresh.token, path, version + 1, tenure)
        self._terms[term.token] = term
        link.listeners.add(term.hear)
        link.on_answer = tenure.acknowledged
        term.hear(link.state, link.session)  # what happened meanwhile
        log.info(log_events.LEADERSHIP_GAINED, epoch=epoch, session_timeout_s=link.timeout_s)
        return term

    def _give_up(self, term: _Term) -> None:
        """Remove what says that this process leads. What cannot be sent now goes with the session, or by the next."""
        self._given_up.add(term.token)
        self._terms.pop(term.token, None)
        self._link.listeners.discard(term.hear)
        self._link.on_answer = None
        self._left.add(term.candidate)
        self._take_away(term)

    def _take_away(self, term: _Term) -> None:
        """Send what lets the next one lead: the latch first, on its own, as perhaps nothing was told."""
        mine = Check(self._paths.epoch, term.version)
        self._link.transact_soon([mine, Delete(term.latch)])
        self._link.transact_soon([mine, Delete(self._paths.leader)])

    def _remove_soon(self, candidate: str, latch: str | None = None) -> None:
        self._left.add(candidate)
        if latch is not None:
            self._link.transact_soon([Delete(latch)])

    @asynccontextmanager
    async def _lead(self, offer: Offer, term: _Term) -> AsyncGenerator[FencingToken]:
        failure: Exception | None = None  # the body's own: it leaves the term as it is, not in the TaskGroup's group
        with offer as token:
            async with RevocableScope() as scope, asyncio.TaskGroup() as tasks:
                count = tasks.create_task(self._count(term, scope), name=f"tenure-{token.epoch}")
                beside = [count, tasks.create_task(self._beat(term), name=f"beat-{token.epoch}")]
                if self._chores is not None:
                    beside.append(tasks.create_task(self._chores(token), name=f"chores-{token.epoch}"))
                try:
                    yield token
                except Exception as error:  # noqa: BLE001  # raised again below
                    failure = error
                finally:
                    for task in beside:
                        task.cancel()
        if failure is not None:
            raise failure

    async def _count(self, term: _Term, scope: RevocableScope) -> None:
        """End the body when the term is over, whatever ended it."""
        tenure = term.tenure
        while True:
            term.news.clear()
            now_s = self._clock_s()
            tenure.look(now_s)
            if tenure.over is not None:
                log.warning(log_events.LEADERSHIP_LOST, epoch=term.token.epoch, reason=tenure.over)
                scope.revoke()
                return
            # The loop's clock may stand still while the machine sleeps: look often rather than once at the end.
            beat_s = self._link.timeout_s * BEAT_AT
            try:
                async with asyncio.timeout(min(beat_s, max(0.001, tenure.ends_s - now_s))):
                    await term.news.wait()
            except TimeoutError:
                continue

    async def _beat(self, term: _Term) -> None:
        """Ask again and again whether the latch and the epoch are still this term's."""
        changed: asyncio.Event | None = None  # set when the latch may be gone; a new watch only once that one is used
        while True:
            fresh = asyncio.Event() if changed is None or changed.is_set() else None
            changed = fresh or changed or asyncio.Event()
            try:
                there, (record, _) = await asyncio.gather(
                    self._link.exists(term.latch, fresh), read_epoch(self._link, self._paths)
                )
                if record.token != term.token:
                    term.end(f"epoch {record.epoch} has begun")
                elif not there:
                    term.end("its latch was removed")
            except Incompatible as error:
                term.end(error.public)
            except FlintlockError as error:
                # Out of reach: the clock decides. A damaged epoch: the next write tells.
                changed = None
                log.info(log_events.ZOOKEEPER_HEARTBEAT_UNANSWERED, epoch=term.token.epoch, reason=error.public)
            try:
                async with asyncio.timeout(self._link.timeout_s * BEAT_AT):
                    await (changed or asyncio.Event()).wait()
            except TimeoutError:
                continue


class _Term:
    """One term of this process: how it is recorded, and what its leader has heard."""

    def __init__(self, token: FencingToken, latch: str, version: int, tenure: LeadershipDeadline) -> None:
        self.token: Final = token
        self.latch: Final = latch
        self.version: Final = version  # of the epoch's znode during this term
        self.tenure: Final = tenure
        self.news: Final = asyncio.Event()  # set when the tenure may be over

    @property
    def candidate(self) -> str:
        """Who gained it."""
        return self.latch.rsplit("/", 1)[-1].rpartition("-")[0]

    def hear(self, state: LinkState, session: int) -> None:
        """Hear how the connection is."""
        match state:
            case LinkState.CONNECTED:
                self.tenure.connected(session)
            case LinkState.SUSPENDED:
                self.tenure.suspended()
            case LinkState.LOST:
                self.tenure.lost()
        self.news.set()

    def end(self, reason: str) -> None:
        """End the term."""
        self.tenure.end(reason)
        self.news.set()


def _number(latch: str) -> int:
    """Return the number that ZooKeeper gave a latch. What is not a latch comes last."""
    number = latch.rpartition("-")[2]
    return int(number) if number.isdecimal() else 1 << 62

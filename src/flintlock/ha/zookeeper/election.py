"""Election by a latch in ZooKeeper: of the processes that contend, the one whose znode has the lowest number leads.

Each candidate creates an ephemeral znode and watches the one before it, so a change wakes one process, not all. Being
first is not enough: the term begins with a transaction that checks the candidate's own latch and raises the epoch, and
from then on the stores refuse the former leader.

A leader steps down when its latch is gone (a standby has declared it dead, or its session expired), when a newer epoch
has begun, and by its own clock (`leadership_deadline`). Ten times in each session timeout it sends the ensemble a
transaction that checks both and changes nothing: its answer is one of a quorum, and proves that the session lives, as
the answer to every other write does. Giving leadership up removes the latch, so the next one leads at once.

Rejected: reading latch and epoch instead. A server that is cut off answers reads from its own memory. Rejected: `sync`,
which a leading server that was replaced without its knowledge answers too.

A process that has led contends with a new latch, behind the others. A candidate that cannot write to the storage
directory lets others lead that can, and so does a leader (`storage_health`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import structlog

from flintlock.ha.terms import Offer, RevocableScope, unless_cancelled
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.leadership_deadline import LeadershipDeadline
from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.ha.zookeeper.operations import Check, Delete, LinkState, Op, Refusal, SetData
from flintlock.ha.zookeeper.storage.storage_health import READY, STEP_DOWN_S, StorageHealth
from flintlock.ha.zookeeper.writer import read_epoch
from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Corrupt, Fenced, FlintlockError, Incompatible, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import Epoch, FencingToken

log = structlog.get_logger(__name__)

#: The interval of heartbeats, as a part of the session timeout.
BEAT_AT: Final = 0.1

#: The pause before contending again after a failure.
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)

#: How often the latches of others are read while this process does not reach the storage directory.
_STORAGE_POLL_S: Final = 1.0


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
        storage_health: StorageHealth | None = None,
    ) -> None:
        self._link: Final = link
        self._paths: Final = paths
        self._new_session: Final = new_session
        self._clock_s: Final = clock_s
        self._chores: Final = chores  # run during each term, and end with it
        self._storage: Final = storage_health  # None: there is no directory to check
        self._waiting: str | None = None  # the latch of a candidate, until it leads
        if storage_health is not None:
            storage_health.on_change = self._publish_storage
        self._leftover: Final[set[str]] = set()  # candidates of this process whose latch may still exist
        self._given_up: Final[set[FencingToken]] = set()  # all former terms of this process
        self._terms: Final[dict[FencingToken, _Term]] = {}  # from the raising of its epoch until it is given up
        self._resigned = False  # set by `resign`, for good

    @property
    def leading(self) -> FencingToken | None:
        """The token of the term that this process leads, as far as it knows."""
        return next(reversed(self._terms), None)

    def resign(self) -> None:
        """Give leadership up at once, though the term's body has not ended, and never contend again. Idempotent.

        The latch is removed by a transaction that has been sent when this returns. From now on nothing more is written
        under the term's token, and its body is cancelled.
        """
        self._resigned = True
        for term in self._terms.values():
            term.end("this process resigns")
            self._remove_leadership(term)

    def guard(self, token: FencingToken) -> None:
        """Refuse a write that a leader of this process must not send: Unavailable while disconnected, then Fenced.

        Tokens of other processes are left to the fence at the ensemble.
        """
        reason = self.paused(token)
        if reason is None:
            return
        if token in self._given_up or self._terms[token].deadline.over is not None:
            raise Fenced(f"epoch {token.epoch} no longer leads: {reason}")
        raise Unavailable(f"nothing is written now: {reason}")

    def paused(self, token: FencingToken) -> str | None:
        """Return why a leader must not act now."""
        if token in self._given_up:
            return "its term was given up"
        term = self._terms.get(token)
        return None if term is None else term.deadline.check(self._clock_s())

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
        failures, problem = 0, RepeatedFailure()
        while True:
            if self._resigned:
                await asyncio.get_running_loop().create_future()  # until cancelled
            candidate, latch, self._waiting = uuid.uuid4().hex, None, None
            self._leftover.add(candidate)  # until it leads: whatever happens, its latch must not stay
            try:
                await self._link.connected()
                await self._remove_leftover(candidate)
                data = b"" if self._storage is None else self._storage.latch_data
                latch = self._waiting = await self._link.create_sequential(f"{self._paths.latches}/{candidate}-", data)
                if self._storage is not None and self._storage.latch_data != data:  # it has changed meanwhile
                    self._publish_storage()
                name = latch.rsplit("/", 1)[-1]
                while await self._is_first(name):
                    if self._resigned or not await self._may_lead(latch):
                        self._remove_soon(candidate, latch)  # and contend behind the others
                        break
                    term = await self._begin(name)
                    if term is not None:
                        self._leftover.discard(candidate)
                        return term
            except (Unavailable, Corrupt) as error:
                failures += 1
                if problem.occurred(error.public, asyncio.get_running_loop().time()):
                    log.warning(log_events.LEADERSHIP_NOT_TAKEN, reason=error.public)
                await asyncio.sleep(_BACKOFF.delay_s(failures))
            except BaseException:  # cancelled while waiting: the latch would block the others
                self._remove_soon(candidate, latch)
                raise

    async def _remove_leftover(self, fresh: str) -> None:
        """Remove latches of this process that an error, or a lost connection, has left behind."""
        for name in await self._link.children(self._paths.latches):
            candidate = name.rpartition("-")[0]
            if candidate in self._leftover and candidate != fresh:
                await self._link.transact([Delete(f"{self._paths.latches}/{name}")])
        self._leftover.intersection_update({fresh})

    async def _is_first(self, name: str) -> bool:
        """Wait until this latch is the first one; False if it was removed."""
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

    async def _may_lead(self, latch: str) -> bool:
        """Wait until this process reaches the storage directory; False once another candidate can do more with it."""
        while self._storage is not None and not self._storage.ready:
            if await self._another_is_ready(latch):
                return False
            if self._storage.reached:  # no candidate writes: work continues under a leader that reads
                return True
            await self._wait_for_storage()
        return True

    async def _another_is_ready(self, latch: str) -> bool:
        """Return whether another candidate says that it writes to the storage directory. Raises Unavailable."""
        paths = [f"{self._paths.latches}/{name}" for name in await self._link.children(self._paths.latches)]
        nodes = await unless_cancelled(asyncio.gather(*(self._link.get(path) for path in paths if path != latch)))
        return any(node is not None and node.data == READY for node in nodes)

    async def _wait_for_storage(self) -> None:
        """Wait until what is known of the storage directory has changed, or for a second."""
        changed = asyncio.Event() if self._storage is None else self._storage.changed
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORAGE_POLL_S):
                await changed.wait()

    def _publish_storage(self) -> None:
        """Have the latch of a waiting candidate say whether it writes to the storage directory."""
        if self._waiting is not None and self._storage is not None:
            self._link.transact_soon([SetData(self._waiting, self._storage.latch_data, -1)])

    async def _watch_storage(self, term: _Term) -> None:
        """End the term when this process has not written to the storage directory for a while, and another can."""
        while self._storage is not None:
            if self._storage.failing_s() >= STEP_DOWN_S:
                with suppress(Unavailable):
                    if await self._another_is_ready(term.latch):
                        term.end("it cannot write to high-availability.storageDir, and another JobManager can")
                        return
            await asyncio.sleep(_STORAGE_POLL_S)

    async def _begin(self, latch: str) -> _Term | None:
        """Raise the epoch in a transaction that succeeds only while the latch exists. None: check again."""
        link, paths, path = self._link, self._paths, f"{self._paths.latches}/{latch}"
        session, sent_s = link.session, self._clock_s()
        record, version = await read_epoch(link, paths)
        epoch = Epoch(record.epoch + 1)
        fresh = tree.EpochRecord(epoch=epoch, session=self._new_session(), latch=latch)
        ops: list[Op] = [Check(path), SetData(paths.epoch, tree.EPOCH.encode(fresh), version)]
        if await link.exists(paths.leader):  # of a former leader whose session has not expired yet
            ops.append(Delete(paths.leader))
        if await link.transact(ops) is not None:
            return None
        deadline = LeadershipDeadline(session=session, timeout_s=link.timeout_s, acknowledged_s=sent_s)
        term = _Term(fresh.token, path, version + 1, deadline, link)
        self._terms[term.token] = term
        link.listeners.add(term.on_state)
        link.on_quorum_answer = deadline.acknowledged
        term.on_state(link.state, link.session)  # what happened meanwhile
        log.info(log_events.LEADERSHIP_GAINED, epoch=epoch, session_timeout_s=link.timeout_s)
        return term

    def _give_up(self, term: _Term) -> None:
        """Remove this process's leadership. What cannot be sent now ends with the session, or by the next leader."""
        self._given_up.add(term.token)
        self._terms.pop(term.token, None)
        self._link.listeners.discard(term.on_state)
        self._link.on_quorum_answer = None
        self._leftover.add(term.candidate)
        self._remove_leadership(term)

    def _remove_leadership(self, term: _Term) -> None:
        """Remove the latch, on its own as perhaps nothing was published, then what was published."""
        mine = Check(self._paths.epoch, term.version)
        self._link.transact_soon([mine, Delete(term.latch)])
        self._link.transact_soon([mine, Delete(self._paths.leader)])

    def _remove_soon(self, candidate: str, latch: str | None = None) -> None:
        self._leftover.add(candidate)
        if latch is not None:
            self._link.transact_soon([Delete(latch)])

    @asynccontextmanager
    async def _lead(self, offer: Offer, term: _Term) -> AsyncGenerator[FencingToken]:
        failure: Exception | None = None  # the body's own: it is raised as it is, not in the TaskGroup's group
        with offer as token:
            async with RevocableScope() as scope, asyncio.TaskGroup() as tasks:
                deadline = tasks.create_task(self._watch_deadline(term, scope), name=f"deadline-{token.epoch}")
                beside = [deadline, tasks.create_task(self._beat(term), name=f"beat-{token.epoch}")]
                if self._storage is not None:
                    beside.append(tasks.create_task(self._watch_storage(term), name=f"storage-{token.epoch}"))
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

    async def _watch_deadline(self, term: _Term, scope: RevocableScope) -> None:
        """End the body when the term is over, whatever ended it."""
        deadline = term.deadline
        while True:
            term.changed.clear()
            now_s = self._clock_s()
            deadline.check(now_s)
            if deadline.over is not None:
                log.warning(log_events.LEADERSHIP_LOST, epoch=term.token.epoch, reason=deadline.over)
                scope.revoke()
                return
            # The loop's clock may stop while the machine sleeps: check often rather than once at the end.
            beat_s = self._link.timeout_s * BEAT_AT
            try:
                async with asyncio.timeout(min(beat_s, max(0.001, deadline.ends_s - now_s))):
                    await term.changed.wait()
            except TimeoutError:
                continue

    async def _beat(self, term: _Term) -> None:
        """Have a quorum confirm periodically that the latch and the epoch are still this term's."""
        still_leads = (Check(term.latch), Check(self._paths.epoch, term.version))
        changed: asyncio.Event | None = None  # set when the latch may be gone; a new watch only once that one is used
        while True:
            fresh = asyncio.Event() if changed is None or changed.is_set() else None
            changed = fresh or changed or asyncio.Event()
            try:
                _, refusal = await unless_cancelled(
                    asyncio.gather(self._link.exists(term.latch, fresh), self._link.transact(still_leads))
                )
                if refusal is not None:
                    term.end(await self._explain(term, refusal))
            except FlintlockError as error:  # not reachable: the clock decides
                changed = None
                log.info(log_events.ZOOKEEPER_HEARTBEAT_UNANSWERED, epoch=term.token.epoch, reason=error.public)
            try:
                async with asyncio.timeout(self._link.timeout_s * BEAT_AT):
                    await (changed or asyncio.Event()).wait()
            except TimeoutError:
                continue

    async def _explain(self, term: _Term, refusal: Refusal) -> str:
        """Return why a quorum did not confirm the term."""
        if refusal.op.path == term.latch:
            return "its latch was removed"
        try:
            record, _ = await read_epoch(self._link, self._paths)
        except (Unavailable, Corrupt, Incompatible) as error:
            return f"its epoch is not the current one: {error.public}"
        return f"epoch {record.epoch} has begun"


class _Term:
    """One term of this process: how it is recorded, and until when it lasts."""

    def __init__(
        self, token: FencingToken, latch: str, version: int, deadline: LeadershipDeadline, link: ZooKeeperLink
    ) -> None:
        self.token: Final = token
        self.latch: Final = latch
        self.version: Final = version  # of the epoch's znode during this term
        self.deadline: Final = deadline
        self.changed: Final = asyncio.Event()  # set when the term may be over
        self._link: Final = link

    @property
    def candidate(self) -> str:
        """The id of the candidate that gained it."""
        return self.latch.rsplit("/", 1)[-1].rpartition("-")[0]

    def on_state(self, state: LinkState, session: int) -> None:
        """Handle a new state of the connection."""
        match state:
            case LinkState.CONNECTED:
                self.deadline.connected(session, self._link.timeout_s)
            case LinkState.SUSPENDED:
                self.deadline.suspended()
            case LinkState.LOST:
                self.deadline.lost()
        self.changed.set()

    def end(self, reason: str) -> None:
        """End the term."""
        self.deadline.end(reason)
        self.changed.set()


def _number(latch: str) -> int:
    """Return the number that ZooKeeper gave a latch. A znode that is no latch sorts last."""
    number = latch.rpartition("-")[2]
    return int(number) if number.isdecimal() else 1 << 62

"""The contract of the election, held against every implementation."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol

import pytest
from tests.contract.records import JOB_A, JOB_B, stored_job
from tests.zookeeper.servers import Ensemble

from flintlock.ha.embedded.services import embedded_ha
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.protocols import HaServices
from flintlock.ha.zookeeper.services import zookeeper_ha
from flintlock.model.errors import Fenced
from flintlock.model.ids import Epoch, FencingToken
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices

pytestmark = pytest.mark.anyio

Terms = AsyncIterator[AbstractAsyncContextManager[FencingToken]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Contest(Protocol):
    """Processes that contend with each other."""

    async def enter(self, name: str) -> HaServices:
        """Return the services of a new process."""
        ...

    async def depose(self) -> None:
        """Revoke the leadership of the current leader."""
        ...


class MemoryContest:
    def __init__(self) -> None:
        self._cluster = MemoryCluster(automatic=True)

    async def enter(self, name: str) -> HaServices:
        return MemoryHaServices(self._cluster, name)

    async def depose(self) -> None:
        self._cluster.revoke()


class EmbeddedContest:
    def __init__(self, state_dir: Path, stack: AsyncExitStack) -> None:
        self._state_dir = state_dir
        self._stack = stack
        self._sessions = (f"session-{n}" for n in itertools.count())

    async def enter(self, name: str) -> HaServices:
        services = embedded_ha(
            self._state_dir,
            new_session=lambda: next(self._sessions),
            now_ms=lambda: 0,
            poll_s=0.001,
            heartbeat_s=0.001,
        )
        return await self._stack.enter_async_context(services)

    async def depose(self) -> None:
        # What happens when another process removes the lock file: that process leads in a newer epoch.
        (self._state_dir / "leader.lock").unlink()
        usurper = await self.enter("usurper")
        async with asyncio.timeout(30), await anext(usurper.election.terms()):
            pass


class ZooKeeperContest:
    def __init__(self, quorum: str, storage_dir: Path, stack: AsyncExitStack) -> None:
        self._quorum = quorum
        self._cluster_id = uuid.uuid4().hex
        self._storage_dir = storage_dir
        self._stack = stack
        self._sessions = (f"session-{n}" for n in itertools.count())

    async def enter(self, name: str) -> HaServices:
        services = zookeeper_ha(
            self._quorum,
            root="/flintlock",
            cluster_id=self._cluster_id,
            storage_dir=str(self._storage_dir),
            session_timeout_s=15,
            connection_timeout_s=15,
            new_session=lambda: next(self._sessions),
            clock_s=time.monotonic,
        )
        return await self._stack.enter_async_context(services)

    async def depose(self) -> None:
        # What a standby does that believes the leader to be dead. It leads in a newer epoch.
        usurper = await self.enter("usurper")
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
            usurping = tasks.create_task(_lead_once(usurper.election.terms()), name="usurper")
            assert await usurper.leader.declare_dead(await _latest(usurper))
            await usurping


async def _latest(services: HaServices) -> FencingToken:
    info = await services.leader.current()
    assert info is not None, "the leader has published its address"
    return info.token


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
async def contest(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Contest]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryContest()
        elif request.param == "embedded":
            yield EmbeddedContest(tmp_path, stack)
        else:
            ensemble: Ensemble = request.getfixturevalue("zookeeper")
            yield ZooKeeperContest(ensemble.quorum, tmp_path, stack)


async def test_a_lone_candidate_leads(contest: Contest) -> None:
    process = await contest.enter("a")

    async with await anext(process.election.terms()) as token:
        await process.stores(token).graphs.put(stored_job())

    assert token.epoch >= 1
    assert token.session


async def test_each_terms_epoch_is_higher_and_its_session_its_own(contest: Contest) -> None:
    process = await contest.enter("a")
    tokens: list[FencingToken] = []

    async for term in process.election.terms():
        async with term as token:
            tokens.append(token)
        if len(tokens) == 3:
            break

    assert [token.epoch for token in tokens] == sorted({token.epoch for token in tokens})
    assert len({token.session for token in tokens}) == 3


async def test_a_second_candidate_stands_by_until_the_first_leaves(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
        async with await anext(first.election.terms()) as old:
            standby = tasks.create_task(_lead_once(second.election.terms()), name="standby")
            for _ in range(20):  # each write takes a while in which the standby could do wrong
                await first.stores(old).progress.remove(JOB_A)
            assert not standby.done()

        new = await standby

    assert new.epoch > old.epoch


async def test_the_new_epoch_is_known_to_the_stores_when_the_term_begins(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    async with await anext(first.election.terms()) as old:
        await first.stores(old).graphs.put(stored_job(JOB_A))
    async with asyncio.timeout(30), await anext(second.election.terms()):
        with pytest.raises(Fenced):
            await first.stores(old).graphs.put(stored_job(JOB_B))


async def test_when_leadership_is_lost_the_body_is_cancelled_and_the_next_term_follows(contest: Contest) -> None:
    process = await contest.enter("a")
    tokens: list[FencingToken] = []
    ends: list[str] = []

    async with asyncio.timeout(30):
        async for term in process.election.terms():
            async with term as token:
                tokens.append(token)
                if len(tokens) == 2:
                    break
                await process.leader.publish(LeaderInfo(token=token, rpc="here:1", rest="http://here"))
                try:
                    await contest.depose()
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise
            ends.append("left quietly")

    assert ends == ["cancelled", "left quietly"]
    assert tokens[1].epoch > tokens[0].epoch
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0, "the cancellation is used up"


async def test_a_cancellation_from_outside_passes_through_and_gives_leadership_up(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    leading = asyncio.Event()

    async def lead_for_ever() -> None:
        async for term in first.election.terms():
            async with term:
                leading.set()
                await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
        leader = tasks.create_task(lead_for_ever(), name="leader")
        await leading.wait()
        leader.cancel()
        with suppress(asyncio.CancelledError):
            await leader
        assert leader.cancelled()

        await _lead_once(second.election.terms())


async def test_an_exception_of_the_body_passes_through_as_it_is_and_gives_leadership_up(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")

    with pytest.raises(LookupError, match="mine"):
        async with await anext(first.election.terms()):
            raise LookupError("mine")

    async with asyncio.timeout(30):
        await _lead_once(second.election.terms())


async def test_a_term_that_is_never_entered_is_given_up_when_the_next_one_is_asked_for(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    terms = first.election.terms()
    await anext(terms)

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
        standby = tasks.create_task(_lead_once(second.election.terms()), name="standby")
        async with await anext(terms) as token:
            pass

    assert (await standby).epoch != token.epoch


async def test_a_candidate_that_goes_away_gives_leadership_up(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")

    async def contend() -> None:
        async for _ in first.election.terms():
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(30):
        contender = tasks.create_task(contend(), name="contender")
        await asyncio.sleep(0)
        contender.cancel()
        await _lead_once(second.election.terms())


async def test_a_leader_that_resigns_hands_over_before_it_has_cleaned_up_and_never_leads_again(
    contest: Contest,
) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    entered, succeeded = asyncio.Event(), asyncio.Event()
    led: list[FencingToken] = []

    async def lead_and_clean_up_slowly() -> None:
        async for term in first.election.terms():
            async with term as token:
                led.append(token)
                await first.leader.publish(LeaderInfo(token=token, rpc="a:1", rest="http://a:2"))
                entered.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await succeeded.wait()

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):  # less than a session timeout
        leading = tasks.create_task(lead_and_clean_up_slowly(), name="first")
        await entered.wait()
        first.election.resign()
        first.election.resign()
        leading.cancel()
        async with await anext(second.election.terms()) as token:
            assert token.epoch > led[0].epoch
            assert await second.leader.current() is None
            with pytest.raises(Fenced):
                await first.stores(led[0]).graphs.put(stored_job())
            succeeded.set()
    assert len(led) == 1


# --- LeaderRetrieval, LeaderRegister


async def test_what_the_leader_publishes_is_known_to_the_others_until_its_term_ends(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    changes = second.leader.changes()
    async with asyncio.timeout(30):
        assert await anext(changes) is None
        async with await anext(first.election.terms()) as token:
            early = LeaderInfo(token=token, rpc="a:1", rest="http://a:2", confirmed=False)
            await first.leader.publish(early)
            assert await anext(changes) == early
            ready = LeaderInfo(token=token, rpc="a:1", rest="http://a:2")
            await first.leader.publish(ready)
            assert await anext(changes) == ready
            assert await second.leader.current() == ready

        assert await anext(changes) is None
        assert await second.leader.current() is None


async def test_a_new_leader_replaces_what_the_old_one_published_and_the_old_one_is_fenced(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    async with asyncio.timeout(30):
        async with await anext(first.election.terms()) as old:
            pass
        async with await anext(second.election.terms()) as new:
            info = LeaderInfo(token=new, rpc="b:1", rest="http://b:2")
            await second.leader.publish(info)
            with pytest.raises(Fenced):
                await first.leader.publish(LeaderInfo(token=old, rpc="a:1", rest="http://a:2"))
            assert await first.leader.current() == info


async def test_declaring_a_process_dead_that_does_not_lead_does_nothing(contest: Contest) -> None:
    first, second = await contest.enter("a"), await contest.enter("b")
    async with asyncio.timeout(30):
        async with await anext(first.election.terms()) as old:
            pass
        async with await anext(second.election.terms()) as new:
            assert not await first.leader.declare_dead(old)
            await second.stores(new).graphs.put(stored_job())


async def _lead_once(terms: Terms) -> FencingToken:
    async with await anext(terms) as token:
        assert token.epoch >= Epoch(1)
        return token

"""The fake ZooKeeper keeps what the election rests on: sessions, ephemeral znodes, transactions, order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.zookeeper.operations import Check, Create, Delete, LinkState, Node, Refusal, RefusalReason, SetData
from flintlock.model.errors import Fenced, Unavailable
from flintlock.model.ids import FencingToken, JobId
from flintlock.testing.fakes.fake_zookeeper import ENSEMBLE, FakeEnsemble, FakeLink
from flintlock.testing.simulation.ha import DurableCluster, SimulatedHa
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import virtual_time

TIMEOUT_S = 4.0
_JOB = JobId("a" * 32)


class Members:
    """Processes with a link each; every state of a link is noted with its time."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(1))
        self.ensemble = FakeEnsemble(self.network, TIMEOUT_S)
        self.states: dict[str, list[LinkState]] = {}

    async def join(self, name: str) -> tuple[SimulatedProcess, FakeLink]:
        process = self.network.process(name)
        link = await process.spawn(_made(lambda: FakeLink(self.ensemble, process)), "link")
        states = self.states[name] = []
        link.listeners.add(lambda state, _: states.append(state))
        process.spawn(link.run(), "run")
        await link.connected()
        return process, link


async def _made(make: Callable[[], FakeLink]) -> FakeLink:
    return make()


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.01)


@virtual_time
async def test_transactions_take_place_as_a_whole_or_not_at_all() -> None:
    _, link = await Members().join("a")
    assert await link.transact([Create("/x", b"1"), Create("/x/y")]) is None

    refused = await link.transact([SetData("/x", b"2", 0), Delete("/x/z")])

    assert refused == Refusal(Delete("/x/z"), RefusalReason.NO_NODE)
    node = await link.get("/x")
    assert node is not None
    assert (node.data, node.version) == (b"1", 0)
    assert await link.transact([SetData("/x", b"2", 0)]) is None
    assert await link.transact([Check("/x", 0)]) == Refusal(Check("/x", 0), RefusalReason.BAD_VERSION)
    assert await link.transact([Create("/x")]) == Refusal(Create("/x"), RefusalReason.NODE_EXISTS)


@virtual_time
async def test_ephemeral_znodes_go_a_whole_timeout_after_the_last_request_of_their_session() -> None:
    members = Members()
    process, link = await members.join("a")
    _, other = await members.join("b")
    await link.transact([Create("/mine", ephemeral=True)])
    gone = asyncio.Event()
    assert await other.exists("/mine", gone)

    process.freeze()
    frozen_s = asyncio.get_running_loop().time()
    await gone.wait()

    assert frozen_s + TIMEOUT_S * 0.7 < asyncio.get_running_loop().time() <= frozen_s + TIMEOUT_S + 0.1
    assert not await other.exists("/mine")
    process.thaw()


@virtual_time
async def test_a_process_frozen_past_its_session_notices_the_loss_when_it_wakes_up() -> None:
    members = Members()
    process, link = await members.join("a")
    session = link.session

    process.freeze(length_s=3 * TIMEOUT_S)
    await asyncio.sleep(2 * TIMEOUT_S)
    assert members.states["a"] == [LinkState.CONNECTED]
    await until(lambda: LinkState.LOST in members.states["a"])
    await link.connected()

    assert link.session != session


@virtual_time
async def test_a_short_cut_changes_nothing_and_a_longer_one_suspends() -> None:
    members = Members()
    _, link = await members.join("a")
    session = link.session

    members.network.cut("a", ENSEMBLE)
    await asyncio.sleep(0.3 * TIMEOUT_S)
    members.network.heal()
    await asyncio.sleep(TIMEOUT_S)
    assert members.states["a"] == [LinkState.CONNECTED]

    members.network.cut(ENSEMBLE, "a", one_way=True)
    await until(lambda: link.state is LinkState.SUSPENDED)
    with pytest.raises(Unavailable):
        await link.get("/x")
    members.network.heal()
    await link.connected()

    assert link.session == session, "it was back in time"
    assert members.states["a"] == [LinkState.CONNECTED, LinkState.SUSPENDED, LinkState.CONNECTED]


@virtual_time
async def test_a_write_whose_answer_is_lost_is_unavailable_and_has_taken_place() -> None:
    members = Members()
    _, link = await members.join("a")

    members.network.cut(ENSEMBLE, "a", one_way=True)
    with pytest.raises(Unavailable):
        await link.transact([Create("/x")])
    members.network.heal()
    await link.connected()

    assert await link.exists("/x")


@virtual_time
async def test_a_server_that_is_cut_off_answers_reads_from_memory_and_holds_back_what_follows_a_write() -> None:
    members = Members()
    _, link = await members.join("a")
    _, other = await members.join("b")
    session = link.session
    await link.transact([Create("/x", b"1")])
    changed = asyncio.Event()
    assert await link.exists("/x", changed)

    members.ensemble.cut_off_server("a")
    await other.transact([SetData("/x", b"2", 0)])
    await asyncio.sleep(0.5 * TIMEOUT_S)
    node = await link.get("/x")
    assert node == Node(b"1", 0)
    assert not changed.is_set()

    async with asyncio.TaskGroup() as tasks:
        write = tasks.create_task(link.transact([Create("/y")]))
        read = tasks.create_task(link.get("/x"))
        await asyncio.sleep(0.3 * TIMEOUT_S)
        assert not write.done()
        assert not read.done(), "one client's requests are answered in order"
        members.ensemble.rejoin_server("a")
    assert (await write, await read) == (None, Node(b"2", 1))
    assert changed.is_set()
    assert (link.session, members.states["a"]) == (session, [LinkState.CONNECTED])


@virtual_time
async def test_a_server_that_is_cut_off_keeps_no_session_alive() -> None:
    members = Members()
    _, link = await members.join("a")
    _, other = await members.join("b")
    await link.transact([Create("/mine", ephemeral=True)])

    members.ensemble.cut_off_server("a")
    await asyncio.sleep(1.1 * TIMEOUT_S)

    assert link.state is LinkState.CONNECTED, "its server answers its pings"
    assert await link.exists("/mine")
    assert not await other.exists("/mine")
    members.ensemble.rejoin_server("a")
    await until(lambda: LinkState.LOST in members.states["a"])


@virtual_time
async def test_a_server_that_notices_that_it_is_cut_off_closes_its_connections() -> None:
    """What it held back is lost: a watch that it did not notify of wakes its client as the end of a connection does."""
    members = Members()
    _, link = await members.join("a")
    _, other = await members.join("b")
    await other.transact([Create("/x")])
    changed = asyncio.Event()
    await link.exists("/x", changed)

    members.ensemble.cut_off_server("a")
    await other.transact([Delete("/x")])
    await asyncio.sleep(0.2 * TIMEOUT_S)
    assert not changed.is_set()
    members.ensemble.stop_server("a")

    await until(changed.is_set, limit_s=1.0)
    await until(lambda: members.states["a"] == [LinkState.CONNECTED, LinkState.SUSPENDED, LinkState.CONNECTED])


class Contest:
    """JobManagers that contend through the fake."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(1))
        self.durable = DurableCluster(self.network, TIMEOUT_S)
        self.events: list[str] = []
        self.ha: dict[str, SimulatedHa] = {}

    def join(self, name: str) -> SimulatedProcess:
        process = self.network.process(name)
        process.spawn(self._contend(process), name)
        return process

    async def _contend(self, process: SimulatedProcess) -> None:
        ha = self.ha[process.name] = SimulatedHa(self.durable, process, _at_once)
        async for term in ha.election.terms():
            async with term as token:
                self.events.append(f"{process.name} leads")
                await ha.leader.publish(LeaderInfo(token=token, rpc=process.name, rest=""))
                try:
                    await asyncio.Event().wait()
                finally:
                    self.events.append(f"{process.name} is over")


def _at_once(_token: FencingToken, _name: str) -> Awaitable[None]:
    return asyncio.sleep(0)


@virtual_time
async def test_a_frozen_leader_is_succeeded_after_its_session_and_steps_down_when_it_wakes_up() -> None:
    contest = Contest()
    first = contest.join("jm-0")
    await until(lambda: contest.events == ["jm-0 leads"])
    contest.join("jm-1")
    await asyncio.sleep(1)
    old = contest.durable.token

    first.freeze(length_s=3 * TIMEOUT_S)
    await until(lambda: contest.events == ["jm-0 leads", "jm-1 leads"])
    await until(lambda: contest.events == ["jm-0 leads", "jm-1 leads", "jm-0 is over"])

    assert contest.durable.token.epoch == old.epoch + 1
    with pytest.raises(Fenced):
        await contest.ha["jm-0"].stores(old).progress.remove(_JOB)
    published = contest.durable.leader_info()
    assert published is not None
    assert published.rpc == "jm-1"


@virtual_time
async def test_a_leader_that_is_cut_off_has_stepped_down_before_another_leads() -> None:
    contest = Contest()
    contest.join("jm-0")
    await until(lambda: contest.events == ["jm-0 leads"])
    contest.join("jm-1")
    await asyncio.sleep(1)

    contest.network.cut("jm-0", ENSEMBLE)
    await until(lambda: "jm-1 leads" in contest.events)

    assert contest.events == ["jm-0 leads", "jm-0 is over", "jm-1 leads"]


@virtual_time
async def test_a_leader_that_is_declared_dead_while_it_runs_steps_down_and_leads_again_after_the_other() -> None:
    contest = Contest()
    contest.join("jm-0")
    await until(lambda: contest.events == ["jm-0 leads"])
    second = contest.join("jm-1")
    await asyncio.sleep(1)

    second.spawn(contest.ha["jm-1"].declare_dead(contest.durable.token), "declare_dead")
    await until(lambda: sorted(contest.events) == ["jm-0 is over", "jm-0 leads", "jm-1 leads"], limit_s=1)
    await asyncio.sleep(1)
    second.crash()
    await until(lambda: contest.events[-1] == "jm-0 leads", limit_s=2 * TIMEOUT_S)


@virtual_time
async def test_a_leader_that_is_cut_off_with_a_server_of_the_ensemble_steps_down_before_another_leads() -> None:
    """That server answers its reads all the time: only what a quorum has answered proves that it leads."""
    contest = Contest()
    contest.join("jm-0")
    await until(lambda: contest.events == ["jm-0 leads"])
    contest.join("jm-1")
    await asyncio.sleep(1)
    old = contest.durable.token

    contest.durable.ensemble.cut_off_server("jm-0")
    await until(lambda: contest.ha["jm-0"].election.paused(old) is not None, limit_s=0.8 * TIMEOUT_S)
    await until(lambda: "jm-1 leads" in contest.events)

    assert contest.events == ["jm-0 leads", "jm-0 is over", "jm-1 leads"]

"""A dead leader is declared dead at once, a silent one keeps its session: on the simulated network, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from flintlock.dispatcher.leader_watch import GRACE_S, LeaderWatch, is_loopback
from flintlock.gateways.leader import LeaderGateway, LeaderLivenessProbe, TermEnd
from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import virtual_time

ADDRESS = "jm-1:1"
FIRST, SECOND = FencingToken(Epoch(1), "a"), FencingToken(Epoch(2), "b")


class Leader:
    """A JobManager that is in the terms it is said to be in."""

    def __init__(self, *terms: FencingToken) -> None:
        self.terms = set(terms)
        self.asked: list[FencingToken] = []
        self.over = asyncio.Event()
        self.fail_with: Exception | None = None
        self.shut_down: ApplicationStatus | None = None

    async def watch_liveness(self, message: LeaderLivenessProbe) -> TermEnd:
        self.asked.append(message.token)
        if self.fail_with is not None:
            raise self.fail_with
        if message.token in self.terms:
            await self.over.wait()
        return TermEnd(shut_down=self.shut_down)


class Register:
    """Records which leaders were declared dead."""

    def __init__(self) -> None:
        self.declared_dead: list[FencingToken] = []
        self.failures = 0

    async def declare_dead(self, dead: FencingToken) -> bool:
        if self.failures:
            self.failures -= 1
            raise Unavailable("out of reach")
        self.declared_dead.append(dead)
        return True

    async def publish(self, info: LeaderInfo) -> None:
        raise NotImplementedError

    async def current(self) -> LeaderInfo | None:
        raise NotImplementedError

    def changes(self) -> AsyncIterator[LeaderInfo | None]:
        raise NotImplementedError


class Scene:
    """A standby that watches, and a leader."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(7))
        self.standby = self.network.process("standby")
        self.leader = Leader(FIRST)
        self.process = self.start(self.leader)
        self.known = KnownLeader()
        self.register = Register()
        self.own: set[FencingToken] = set()
        self.running: asyncio.Task[ApplicationStatus] | None = None  # written by `watching`

    def start(self, leader: Leader, address: str = ADDRESS) -> SimulatedProcess:
        process = self.network.process(address)
        process.serve(LeaderGateway, leader)
        return process

    def tell(self, token: FencingToken, *, address: str = ADDRESS, confirmed: bool = True, host: str = "there") -> None:
        self.known.update(LeaderInfo(token=token, rpc=address, rest="", confirmed=confirmed, host=host))

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        watch = LeaderWatch(
            known=self.known,
            register=self.register,
            connect=lambda address: self.standby.connect(LeaderGateway, address, timeout_s=3600),
            is_own=self.own.__contains__,
            host="here",
        )
        async with asyncio.TaskGroup() as tasks:
            self.running = tasks.create_task(watch.run())
            yield
            self.running.cancel()


@virtual_time
async def test_a_killed_leader_is_buried_within_the_grace_though_it_was_not_confirmed() -> None:
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST, confirmed=False)
        await asyncio.sleep(1000)
        assert (scene.register.declared_dead, scene.leader.asked) == ([], [FIRST])

        scene.process.crash()
        await asyncio.sleep(GRACE_S - 0.05)
        assert scene.register.declared_dead == []
        await asyncio.sleep(0.2)
        assert scene.register.declared_dead == [FIRST]
        await asyncio.sleep(1000)
        assert scene.register.declared_dead == [FIRST], "once is enough"


@virtual_time
async def test_that_a_leader_serves_now_is_no_reason_to_ask_it_anew() -> None:
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST, confirmed=False)
        await asyncio.sleep(1)
        scene.tell(FIRST)
        await asyncio.sleep(10)
        assert scene.leader.asked == [FIRST]


@virtual_time
async def test_a_frozen_leader_and_one_whose_host_is_gone_are_left_to_their_session() -> None:
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(1)
        scene.process.freeze()
        await asyncio.sleep(10_000)
        scene.process.thaw()
        scene.process.crash(host_too=True)
        await asyncio.sleep(10_000)
        assert scene.register.declared_dead == []


@virtual_time
async def test_a_process_that_was_started_again_at_its_address_has_left_its_term() -> None:
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(1)
        scene.process.crash()
        scene.start(Leader())
        await asyncio.sleep(GRACE_S + 0.2)
        assert scene.register.declared_dead == [FIRST]


@virtual_time
async def test_a_store_that_is_out_of_reach_is_told_as_soon_as_it_is_back() -> None:
    scene = Scene()
    scene.register.failures = 20
    async with scene.watching():
        scene.tell(FIRST)
        scene.process.crash()
        await asyncio.sleep(3)
        assert scene.register.declared_dead == []
        await asyncio.sleep(3)
        assert scene.register.declared_dead == [FIRST]


@virtual_time
async def test_the_next_leader_is_watched_and_the_former_one_no_more() -> None:
    scene = Scene()
    second = Leader(SECOND)
    machine = scene.start(second, "jm-2:1")
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(1)
        scene.known.update(None)
        await asyncio.sleep(1)
        scene.tell(SECOND, address="jm-2:1")
        await asyncio.sleep(1)
        scene.process.crash()
        await asyncio.sleep(10)
        assert (scene.register.declared_dead, second.asked) == ([], [SECOND])
        machine.crash()
        await asyncio.sleep(1)
        assert scene.register.declared_dead == [SECOND]


@virtual_time
async def test_nobody_watches_itself() -> None:
    scene = Scene()
    scene.own.add(FIRST)
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(10)
    assert scene.leader.asked == []


@virtual_time
async def test_a_leader_that_cannot_be_asked_such_a_thing_is_left_to_its_session() -> None:
    scene = Scene()
    scene.leader.fail_with = Refused("another version")
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(100)
    assert scene.register.declared_dead == []


@virtual_time
async def test_a_loopback_address_of_another_machine_proves_nothing() -> None:
    """Else two machines with that setting would declare each other's leaders dead for ever."""
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST, address="127.0.0.1:9")
        await asyncio.sleep(100)
        assert scene.register.declared_dead == []

        scene.tell(SECOND, address="127.0.0.1:9", host="here")
        await asyncio.sleep(1)
        assert scene.register.declared_dead == [SECOND]


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("127.1.2.3:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False),
     ("jm-1:1", False), ("[2001:db8::1]:1", False)],
)  # fmt: skip
def test_loopback_is_told_apart(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@virtual_time
async def test_a_standby_ends_with_the_leader_that_shuts_the_cluster_down_and_declares_nobody_dead() -> None:
    scene = Scene()
    async with scene.watching():
        scene.tell(FIRST)
        await asyncio.sleep(10)
        scene.leader.shut_down = ApplicationStatus.FAILED
        scene.leader.over.set()
        assert scene.running is not None
        assert await scene.running is ApplicationStatus.FAILED
    assert scene.register.declared_dead == []

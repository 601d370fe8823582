"""The watch declares a dead leader dead at once, and not one that does not answer: on a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from structlog.testing import capture_logs

from flintlock.dispatcher.leadership.leader_watch import GRACE_S, LeaderWatch, is_loopback
from flintlock.gateways.leader import LeaderAnswer, LeaderGateway, LeaderLivenessProbe, StandbyAddresses, TermEnd
from flintlock.ha.leader_info import ApplicationAttempt, KnownLeader, LeaderInfo
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.model.log_events import LEADER_UNREACHABLE
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import virtual_time

ADDRESS = "jm-1:1"
OWN = StandbyAddresses(rest="http://jm-2:8081", rpc="jm-2:1", host="here")
FIRST, SECOND = FencingToken(Epoch(1), "a"), FencingToken(Epoch(2), "b")


class Leader:
    """A JobManager that is in the given terms."""

    def __init__(self, *terms: FencingToken) -> None:
        self.terms = set(terms)
        self.asked: list[FencingToken] = []
        self.watched_by: StandbyAddresses | None = None
        self.over = asyncio.Event()
        self.fail_with: Exception | None = None
        self.shut_down: ApplicationStatus | None = None

    async def watch_liveness(self, message: LeaderLivenessProbe) -> TermEnd:
        self.asked.append(message.token)
        self.watched_by = message.standby
        if self.fail_with is not None:
            raise self.fail_with
        if message.token in self.terms:
            await self.over.wait()
        return TermEnd(shut_down=self.shut_down)

    async def check_liveness(self, message: LeaderLivenessProbe) -> LeaderAnswer:
        return LeaderAnswer(in_term=message.token in self.terms)


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


class WatchHarness:
    """A standby with a LeaderWatch, and a leader."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(7))
        self.standby = self.network.process("standby")
        self.leader = Leader(FIRST)
        self.process = self.start(self.leader)
        self.known = KnownLeader()
        self.register = Register()
        self.own: set[FencingToken] = set()
        self.attempt: ApplicationAttempt | None = None
        self.running: asyncio.Task[ApplicationStatus] | None = None  # written by `watching`

    def start(self, leader: Leader, address: str = ADDRESS) -> SimulatedProcess:
        process = self.network.process(address)
        process.serve(LeaderGateway, leader)
        return process

    def publish_leader(
        self,
        token: FencingToken,
        *,
        address: str = ADDRESS,
        confirmed: bool = True,
        host: str = "there",
        attempt: ApplicationAttempt | None = None,
    ) -> None:
        self.known.update(
            LeaderInfo(token=token, rpc=address, rest="", confirmed=confirmed, host=host, attempt=attempt)
        )

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        watch = LeaderWatch(
            known=self.known,
            register=self.register,
            connect=lambda address: self.standby.connect(LeaderGateway, address, timeout_s=3600),
            is_own=self.own.__contains__,
            own=OWN,
            attempt=self.attempt,
        )
        async with asyncio.TaskGroup() as tasks:
            self.running = tasks.create_task(watch.run())
            yield
            self.running.cancel()


@virtual_time
async def test_killed_leader_is_declared_dead_within_the_grace_period_even_if_it_was_not_confirmed() -> None:
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST, confirmed=False)
        await asyncio.sleep(1000)
        assert (harness.register.declared_dead, harness.leader.asked) == ([], [FIRST])
        assert harness.leader.watched_by == OWN, "the leader lists its standbys by that"

        harness.process.crash()
        await asyncio.sleep(GRACE_S - 0.05)
        assert harness.register.declared_dead == []
        await asyncio.sleep(0.2)
        assert harness.register.declared_dead == [FIRST]
        await asyncio.sleep(1000)
        assert harness.register.declared_dead == [FIRST], "once is enough"


@virtual_time
async def test_leader_that_becomes_confirmed_is_not_probed_again() -> None:
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST, confirmed=False)
        await asyncio.sleep(1)
        harness.publish_leader(FIRST)
        await asyncio.sleep(10)
        assert harness.leader.asked == [FIRST]


@virtual_time
async def test_frozen_leader_and_one_whose_host_is_down_keep_their_term_until_their_session_expires() -> None:
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(1)
        harness.process.freeze()
        await asyncio.sleep(10_000)
        harness.process.thaw()
        harness.process.crash(host_too=True)
        await asyncio.sleep(10_000)
        assert harness.register.declared_dead == []


@virtual_time
async def test_process_restarted_at_the_leaders_address_proves_the_leader_dead() -> None:
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(1)
        harness.process.crash()
        harness.start(Leader())
        await asyncio.sleep(GRACE_S + 0.2)
        assert harness.register.declared_dead == [FIRST]


@virtual_time
async def test_leader_that_never_accepted_a_connection_from_here_keeps_its_term() -> None:
    """Else two JobManagers whose ports are closed for each other would depose each other in turn, for ever."""
    harness = WatchHarness()
    harness.network.refuse("standby", ADDRESS)
    async with harness.watching():
        with capture_logs() as logs:
            harness.publish_leader(FIRST)
            await asyncio.sleep(1000)
        assert (harness.register.declared_dead, harness.leader.asked) == ([], [])
        assert [line["reason"] for line in logs if line["event"] == LEADER_UNREACHABLE] == [
            "it has refused every connection from here"
        ]

        harness.network.accept("standby", ADDRESS)
        await asyncio.sleep(2)
        harness.process.crash()
        await asyncio.sleep(2)
        assert harness.register.declared_dead == [FIRST], "once it was reached, its death is noticed"


@virtual_time
async def test_declaring_a_leader_dead_is_retried_until_the_store_answers() -> None:
    harness = WatchHarness()
    harness.register.failures = 20
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(1)
        harness.process.crash()
        await asyncio.sleep(3)
        assert harness.register.declared_dead == []
        await asyncio.sleep(3)
        assert harness.register.declared_dead == [FIRST]


@virtual_time
async def test_next_leader_is_watched_and_the_former_one_no_longer() -> None:
    harness = WatchHarness()
    second = Leader(SECOND)
    machine = harness.start(second, "jm-2:1")
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(1)
        harness.known.update(None)
        await asyncio.sleep(1)
        harness.publish_leader(SECOND, address="jm-2:1")
        await asyncio.sleep(1)
        harness.process.crash()
        await asyncio.sleep(10)
        assert (harness.register.declared_dead, second.asked) == ([], [SECOND])
        machine.crash()
        await asyncio.sleep(1)
        assert harness.register.declared_dead == [SECOND]


@virtual_time
async def test_leader_does_not_watch_itself() -> None:
    harness = WatchHarness()
    harness.own.add(FIRST)
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(10)
    assert harness.leader.asked == []


@virtual_time
async def test_leader_that_does_not_support_the_probe_keeps_its_term_until_its_session_expires() -> None:
    harness = WatchHarness()
    harness.leader.fail_with = Refused("another version")
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(100)
    assert harness.register.declared_dead == []


@virtual_time
async def test_leader_on_another_machine_with_a_loopback_address_is_not_watched() -> None:
    """Else two machines with that setting would declare each other's leaders dead endlessly."""
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST, address="127.0.0.1:9")
        await asyncio.sleep(100)
        assert harness.register.declared_dead == []

        harness.publish_leader(SECOND, address="127.0.0.1:9", host="here")
        await asyncio.sleep(1)
        assert harness.register.declared_dead == [SECOND]


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1:1", True), ("127.1.2.3:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False),
     ("jm-1:1", False), ("[2001:db8::1]:1", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognised(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@virtual_time
async def test_standby_ends_with_the_leader_that_shuts_the_cluster_down_and_declares_no_leader_dead() -> None:
    harness = WatchHarness()
    async with harness.watching():
        harness.publish_leader(FIRST)
        await asyncio.sleep(10)
        harness.leader.shut_down = ApplicationStatus.FAILED
        harness.leader.over.set()
        assert harness.running is not None
        assert await harness.running is ApplicationStatus.FAILED
    assert harness.register.declared_dead == []


@virtual_time
async def test_leader_of_an_earlier_attempt_of_the_application_is_dead_whether_it_answers_or_not() -> None:
    """It may run on a node that YARN has lost; YARN starts an attempt only when it has given up the one before."""
    for address in (ADDRESS, "127.0.0.1:1"):
        harness = WatchHarness()
        harness.attempt = ApplicationAttempt(application="application_1_0001", number=2)
        async with harness.watching():
            first = ApplicationAttempt(application="application_1_0001", number=1)
            harness.publish_leader(FIRST, address=address, attempt=first)
            await asyncio.sleep(0.01)
            assert harness.register.declared_dead == [FIRST]
            assert harness.leader.asked == []


@virtual_time
@pytest.mark.parametrize(
    "attempt",
    [
        None,
        ApplicationAttempt(application="application_1_0001", number=2),
        ApplicationAttempt(application="application_1_0001", number=3),
        ApplicationAttempt(application="application_1_0002", number=1),
    ],
)
async def test_leader_of_a_later_attempt_or_of_another_application_keeps_its_term(
    attempt: ApplicationAttempt | None,
) -> None:
    """Else an attempt that YARN has given up, and that still runs, would depose the one that YARN has started."""
    harness = WatchHarness()
    harness.attempt = ApplicationAttempt(application="application_1_0001", number=2)
    async with harness.watching():
        harness.publish_leader(FIRST, attempt=attempt)
        await asyncio.sleep(1000)
        assert harness.register.declared_dead == []
        assert harness.leader.asked == [FIRST]

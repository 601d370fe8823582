"""The attempts of a simulated application on YARN: JobManagers that are its ApplicationMaster, one after another.

Each has the product's own `YarnContainers`, over a `SimulatedYarn` and on virtual time. It registers some time after it
has started, and usually after it has begun to lead. YARN starts the next attempt when one has ended, or gives one up
whose heartbeats do not arrive: that one runs on, at another address, until YARN tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from random import Random
from typing import Final, TypeVar

from flintlock.entrypoints.workers.providers import WorkerDriverOpener
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.slots import Hardware
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.simulation.yarn import SimulatedYarn
from flintlock.yarn.containers import HEARTBEATS, BlockingCalls, HeartbeatIntervals, YarnContainers
from flintlock.yarn.gateways import ApplicationMasterGateway
from flintlock.yarn.messages import Allocation, Container, ContainerSize, FinalStatus, Launch, Registered
from flintlock.yarn.node_failures import ExclusionRules
from flintlock.yarn.workers import yarn_workers

T = TypeVar("T")

_INTERVALS: Final = HeartbeatIntervals(idle_s=5.0, waiting_s=0.5)
_EXCLUSION: Final = ExclusionRules(failures=3, duration_s=60.0)
_NEXT_ATTEMPT_S: Final = 5.0
_LATEST_REGISTRATIONS_S: Final = (2.0, 2.0, 20.0)
_LONGEST_ABSENCE_S: Final = 60.0
_LONGEST_CUT_S: Final = 30.0
_SLOW_CALLS: Final = 0.05  # probability that a NodeManager takes long to answer
_SLOWEST_S: Final = 10.0
_POLL_S: Final = 0.5


class AttemptGivenUp(Exception):
    """YARN has given an attempt up, and said so to it."""


class YarnAttempts:
    """All attempts of the application: a fleet whose workers are containers."""

    def __init__(
        self,
        random: Random,
        network: SimulatedNetwork,
        faults: Faults,
        run: Callable[[str], Awaitable[None]],
        record: Callable[[str], None],
        *,
        slots: int,
    ) -> None:
        self.slots: Final = slots
        self._random: Final = random
        self._network: Final = network
        self._faults: Final = faults
        self._record: Final = record
        self._yarn: Final = SimulatedYarn(random, network, run, record)
        self._hosts: Sequence[str] = ()  # where JobManagers can be started; set by `run`
        self._numbers: Final[dict[str, int]] = {}  # of the latest attempt at each of them
        self._given_up = asyncio.Event()  # the present attempt was
        self._away_until_s = 0.0  # YARN answers no heartbeat until then
        self._cut_until_s: Final[dict[int, float]] = {}  # nor those of this attempt

    @property
    def machines(self) -> dict[TaskManagerId, str]:
        """The nodes of the containers whose processes run."""
        return self._yarn.running

    def left_over(self) -> list[str]:
        """Return what has not ended: processes, and containers that YARN counts as running."""
        return self._yarn.left_over()

    def is_given_up(self, host: str) -> bool:
        """Return whether the latest attempt at this address is not the present one."""
        return self._numbers.get(host, 0) < self._yarn.attempt

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Run containers as children of this group, and draw the times of what goes wrong."""
        self._yarn.begin(tasks)
        for count, fault in (
            (self._faults.lost_containers, self._lose_a_container),
            (self._faults.abandoned_attempts, self._give_up),
            (self._faults.absences_of_yarn, self._be_away),
        ):
            for _ in range(count):
                delay_s = self._random.uniform(1.0, self._faults.until_s)
                tasks.create_task(_after(delay_s, fault), name=fault.__name__)

    async def run(
        self, hosts: Sequence[str], tasks: asyncio.TaskGroup, main: Callable[[SimulatedProcess], Awaitable[None]]
    ) -> None:
        """Start one attempt after another, as children of this group, until the application has been unregistered."""
        self._hosts = hosts
        while True:
            while not (free := self._free_hosts()):  # noqa: ASYNC110 (no event)
                await asyncio.sleep(_POLL_S)
            number, self._given_up = self._yarn.begin_attempt(), asyncio.Event()
            host = free[number % len(free)]
            self._numbers[host] = number
            running = tasks.create_task(_main(main, self._network.process(host)), name=f"attempt-{number}")
            given_up = tasks.create_task(self._given_up.wait(), name=f"given-up-{number}")
            await asyncio.wait({running, given_up}, return_when=asyncio.FIRST_COMPLETED)
            given_up.cancel()
            await asyncio.sleep(self._random.uniform(0.5, _NEXT_ATTEMPT_S))
            if self._yarn.has_finished:
                return

    @asynccontextmanager
    async def attend(self, process: SimulatedProcess, hardware: Hardware) -> AsyncGenerator[YarnAttempt]:
        """Register the attempt of this process, and send heartbeats. Raises (in a group) AttemptGivenUp."""
        number = self._numbers[process.name]
        master = SimulatedMaster(self._yarn, number)

        def calls(_: int, name: str) -> BlockingCalls:
            return SimulatedCalls(self._random, process, self._reachable_s if name == HEARTBEATS else None, number)

        containers = YarnContainers(
            master,
            ContainerSize(memory_mb=hardware.physical_memory >> 20, vcores=hardware.cpu_cores),
            lambda container: Launch(command=container.id),
            _INTERVALS,
            exclusion=_EXCLUSION,
            blocking_calls=calls,
        )
        async with asyncio.TaskGroup() as tasks:
            heartbeats = tasks.create_task(self._send_heartbeats(containers, number), name="yarn-heartbeats")
            try:
                yield YarnAttempt(containers, master, number, self.slots)
            finally:
                heartbeats.cancel()

    async def _send_heartbeats(self, containers: YarnContainers, number: int) -> None:
        await asyncio.sleep(self._random.uniform(0.2, self._random.choice(_LATEST_REGISTRATIONS_S)))
        await asyncio.sleep(max(0.0, self._reachable_s(number) - asyncio.get_running_loop().time()))
        try:
            await containers.register("am", 1, "http://am:1")
            await containers.run()
        except Unavailable as error:
            if self._yarn.attempt == number and not self._yarn.has_finished:
                raise
            raise AttemptGivenUp(f"attempt {number}") from error

    def _reachable_s(self, number: int) -> float:
        """Return when YARN will answer an attempt."""
        return max(self._away_until_s, self._cut_until_s.get(number, 0.0))

    def _free_hosts(self) -> list[str]:
        return [host for host in self._hosts if (former := self._network.at(host)) is None or not former.alive]

    async def _lose_a_container(self) -> None:
        self._record(f"YARN writes off {self._yarn.lose_a_container()}")

    async def _be_away(self) -> None:
        length_s = self._random.uniform(1.0, _LONGEST_ABSENCE_S)
        self._record(f"YARN answers no heartbeat for {length_s:.1f} s")
        self._away_until_s = asyncio.get_running_loop().time() + length_s

    async def _give_up(self) -> None:
        """Give the present attempt up, which learns of it later; another one needs a machine of its own."""
        number = self._yarn.attempt
        if self._free_hosts() and not self._given_up.is_set():
            length_s = self._random.uniform(0.5, _LONGEST_CUT_S)
            self._record(f"YARN gives up attempt {number}, which learns of it after {length_s:.1f} s")
            self._cut_until_s[number] = asyncio.get_running_loop().time() + length_s
            self._given_up.set()


class YarnAttempt:
    """One attempt, as its JobManager sees it."""

    def __init__(self, containers: YarnContainers, master: SimulatedMaster, number: int, slots: int) -> None:
        self.attempt: Final = ApplicationAttempt(application="application", number=number)
        self._containers: Final = containers
        self._master: Final = master
        self._slots: Final = slots

    @property
    def open(self) -> WorkerDriverOpener:
        """Opens the driver of one term."""
        return lambda _: yarn_workers(self._containers, self._slots)

    async def finish(self) -> None:
        """Unregister. An attempt that was given up need not."""
        await self._containers.registered.wait()
        await self._containers.call(lambda: self._master.unregister(FinalStatus.SUCCEEDED, ""))


class SimulatedMaster(ApplicationMasterGateway):
    """An ApplicationMasterGateway of one attempt."""

    def __init__(self, yarn: SimulatedYarn, number: int) -> None:
        self._yarn: Final = yarn
        self._number: Final = number
        self._given_back: list[Container] = []  # sent with the next heartbeat
        self._excluded: frozenset[str] = frozenset()

    def register(self, host: str, port: int, tracking_url: str) -> Registered:
        """Return the containers of earlier attempts."""
        return self._yarn.register(self._number)

    def heartbeat(self, size: ContainerSize, wanted: int) -> Allocation:
        """Return what has happened."""
        given_back, self._given_back = self._given_back, []
        return self._yarn.heartbeat(self._number, wanted, given_back, self._excluded)

    def exclude(self, nodes: frozenset[str]) -> None:
        """Request no containers there."""
        self._excluded = nodes

    def launch(self, container: Container, launch: Launch) -> None:
        """Start the process."""
        self._yarn.launch(container)

    def stop(self, container: Container) -> None:
        """End the process."""
        self._yarn.stop(container)

    def give_back(self, container: Container) -> None:
        """Return it with the next heartbeat, as YARN's client does."""
        self._given_back.append(container)

    def check_bridge(self) -> None:
        """Answer."""

    def end_bridge(self) -> None:
        """Do nothing: there is no JVM."""

    def unregister(self, status: FinalStatus, diagnostics: str) -> None:
        """End the application."""
        self._yarn.unregister(self._number)


class SimulatedCalls:
    """Makes calls as tasks of a process: each takes a while, and happens even if nobody waits for it any more."""

    def __init__(
        self, random: Random, process: SimulatedProcess, reachable_s: Callable[[int], float] | None, number: int
    ) -> None:
        self._random: Final = random
        self._process: Final = process
        self._reachable_s: Final = reachable_s  # when YARN's ResourceManager answers; None for calls to nodes
        self._number: Final = number

    def submit(self, work: Callable[[], T]) -> Future[T] | asyncio.Future[T]:
        """See `BlockingCalls`."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_ignore_failure)
        self._process.spawn(self._make(work, outcome), "yarn-call")
        return outcome

    async def _make(self, work: Callable[[], T], outcome: asyncio.Future[T]) -> None:
        await asyncio.sleep(self._delay_s())
        if self._reachable_s is not None:
            await asyncio.sleep(max(0.0, self._reachable_s(self._number) - asyncio.get_running_loop().time()))
        self._process.require_alive()
        failure: FlintlockError | None = None
        answer: list[T] = []
        try:
            answer.append(work())
        except FlintlockError as error:
            failure = error
        await asyncio.sleep(self._delay_s())
        if outcome.done():
            return
        if failure is not None:
            outcome.set_exception(failure)
        else:
            outcome.set_result(answer[0])

    def _delay_s(self) -> float:
        slow = self._reachable_s is None and self._random.random() < _SLOW_CALLS
        return self._random.uniform(0.001, _SLOWEST_S if slow else 0.02)


async def _main(main: Callable[[SimulatedProcess], Awaitable[None]], process: SimulatedProcess) -> None:
    await main(process)


async def _after(delay_s: float, fault: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(delay_s)
    await fault()


def _ignore_failure(outcome: asyncio.Future[T]) -> None:
    if not outcome.cancelled():
        outcome.exception()

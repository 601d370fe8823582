"""The workers of a simulated cluster in active mode: TaskManagers that leaders start, and that outlive them.

Each JobManager is a machine of its own: its driver knows, and can end, only the workers that were started there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Final, Protocol

from flintlock.entrypoints.workers.providers import WorkerDriverOpener
from flintlock.gateways.workers import WorkerEnded
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import Hardware
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess

_START_FAILURES: Final = 0.1
#: What JobManagers of a cluster with workers are configured with.
SETTINGS: Final = {
    "resourcemanager.max-taskmanagers": "3",
    "resourcemanager.taskmanager-timeout": "5 s",
    "resourcemanager.start-worker.retry-interval": "500 ms",
    "resourcemanager.taskmanager-registration.timeout": "40 s",
}
#: After which time without a leader a worker ends by itself.
UNREGISTERED_S: Final = 300.0


class WorkerAccess(Protocol):
    """What one JobManager has to do with workers."""

    @property
    def attempt(self) -> ApplicationAttempt | None:
        """Which one of the application it is, where something counts them."""
        ...

    @property
    def open(self) -> WorkerDriverOpener:
        """Opens the driver of one term."""
        ...

    async def finish(self) -> None:
        """The cluster has shut down for good."""
        ...


class AnyFleet(Protocol):
    """All workers of a cluster."""

    @property
    def machines(self) -> dict[TaskManagerId, str]:
        """Where each of those is that run."""
        ...

    def left_over(self) -> list[str]:
        """Return what has not ended."""
        ...

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Run workers as children of this group."""
        ...

    def is_given_up(self, host: str) -> bool:
        """Return whether another JobManager was started in place of the one at this address."""
        ...

    def attend(self, process: SimulatedProcess, hardware: Hardware) -> AbstractAsyncContextManager[WorkerAccess]:
        """Give the process of a JobManager access to workers while it runs."""
        ...


class LocalAccess:
    """A JobManager's access to workers of its machine."""

    attempt: ApplicationAttempt | None = None

    def __init__(self, fleet: Fleet, process: SimulatedProcess, hardware: Hardware) -> None:
        self._fleet: Final = fleet
        self._process: Final = process
        self._hardware: Final = hardware

    @property
    def open(self) -> WorkerDriverOpener:
        """Opens the driver of one term."""
        return lambda _: self._fleet.open(self._process, self._hardware)

    async def finish(self) -> None:
        """Leave everything as it is."""


class Fleet:
    """All workers that run, on all machines."""

    def __init__(
        self, random: Random, network: SimulatedNetwork, run: Callable[[str], Awaitable[None]], *, slots: int
    ) -> None:
        self._random: Final = random
        self._network: Final = network
        self._run: Final = run  # runs the process of a worker, until it ends
        self.slots: Final = slots
        self._tasks: asyncio.TaskGroup | None = None  # while the cluster runs
        self._started = 0  # so far
        self.machines: Final[dict[TaskManagerId, str]] = {}  # of the workers that run
        self._drivers: Final[list[SimulatedWorkers]] = []  # that are open

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Run workers as children of this group."""
        self._tasks = tasks

    def left_over(self) -> list[str]:
        """Return the workers that run."""
        return list(self.machines)

    def is_given_up(self, host: str) -> bool:
        """Return False: a JobManager is started again only when it has ended."""
        return False

    @asynccontextmanager
    async def attend(self, process: SimulatedProcess, hardware: Hardware) -> AsyncGenerator[LocalAccess]:
        """Give a JobManager access to the workers of its machine."""
        yield LocalAccess(self, process, hardware)

    @asynccontextmanager
    async def open(self, process: SimulatedProcess, hardware: Hardware) -> AsyncGenerator[SimulatedWorkers]:
        """Open the driver of one term at a machine."""
        found = tuple(worker for worker, machine in self.machines.items() if machine == process.name)
        driver = SimulatedWorkers(self, process, hardware, found)
        self._drivers.append(driver)
        try:
            yield driver
        finally:
            self._drivers.remove(driver)

    async def start(self, process: SimulatedProcess, withdrawn: asyncio.Future[None]) -> TaskManagerId | None:
        """Start a worker at a machine, unless that is withdrawn while it waits for resources. Raises Unavailable."""
        await asyncio.wait({withdrawn}, timeout=self._random.uniform(0.05, 1.0))
        process.require_alive()
        if withdrawn.done():
            return None
        if self._tasks is None or self._random.random() < _START_FAILURES:
            raise Unavailable("no process could be started: simulated")
        self._started += 1
        worker = TaskManagerId(f"worker-{self._started}")
        self.machines[worker] = process.name
        self._tasks.create_task(self._keep(worker), name=f"keep-{worker}")
        return worker

    async def release(self, process: SimulatedProcess, worker: TaskManagerId) -> None:
        """End a worker of a machine; one of another machine is not touched."""
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        process.require_alive()
        running = self._network.at(worker)
        if self.machines.get(worker) == process.name and running is not None:
            running.crash()

    async def _keep(self, worker: TaskManagerId) -> None:
        await self._run(worker)
        machine = self.machines.pop(worker)
        for driver in self._drivers:
            if driver.machine == machine:
                driver.notice_end(worker)


class SimulatedWorkers:
    """A WorkerDriver for one term."""

    def __init__(
        self, fleet: Fleet, process: SimulatedProcess, hardware: Hardware, taken_over: tuple[TaskManagerId, ...]
    ) -> None:
        self._fleet: Final = fleet
        self._process: Final = process
        self._hardware: Final = hardware
        self._taken_over: Final = taken_over
        self._released: Final[set[TaskManagerId]] = set()
        self._ends: Final[asyncio.Queue[WorkerEnded]] = asyncio.Queue()
        self._waiting: Final[list[asyncio.Future[None]]] = []  # starts; the result withdraws one

    @property
    def machine(self) -> str:
        """Where its workers run."""
        return self._process.name

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """Return the workers that ran at this machine when the term began."""
        return self._taken_over

    async def found(self) -> TaskManagerId:
        """Wait for ever: all are known."""
        never: asyncio.Future[TaskManagerId] = asyncio.get_running_loop().create_future()
        return await never

    @property
    def slots(self) -> int:
        """As for every TaskManager."""
        return self._fleet.slots

    @property
    def resources(self) -> Resources:
        """As for every TaskManager."""
        return Resources(cpu=float(self._hardware.cpu_cores), memory=self._hardware.physical_memory)

    async def start(self) -> TaskManagerId | None:
        """Start a worker; some cannot be started."""
        withdrawn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(withdrawn)
        try:
            return await self._fleet.start(self._process, withdrawn)
        finally:
            if withdrawn in self._waiting:
                self._waiting.remove(withdrawn)

    def withdraw_start(self) -> bool:
        """Withdraw the latest start that waits."""
        if not self._waiting:
            return False
        self._waiting.pop().set_result(None)
        return True

    async def release(self, worker: TaskManagerId) -> None:
        """End a worker."""
        self._released.add(worker)
        await self._fleet.release(self._process, worker)

    async def release_all(self) -> None:
        """End the workers of this machine."""
        for worker in [worker for worker, machine in self._fleet.machines.items() if machine == self.machine]:
            await self.release(worker)

    async def ended(self) -> WorkerEnded:
        """Wait until a worker of this machine has ended that was not released."""
        return await self._ends.get()

    def notice_end(self, worker: TaskManagerId) -> None:
        """The process of a worker has ended."""
        if worker not in self._released:
            self._ends.put_nowait(WorkerEnded(worker, "its process has ended: simulated"))

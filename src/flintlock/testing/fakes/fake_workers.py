"""A fake driver for workers: records requests, and lets tests decide when workers end."""

from __future__ import annotations

import asyncio

from flintlock.gateways.workers import WorkerEnded
from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources


class FakeWorkers:
    """A WorkerDriver. Workers are "worker-1", "worker-2", …; `fail_with` is raised by every start."""

    def __init__(self, slots: int = 2, resources: Resources | None = None) -> None:
        self._slots = slots
        self._resources = resources or Resources()
        self.former: tuple[TaskManagerId, ...] = ()  # of an earlier leader
        self.is_former_known = asyncio.Event()  # until then nothing is known of those
        self.is_former_known.set()
        self.late_former: asyncio.Queue[TaskManagerId] = asyncio.Queue()  # those that become known later
        self.started: list[TaskManagerId] = []
        self.released: list[TaskManagerId] = []
        self.fail_with: Unavailable | None = None
        self.tries: list[float] = []  # when each start was requested
        self.gate = asyncio.Event()  # while it is closed, releases do not return
        self.gate.set()
        self.has_resources = True  # otherwise starts wait until they are withdrawn
        self._waiting: list[asyncio.Future[None]] = []  # starts
        self._ends: asyncio.Queue[WorkerEnded] = asyncio.Queue()
        self._shutting_down = False  # written by `release_all`

    @property
    def slots(self) -> int:
        """As passed in."""
        return self._slots

    @property
    def resources(self) -> Resources:
        """As passed in."""
        return self._resources

    @property
    def alive(self) -> list[TaskManagerId]:
        """Those that were started and neither released nor ended."""
        return [worker for worker in self.started if worker not in self.released]

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """Return the former workers, once they are known."""
        await self.is_former_known.wait()
        return self.former

    async def found(self) -> TaskManagerId:
        """Return the next one of `late_former`."""
        return await self.late_former.get()

    async def start(self) -> TaskManagerId | None:
        """Record the start."""
        self.tries.append(asyncio.get_running_loop().time())
        if not self.has_resources:
            self._waiting.append(withdrawn := asyncio.get_running_loop().create_future())
            await withdrawn
            return None
        if self.fail_with is not None:
            raise self.fail_with
        if self._shutting_down:
            raise Unavailable("no worker is started: the cluster is shutting down")
        worker = TaskManagerId(f"worker-{len(self.started) + 1}")
        self.started.append(worker)
        return worker

    def withdraw_start(self) -> bool:
        """Let the latest start that waits return."""
        if not self._waiting:
            return False
        self._waiting.pop().set_result(None)
        return True

    async def release(self, worker: TaskManagerId) -> None:
        """Record the release."""
        await self.gate.wait()
        if worker not in self.released:
            self.released.append(worker)

    async def release_all(self) -> None:
        """Release those that are alive."""
        self._shutting_down = True
        for worker in self.alive:
            await self.release(worker)

    async def ended(self) -> WorkerEnded:
        """Wait for `end`."""
        return await self._ends.get()

    def end(self, worker: str, reason: str = "its process was killed by SIGKILL") -> None:
        """Let a worker end by itself."""
        self.released.append(TaskManagerId(worker))
        self._ends.put_nowait(WorkerEnded(TaskManagerId(worker), reason))

    def next_term(self) -> FakeWorkers:
        """Return the driver of the next leader, with the workers that are alive."""
        driver = FakeWorkers(self._slots, self._resources)
        driver.started, driver.released = self.started, self.released
        driver.former = tuple(self.alive)
        return driver

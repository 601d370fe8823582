"""Workers in containers of YARN: a driver for active mode.

Containers outlive the term, and with more than one attempt of the ApplicationMaster also the process, that started
them: YARN hands those of earlier attempts to the next one when it registers, with the right to stop them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.gateways.workers import WorkerEnded
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.yarn.containers import YarnContainers

log: FilteringBoundLogger = structlog.get_logger()

_MIB: Final = 1 << 20


@asynccontextmanager
async def yarn_workers(containers: YarnContainers, slots: int) -> AsyncGenerator[YarnWorkers]:
    """Yield a driver for one term, with the workers that run; on exit they run on."""
    driver = YarnWorkers(containers, slots)
    try:
        yield driver
    finally:
        driver.leave_all()


class YarnWorkers:
    """A WorkerDriver. `yarn_workers` creates it. The id of a worker is that of its container."""

    def __init__(self, containers: YarnContainers, slots: int) -> None:
        self._containers: Final = containers
        self._slots: Final = slots
        self._ends: Final[asyncio.Queue[WorkerEnded]] = asyncio.Queue()
        self._found: Final[asyncio.Queue[TaskManagerId]] = asyncio.Queue()
        self._shutting_down = False  # written by `release_all`
        containers.listen(self._ends, self._found)

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """Wait for the registration with YARN, which returns the containers of earlier attempts."""
        await self._containers.registered.wait()
        return self._containers.running()

    async def found(self) -> TaskManagerId:
        """Wait for a container of an earlier attempt that its node reports only now."""
        return await self._found.get()

    @property
    def slots(self) -> int:
        """See `WorkerDriver`."""
        return self._slots

    @property
    def resources(self) -> Resources:
        """Those of its container."""
        size = self._containers.size
        return Resources(cpu=float(size.vcores), memory=size.memory_mb * _MIB)

    def withdraw_start(self) -> bool:
        """Request one container less, if one is awaited."""
        return self._containers.withdraw_start()

    async def start(self) -> TaskManagerId | None:
        """Wait for a container, and start a TaskManager in it."""
        if self._shutting_down:
            raise Unavailable("no container is requested: the cluster is shutting down")
        return await self._containers.start()

    async def release(self, worker: TaskManagerId) -> None:
        """End a container and return once it has ended."""
        await self._containers.release(worker)

    async def release_all(self) -> None:
        """End all containers and return once they have ended, as far as YARN confirms that.

        The others end when the application unregisters: a node that does not answer must not prevent that.
        """
        self._shutting_down = True
        await self._containers.registered.wait()
        while workers := self._containers.running():  # one that was being started is found by the next round
            ends = await asyncio.gather(*map(self.release, workers), return_exceptions=True)
            if failed := [end for end in ends if isinstance(end, FlintlockError)]:
                log.warning(log_events.WORKER_NOT_RELEASED, task_managers=workers, reason=failed[0].public)
                return

    async def ended(self) -> WorkerEnded:
        """Wait for the next container that ends by itself."""
        return await self._ends.get()

    def leave_all(self) -> None:
        """Report no ends any more: the workers are the next leader's."""
        self._containers.listen(None)

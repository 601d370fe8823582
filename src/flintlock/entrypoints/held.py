"""What a leader sends out, held back while it must not act: commands to TaskManagers, orders for workers."""

from __future__ import annotations

from typing import Final, TypeVar

from flintlock.gateways.workers import WorkerDriver, WorkerEnded
from flintlock.ha.leader_gate import LeaderGate
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.rpc.description import Message, MethodShape, proxy

G = TypeVar("G")


def held(gateway: type[G], address: str, behind: G, standing: LeaderGate) -> G:
    """Return a stand-in whose calls leave only while the leader may act; those made meanwhile wait, in no order."""

    async def call(shape: MethodShape, message: Message) -> Message:
        await standing.cleared()
        method = getattr(behind, shape.name)
        return await (method() if shape.request is None else method(message))

    return proxy(gateway, address, call)


class GatedWorkerDriver:
    """A WorkerDriver that starts and releases nobody while the leader must not act."""

    def __init__(self, driver: WorkerDriver, standing: LeaderGate) -> None:
        self._driver: Final = driver
        self._standing: Final = standing

    @property
    def slots(self) -> int:
        """How many slots a worker offers."""
        return self._driver.slots

    @property
    def resources(self) -> Resources:
        """What a worker has beside slots."""
        return self._driver.resources

    async def start(self) -> TaskManagerId:
        """Start a worker."""
        await self._standing.cleared()
        return await self._driver.start()

    async def release(self, worker: TaskManagerId) -> None:
        """End a worker."""
        await self._standing.cleared()
        await self._driver.release(worker)

    async def ended(self) -> WorkerEnded:
        """Wait until a worker has ended by itself."""
        return await self._driver.ended()

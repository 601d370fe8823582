"""What the ResourceManager requires of a driver that starts TaskManagers for it.

A worker is a TaskManager that the cluster started by itself. It registers like any other; its id says that it is one.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources


class WorkerEnded(Struct, frozen=True):
    """A worker has ended that was not released."""

    id: TaskManagerId
    reason: str


class WorkerDriver(Protocol):
    """Starts and ends workers for one term. Those that run when it is over are the next leader's."""

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """Return the workers that an earlier leader started and that run; wait until that is known.

        Asked once, before the first start.
        """
        ...

    async def found(self) -> TaskManagerId:
        """Wait until a worker of an earlier leader becomes known that `taken_over` has not returned.

        Each is returned once. Where all are known from the beginning, this waits for ever.
        """
        ...

    @property
    def slots(self) -> int:
        """How many slots a worker offers."""
        ...

    @property
    def resources(self) -> Resources:
        """What a worker has beside slots; 0 where that is not known."""
        ...

    async def start(self) -> TaskManagerId | None:
        """Start a worker and return the id that it will register with, which no other worker ever had.

        It may wait for resources for as long as that takes; None if it was withdrawn meanwhile. Raises Unavailable if
        the worker cannot be started.
        """
        ...

    def withdraw_start(self) -> bool:
        """Withdraw the latest start that waits for resources: no worker will come of it.

        Return whether there was one; False also where starts never wait.
        """
        ...

    async def release(self, worker: TaskManagerId) -> None:
        """End a worker; return once it is gone. Harmless if it is gone already."""
        ...

    async def release_all(self) -> None:
        """End all workers, registered or not; return once they are gone. None is started any more.

        For a cluster that shuts down: no later leader would take them over.
        """
        ...

    async def ended(self) -> WorkerEnded:
        """Wait until a worker has ended that was not released. Each is returned once."""
        ...

"""What the cluster may ask of the ResourceManager."""

from __future__ import annotations

from typing import Protocol

from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LogQuery, RemoveFiles


class ResourceManagerGateway(Protocol):
    """Knows which slots exist and who has them."""

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Take in a TaskManager; a newer instance replaces the older. Raises Refused for one that does not fit."""
        ...

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Note that a TaskManager lives, and what it still runs."""
        ...

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """A TaskManager says good-bye: it is lost at once, without waiting for its silence."""
        ...

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Replace all that a job wants. Idempotent."""
        ...

    async def overview(self) -> ResourceOverview:
        """Return TaskManagers and the queue."""
        ...

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Fetch a piece of an attempt's output from the TaskManager that has it. Raises NotFound, Unavailable."""
        ...

    async def remove_files(self, message: RemoveFiles) -> None:
        """Have any TaskManager remove directories of an ended job. Raises Unavailable if there is none."""
        ...

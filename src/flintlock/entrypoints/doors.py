"""The ResourceManager's door: REST stands before it whether or not anybody leads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model.errors import Unavailable
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LogQuery, RemoveFiles


class CurrentResourceManager:
    """Passes each call to the ResourceManager of the current term; raises Unavailable while there is none."""

    def __init__(self) -> None:
        self._leader: ResourceManagerGateway | None = None  # written by `leads`, for the time of a term

    @contextmanager
    def leads(self, resource_manager: ResourceManagerGateway) -> Generator[None]:
        """Let calls through to this one while the context lasts."""
        self._leader = resource_manager
        try:
            yield
        finally:
            self._leader = None

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Pass on."""
        return await self._current().register_task_manager(message)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Pass on."""
        return await self._current().heartbeat(message)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Pass on."""
        await self._current().unregister_task_manager(message)

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Pass on."""
        await self._current().declare_requirements(message)

    async def overview(self) -> ResourceOverview:
        """Pass on."""
        return await self._current().overview()

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Pass on."""
        return await self._current().read_log(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Pass on."""
        await self._current().remove_files(message)

    def _current(self) -> ResourceManagerGateway:
        if self._leader is None:
            raise Unavailable("nobody leads this cluster at the moment")
        return self._leader

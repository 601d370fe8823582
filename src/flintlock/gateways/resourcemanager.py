"""What the cluster may ask of the ResourceManager."""

from __future__ import annotations

from typing import Protocol

from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegisteredTaskManagers,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LoggedJobs, LoggedJobsQuery, LogQuery, RemoveFiles, RemoveLogs


class ResourceManagerGateway(Protocol):
    """Knows which slots exist and which job has them."""

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Register a TaskManager; a newer instance replaces the older. Raises Refused for an incompatible one."""
        ...

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Record that a TaskManager is alive, and what it still runs."""
        ...

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Unregister a TaskManager that shuts down: it is lost at once, without waiting for its timeout."""
        ...

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Replace all that a job wants. Idempotent."""
        ...

    async def task_managers(self) -> RegisteredTaskManagers:
        """Return TaskManagers, and the length of the queue."""
        ...

    async def overview(self) -> ResourceOverview:
        """Return TaskManagers and the queue: for those who show each request, as it costs what there are."""
        ...

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Fetch a piece of an attempt's output from a TaskManager that has it. Raises NotFound, Unavailable.

        If the TaskManager that ran the attempt is not registered any more, another one of its machine may have it.
        """
        ...

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return a page of the jobs whose output is at a registered TaskManager; those that do not answer are left out.

        A walk through the pages begins behind no job, and continues behind the last one of each page.
        """
        ...

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Have all registered TaskManagers remove the output of jobs that the cluster has forgotten, once."""
        ...

    async def query_task_manager(self, message: ProcessQuery) -> ProcessAnswer:
        """Have a TaskManager answer about its process. Raises NotFound for one that is not registered, Unavailable."""
        ...

    async def remove_files(self, message: RemoveFiles) -> None:
        """Have any TaskManager remove directories of an ended job. Raises Unavailable if there is none."""
        ...

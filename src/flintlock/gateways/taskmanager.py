"""What the cluster may ask of a TaskManager."""

from __future__ import annotations

from typing import Protocol

from flintlock.model.application import ShutDownCluster
from flintlock.model.commands import TaskAnswer, TaskCommand
from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery
from flintlock.model.slots import LivenessProbe
from flintlock.model.tasks import (
    DeploymentAnswer,
    DeployTask,
    LogChunk,
    LoggedJobs,
    LoggedJobsQuery,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    RemoveLogs,
)


class TaskManagerGateway(Protocol):
    """Runs attempts. Every call carries the leader's token: a lower epoch is refused, a higher one adopted."""

    async def deploy(self, message: DeployTask) -> DeploymentAnswer:
        """Take the attempt and return; what happens to it is reported. Idempotent.

        Raises Refused if the slots are taken or the engine is not ready.
        """
        ...

    async def command(self, message: TaskCommand) -> TaskAnswer:
        """Carry out a command to an attempt and return its answer.

        CancelTask: begin to end the attempt and return; its end is reported, for an unknown one too. Idempotent.
        TaskQuery: return the answer of the attempt's runner. Raises NotFound for an attempt that is not here, Conflict
        for one that does not run (yet, or any more), Unavailable if its runner ends or does not answer in time.
        """
        ...

    async def publish(self, message: PublishFiles) -> None:
        """Begin to publish an accepted attempt and return; progress and end are reported. Idempotent."""
        ...

    async def remove_files(self, message: RemoveFiles) -> None:
        """Remove directories that are Flintlock's own; return when they are gone. Idempotent."""
        ...

    async def watch_liveness(self, message: LivenessProbe) -> None:
        """Return when that incarnation of the TaskManager has ended, at once for one that has ended or never was.

        A caller notices the death of the process by its broken connection, long before the heartbeat timeout.
        """
        ...

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return a piece of an attempt's output. Raises NotFound."""
        ...

    async def query_process(self, message: ProcessQuery) -> ProcessAnswer:
        """Answer about the TaskManager's own process, also without an engine. Raises NotFound for an unknown log."""
        ...

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return a page of the jobs whose output is here."""
        ...

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Remove the output of jobs that the cluster has forgotten. Idempotent."""
        ...

    async def shut_down(self, message: ShutDownCluster) -> None:
        """The cluster shuts down: end the process with all that runs in it. Returns before it has ended. Idempotent."""
        ...


class TaskManagerConnector(Protocol):
    """Gives the gateway of the TaskManager at an address; connecting happens with the first call."""

    def __call__(self, address: str) -> TaskManagerGateway:
        """Return the gateway."""
        ...

"""What the cluster may call on one job's master, and how the Dispatcher uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flintlock.model.commands import JobCommand, TaskAnswer, TaskQuery
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobHistory, JobOutcome, JobRequirements, JobSnapshot, StoredJob
from flintlock.model.slots import DeployedTasks, NoResources, SlotGrant, TaskManagerLost, UnwantedTasks
from flintlock.model.tasks import RegionRecord, TaskReport


class JobMasterGateway(Protocol):
    """Messages for the JobMaster of the job that they name. Raises NotFound for a job without one."""

    async def slots_granted(self, message: SlotGrant) -> None:
        """Take the slots. A grant that answers no open request is ignored (the next declaration gives it back)."""
        ...

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Handle the loss of an incarnation of a TaskManager."""
        ...

    async def no_resources(self, message: NoResources) -> None:
        """Handle that a request can never be served. Ignored if the request is no longer open."""
        ...

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Compare the attempts on a TaskManager with those that the job expects there; return which it should end."""
        ...

    async def report(self, message: TaskReport) -> None:
        """Handle a report of an attempt. Idempotent; returns once its consequence is durable. Late ones are ignored."""
        ...


class JobMasterRunner(Protocol):
    """One job's JobMaster as its Dispatcher uses it."""

    async def run(self) -> JobOutcome:
        """Run the job to its end and return how it ended. Cancelled, it leaves the job as it is: suspended."""
        ...

    def snapshot(self) -> JobSnapshot:
        """Return the job as it is now."""
        ...

    def command(self, command: JobCommand) -> None:
        """Carry out a command, also before the job runs. What has to be durable of it, its Dispatcher has stored.

        CancelJob: harmless for a CANCELED job; raises Conflict if the job can no longer be cancelled. RescaleJob:
        regions that have not been sent to a TaskManager yet request their slots again.
        """
        ...

    async def query_task(self, query: TaskQuery) -> TaskAnswer:
        """Have the runner of the attempt answer. The errors are those of `DispatcherGateway.query_task`."""
        ...

    def requirements(self) -> JobRequirements:
        """Return what the job may use, step by step."""
        ...


class JobListener(Protocol):
    """Notified whenever a job's snapshot has changed; called often, must be cheap."""

    def __call__(self, job_id: JobId) -> None:
        """Note that the job changed."""
        ...


class JobMasterFactory(Protocol):
    """Makes a JobMasterRunner. Pure: nothing starts until it is run. Raises if the job cannot be initialised."""

    def __call__(
        self,
        job: StoredJob,
        progress: tuple[RegionRecord, ...],
        listener: JobListener,
        cluster_ms: Callable[[], int],
        history: JobHistory | None = None,
    ) -> JobMasterRunner:
        """Make the runner for a job, new (no progress, no history) or recovered.

        `cluster_ms` is the clock that all leaders of the cluster share (`dispatcher.retention_clock`).
        """
        ...

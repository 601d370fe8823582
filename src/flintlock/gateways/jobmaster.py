"""What the cluster may ask of one job's master, and what the Dispatcher holds of it."""

from __future__ import annotations

from typing import Protocol

from flintlock.model.errors import NotFound
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobOutcome, JobRequirements, JobSnapshot, StoredJob
from flintlock.model.slots import DeployedTasks, NoResources, SlotGrant, TaskManagerLost, UnwantedTasks
from flintlock.model.tasks import RegionRecord, TaskReport


class JobMasterGateway(Protocol):
    """Messages for the JobMaster of the job that they name. Raises NotFound for a job without one."""

    async def slots_granted(self, message: SlotGrant) -> None:
        """Take the slots. A grant that answers no open request is ignored (the next declaration gives it back)."""
        ...

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Hear that a TaskManager's life is over."""
        ...

    async def no_resources(self, message: NoResources) -> None:
        """Hear that a request can never be served. Ignored if it is no longer open."""
        ...

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Compare what a TaskManager holds with what should be there; return what it should end."""
        ...

    async def report(self, message: TaskReport) -> None:
        """Hear of an attempt. Idempotent; returns once what it means is durable. Late words are ignored."""
        ...


class JobMasterRunner(Protocol):
    """One job's JobMaster as its Dispatcher holds it."""

    async def run(self) -> JobOutcome:
        """Run the job to its end and return how it ended. Cancelled, it leaves the job as it is: suspended."""
        ...

    def snapshot(self) -> JobSnapshot:
        """Return the job as it is now."""
        ...

    def cancel(self) -> None:
        """Ask the job to end. Harmless when it has. Raises Conflict if it can no longer be cancelled."""
        ...

    def requirements(self) -> JobRequirements:
        """Return what the job may use, step by step."""
        ...

    def require(self, requirements: JobRequirements) -> None:
        """Use this much from now on: regions that have not been sent to a TaskManager yet ask anew."""
        ...


class JobListener(Protocol):
    """Told whenever a job's snapshot has changed; called often, must be cheap."""

    def __call__(self, job_id: JobId) -> None:
        """Note that the job changed."""
        ...


class JobMasterFactory(Protocol):
    """Makes a JobMasterRunner. Pure: nothing starts until it is run. Raises if the job cannot be initialised."""

    def __call__(self, job: StoredJob, progress: tuple[RegionRecord, ...], listener: JobListener) -> JobMasterRunner:
        """Make the runner for a job, new (no progress) or recovered."""
        ...


class JobMasterDirectory:
    """Routes messages to the JobMaster of the job that they name. One in each JobManager."""

    def __init__(self) -> None:
        self._masters: dict[JobId, JobMasterGateway] = {}  # written by each JobMaster as it starts and ends

    def enter(self, job_id: JobId, master: JobMasterGateway) -> None:
        """Make `master` the one for this job."""
        self._masters[job_id] = master

    def leave(self, job_id: JobId, master: JobMasterGateway) -> None:
        """Forget `master`, unless another has taken its place."""
        if self._masters.get(job_id) is master:
            del self._masters[job_id]

    async def slots_granted(self, message: SlotGrant) -> None:
        """Pass on."""
        await self._master(message.job_id).slots_granted(message)

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Pass on."""
        await self._master(message.job_id).task_manager_lost(message)

    async def no_resources(self, message: NoResources) -> None:
        """Pass on."""
        await self._master(message.job_id).no_resources(message)

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Pass on."""
        return await self._master(message.job_id).reconcile(message)

    async def report(self, message: TaskReport) -> None:
        """Pass on."""
        await self._master(message.attempt.job_id).report(message)

    def _master(self, job_id: JobId) -> JobMasterGateway:
        master = self._masters.get(job_id)
        if master is None:
            raise NotFound(f"no JobMaster runs job {job_id}")
        return master

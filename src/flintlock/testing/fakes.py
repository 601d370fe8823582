"""Fakes of the rooms' neighbours: each accepts everything, remembers everything, and fails when told.

They satisfy the gateway Protocols without inheriting from them, so a change of a Protocol is found by the type checker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.model.application import ShutDownCluster
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.commands import CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import AttemptId, Epoch, FencingToken, InstanceId, JobId, RegionId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    DeployedTasks,
    Heartbeat,
    HeartbeatAnswer,
    LivenessProbe,
    NoResources,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerLost,
    TaskManagerRegistration,
    UnwantedTasks,
)
from flintlock.model.tasks import (
    DeployTask,
    LogChunk,
    LogQuery,
    PublishFiles,
    RegionRecord,
    RemoveFiles,
    TaskReport,
)

VERSIONS = Versions(flintlock="0.1.0", python="3.11", pyspark="4.3.0")
TOKEN = FencingToken(Epoch(1), "session-1")


class FakeTaskManager:
    """A TaskManagerGateway. `fail_with` is raised by every call; `on_deploy` may go on from a deployment."""

    def __init__(self) -> None:
        self.deployed: list[DeployTask] = []
        self.commands: list[TaskCommand] = []
        self.causes: list[tuple[str, CauseId | None]] = []  # of each deployment and command
        self.published: list[PublishFiles] = []
        self.removed: list[RemoveFiles] = []
        self.shut_downs: list[ShutDownCluster] = []
        self.logs: dict[str, bytes] = {}  # by attempt, as text
        self.fail_with: FlintlockError | None = None
        self.on_deploy: Callable[[DeployTask], Awaitable[None]] | None = None
        self.tries = 0  # calls of any kind, failed ones too
        self.over: set[InstanceId] = set()  # lives that have ended
        self.gone = asyncio.Event()  # set, and the present life has ended too

    async def deploy(self, message: DeployTask) -> None:
        """Remember the deployment."""
        self._try()
        self.deployed.append(message)
        self.causes.append(("deploy", current_cause()))
        if self.on_deploy is not None:
            await self.on_deploy(message)

    async def command(self, message: TaskCommand) -> TaskAnswer:
        """Record the command."""
        self._try()
        self.commands.append(message)
        self.causes.append((type(message).__name__, current_cause()))
        return CommandAccepted()

    async def publish(self, message: PublishFiles) -> None:
        """Remember the order."""
        self._try()
        self.published.append(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Remember the order."""
        self._try()
        self.removed.append(message)

    async def watch_liveness(self, message: LivenessProbe) -> None:
        """Answer once that life is over."""
        self._try()
        if message.instance not in self.over:
            await self.gone.wait()

    async def shut_down(self, message: ShutDownCluster) -> None:
        """Record the request."""
        self._try()
        self.shut_downs.append(message)

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return from `logs`."""
        self._try()
        text = self.logs.get(str(message.attempt))
        if text is None:
            raise NotFound(f"no output of attempt {message.attempt} is here")
        piece = text[message.offset : message.offset + message.limit]
        return LogChunk(data=piece, offset=message.offset, size=len(text), complete=True)

    def _try(self) -> None:
        self.tries += 1
        if self.fail_with is not None:
            raise self.fail_with


class FakeTaskManagers:
    """A TaskManagerConnector: one FakeTaskManager for each address, made when it is first asked for."""

    def __init__(self) -> None:
        self.at: dict[str, FakeTaskManager] = {}

    def __call__(self, address: str) -> FakeTaskManager:
        """Return the one at that address."""
        return self.at.setdefault(address, FakeTaskManager())


class FakeResourceManager:
    """A ResourceManagerGateway with endless slots: grants each request once, at once, unless `automatic` is off.

    TaskManager ids are "tm-1", "tm-2", …; `place_on` says which one serves from now on.
    """

    def __init__(self, job_masters: JobMasterGateway, *, automatic: bool = True) -> None:
        self._job_masters = job_masters
        self.automatic = automatic
        self.place_on = TaskManagerId("tm-1")
        self.declarations: list[ResourceRequirements] = []
        self.causes: list[CauseId | None] = []  # of each declaration
        self.granted: dict[tuple[JobId, str], SlotGrant] = {}
        self.fail_with: FlintlockError | None = None
        self.removed: list[RemoveFiles] = []
        self.registered: list[TaskManagerRegistration] = []
        self.heartbeats: list[Heartbeat] = []

    def wanted(self, job_id: JobId) -> tuple[SlotRequest, ...]:
        """Return what the job declared last."""
        latest = [d for d in self.declarations if d.job_id == job_id]
        return latest[-1].requests if latest else ()

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Remember it, and grant what is new in it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.declarations.append(message)
        self.causes.append(current_cause())
        kept = {(message.job_id, str(request.id)) for request in message.requests}
        for key in [key for key in self.granted if key[0] == message.job_id and key not in kept]:
            del self.granted[key]
        if self.automatic:
            for request in message.requests:
                if (message.job_id, str(request.id)) not in self.granted:
                    await self.grant(message.job_id, request)

    async def grant(self, job_id: JobId, request: SlotRequest) -> SlotGrant:
        """Grant a request on `place_on`."""
        name = self.place_on
        grant = SlotGrant(
            job_id=job_id,
            request=request.id,
            task_manager=name,
            instance=InstanceId(f"{name}-instance"),
            address=f"{name}:1",
            slots=tuple(range(request.slots or request.at_most or 1)),
        )
        self.granted[job_id, str(request.id)] = grant
        await self._job_masters.slots_granted(grant)
        return grant

    async def lose(self, name: str, reason: str = "it was silent") -> None:
        """Tell every job that has slots on that TaskManager that it is lost; grant them anew elsewhere if asked to."""
        lost = {key: grant for key, grant in self.granted.items() if grant.task_manager == name}
        for key in lost:
            del self.granted[key]
        for job_id in dict.fromkeys(key[0] for key in lost):
            await self._job_masters.task_manager_lost(
                TaskManagerLost(
                    job_id=job_id,
                    task_manager=TaskManagerId(name),
                    instance=InstanceId(f"{name}-instance"),
                    reason=reason,
                )
            )

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Remember it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.registered.append(message)
        return RegistrationAnswer(token=TOKEN, heartbeat_interval_s=2.0, heartbeat_timeout_s=50.0)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Know whoever has registered."""
        if self.fail_with is not None:
            raise self.fail_with
        self.heartbeats.append(message)
        return HeartbeatAnswer(known=any(r.instance == message.instance for r in self.registered))

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Forget it."""
        self.registered = [r for r in self.registered if r.instance != message.instance]

    async def overview(self) -> ResourceOverview:
        """There is nothing to see."""
        return ResourceOverview()

    async def read_log(self, message: LogQuery) -> LogChunk:
        """There are no logs."""
        raise NotFound(f"TaskManager {message.task_manager!r} is not registered")

    async def remove_files(self, message: RemoveFiles) -> None:
        """Remember it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.removed.append(message)


class FakeJobMaster:
    """A JobMasterGateway that remembers. `fail_with` is raised by every call."""

    def __init__(self) -> None:
        self.heard: list[SlotGrant | TaskManagerLost | NoResources] = []  # in order of arrival
        self.causes: list[CauseId | None] = []  # of each of them
        self.reconciled: list[DeployedTasks] = []
        self.unwanted: set[AttemptId] = set()  # what `reconcile` says nobody wants
        self.reports: list[TaskReport] = []
        self.fail_with: FlintlockError | None = None
        self.tries = 0

    @property
    def grants(self) -> list[SlotGrant]:
        """The grants among what was heard."""
        return [word for word in self.heard if isinstance(word, SlotGrant)]

    @property
    def losses(self) -> list[TaskManagerLost]:
        """The losses among what was heard."""
        return [word for word in self.heard if isinstance(word, TaskManagerLost)]

    async def slots_granted(self, message: SlotGrant) -> None:
        """Remember it."""
        self._try()
        self.heard.append(message)
        self.causes.append(current_cause())

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Remember it."""
        self._try()
        self.heard.append(message)
        self.causes.append(current_cause())

    async def no_resources(self, message: NoResources) -> None:
        """Remember it."""
        self._try()
        self.heard.append(message)
        self.causes.append(current_cause())

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Remember it; unwanted are those that a test says."""
        self._try()
        self.reconciled.append(message)
        return UnwantedTasks(attempts=tuple(attempt for attempt in message.attempts if attempt in self.unwanted))

    async def report(self, message: TaskReport) -> None:
        """Remember it."""
        self._try()
        self.reports.append(message)

    def _try(self) -> None:
        self.tries += 1
        if self.fail_with is not None:
            raise self.fail_with


class FakeProgressStore:
    """A JobProgressStore. While `gate` is closed, writes neither happen nor return."""

    def __init__(self) -> None:
        self.records: dict[tuple[JobId, RegionId], RegionRecord] = {}
        self.history: list[RegionRecord] = []  # every write, in order
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail_with: Exception | None = None

    async def record(self, record: RegionRecord) -> None:
        """Keep it."""
        await self.gate.wait()
        if self.fail_with is not None:
            raise self.fail_with
        self.records[record.job_id, record.region] = record
        self.history.append(record)

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return what was kept."""
        keys = sorted(key for key in self.records if key[0] == job_id)
        return tuple(self.records[key] for key in keys)

    async def ids(self) -> tuple[JobId, ...]:
        """Return whose records were kept."""
        return tuple({key[0] for key in self.records})

    async def remove(self, job_id: JobId) -> None:
        """Forget it."""
        for key in [key for key in self.records if key[0] == job_id]:
            del self.records[key]

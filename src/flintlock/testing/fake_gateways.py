"""Gateways without rooms behind them: they remember what they are asked, answer what they were given, fail when told.

Each keeps the promises of its Protocol as far as a caller can see them from outside; what happens inside a cluster
(scheduling, recovery) does not happen here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Generator, Iterable
from contextlib import contextmanager

from msgspec import structs

from flintlock.model.application import ShutDownCluster
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.commands import CancelJob, JobCommand, JobOperation, OperationQuery, RescaleJob, TriggerOperation
from flintlock.model.errors import Conflict, DuplicateJob, FlintlockError, KeyReused, NotFound, Refused, Unavailable
from flintlock.model.graphcheck import check_graph
from flintlock.model.ids import AttemptId, BlobKey, Epoch, FencingToken, InstanceId, JobId, TriggerId
from flintlock.model.jobs import (
    AwaitJob,
    ClientHeartbeat,
    JobQuery,
    JobRequirements,
    JobSnapshot,
    JobsOverview,
    JobSubmission,
    ResultQuery,
    Submitted,
)
from flintlock.model.regions import regions_of
from flintlock.model.slots import (
    DeployedTasks,
    Heartbeat,
    HeartbeatAnswer,
    NoResources,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    TaskManagerLost,
    TaskManagerRegistration,
    UnwantedTasks,
)
from flintlock.model.states import JobStatus
from flintlock.model.tasks import LogChunk, LogQuery, RemoveFiles, ResultRows, TaskReport


class FakeDispatcher:
    """A DispatcherGateway: jobs are where `put` puts them, and go nowhere by themselves."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self.fail_with: FlintlockError | None = None  # raised by every call while it is set
        self.submissions: list[JobSubmission] = []  # those that were accepted
        self.cancelled: list[JobId] = []
        self.shut_downs: list[ShutDownCluster] = []
        self.awaited: list[AwaitJob] = []
        self.client_heartbeats: list[ClientHeartbeat] = []
        self.required: dict[JobId, JobRequirements] = {}
        self.operations: dict[TriggerId, JobOperation] = {}
        self.results: dict[tuple[JobId, str], ResultRows] = {}
        self.now_ms = now_ms  # when submitted jobs are said to have started
        self._jobs: dict[JobId, JobSnapshot] = {}  # in the order of their coming
        self._keys: dict[str, JobSubmission] = {}
        self._listing = JobsOverview(jobs=())  # replaced whenever a job changes, and only then
        self._changed = asyncio.Event()  # replaced whenever it is set

    def put(self, *snapshots: JobSnapshot) -> None:
        """Make these the present state of their jobs."""
        for snapshot in snapshots:
            self._jobs[snapshot.graph.job_id] = snapshot
        ordered = sorted((job.summary() for job in self._jobs.values()), key=lambda job: (-job.start_ms, job.job_id))
        self._listing = JobsOverview(jobs=tuple(ordered))
        self._changed.set()
        self._changed = asyncio.Event()

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Accept a job. An idempotency key makes one job only."""
        self._fail()
        key, graph = message.idempotency_key, check_graph(message.graph)
        message = structs.replace(message, graph=graph)
        known = self._keys.get(key) if key is not None else None
        if known is not None:
            if known.digest != message.digest:
                raise KeyReused(f"the idempotency key {key!r} was used for another graph")
            return Submitted(job_id=known.graph.job_id, existing=True)
        if graph.job_id in self._jobs:
            raise DuplicateJob(f"job {graph.job_id} is known already")
        if key is not None:
            self._keys[key] = message
        self.submissions.append(message)
        self.put(
            JobSnapshot(
                graph=graph,
                regions=regions_of(graph),
                status=JobStatus.CREATED,
                timestamps={JobStatus.INITIALIZING: self.now_ms, JobStatus.CREATED: self.now_ms},
                end_ms=-1,
                last_modified_ms=self.now_ms,
                executions=(),
            )
        )
        return Submitted(job_id=graph.job_id)

    async def list_jobs(self) -> JobsOverview:
        """Return the same object until a job changes."""
        self._fail()
        return self._listing

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Return a job."""
        self._fail()
        return self._job(message.job_id)

    async def await_job(self, message: AwaitJob) -> JobSnapshot:
        """Return a job when it has ended, or after the wait."""
        self._fail()
        self.awaited.append(message)
        try:
            async with asyncio.timeout(message.wait_s):
                while not self._job(message.job_id).status.globally_terminal:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._job(message.job_id)

    async def client_heartbeat(self, message: ClientHeartbeat) -> None:
        """Note the sign of life."""
        self._fail()
        self._job(message.job_id)
        self.client_heartbeats.append(message)

    async def requirements(self, message: JobQuery) -> JobRequirements:
        """Return what was put for the job; nothing if nothing was."""
        self._fail()
        self._job(message.job_id)
        return self.required.get(message.job_id, JobRequirements(job_id=message.job_id, vertices={}))

    async def command(self, message: JobCommand) -> None:
        """Record the command."""
        self._fail()
        status = self._job(message.job_id).status
        match message:
            case CancelJob(job_id=job_id):
                if status.globally_terminal and status is not JobStatus.CANCELED:
                    raise Conflict(f"job {job_id} has ended: it is {status}")
                self.cancelled.append(job_id)
            case RescaleJob(job_id=job_id, vertices=vertices):
                self.required[job_id] = JobRequirements(job_id=job_id, vertices=vertices)

    async def trigger(self, message: TriggerOperation) -> JobOperation:
        """Record an operation; it stays in progress until the test completes it."""
        self._fail()
        self._job(message.command.job_id)
        operation = JobOperation(trigger_id=message.trigger_id, command=message.command, started_ms=0)
        return self.operations.setdefault(message.trigger_id, operation)

    async def operation(self, message: OperationQuery) -> JobOperation:
        """Return what `operations` holds."""
        self._fail()
        found = self.operations.get(message.trigger_id)
        if found is None or found.command.job_id != message.job_id:
            raise NotFound(f"job {message.job_id} has no operation {message.trigger_id!r}")
        return found

    async def shut_down_cluster(self, message: ShutDownCluster) -> None:
        """Record the request."""
        self._fail()
        self.shut_downs.append(message)

    async def result(self, message: ResultQuery) -> ResultRows:
        """Return what `results` holds."""
        self._fail()
        status = self._job(message.job_id).status
        if status is not JobStatus.FINISHED:
            raise Conflict(f"job {message.job_id} has no results: it is {status}")
        found = self.results.get((message.job_id, message.name))
        if found is None:
            raise NotFound(f"job {message.job_id} has no result {message.name!r}")
        return found

    def _job(self, job_id: JobId) -> JobSnapshot:
        if job_id not in self._jobs:
            raise NotFound(f"job {job_id} was not found")
        return self._jobs[job_id]

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


class FakeResourceManager:
    """A ResourceManagerGateway that takes in every TaskManager and gives slots to nobody."""

    def __init__(self, *, epoch: int = 1, heartbeat_interval_s: float = 2.0) -> None:
        self.fail_with: FlintlockError | None = None  # raised by every call while it is set
        self.refuse_busy = False  # refuse those that bring work along
        self.deaf = False  # heartbeats of those who are known are not answered
        self.token = FencingToken(Epoch(epoch), f"session-{epoch}")
        self.heartbeat_interval_s = heartbeat_interval_s
        self.registered: list[TaskManagerRegistration] = []
        self.heartbeats: list[Heartbeat] = []
        self.goodbyes: list[Heartbeat] = []
        self.requirements: list[ResourceRequirements] = []
        self.removed: list[RemoveFiles] = []
        self.seen = ResourceOverview()  # what `overview` answers
        self.logs: dict[AttemptId, bytes] = {}
        self.complete_logs: set[AttemptId] = set()
        self._known: set[InstanceId] = set()

    def lead(self, epoch: int) -> None:
        """Become the ResourceManager of another term, which has heard of nobody."""
        self.token = FencingToken(Epoch(epoch), f"session-{epoch}")
        self._known.clear()

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Take it in."""
        self._fail()
        if message.busy and self.refuse_busy:
            raise Refused(f"instance {message.instance} is over")
        self.registered.append(message)
        self._known.add(message.instance)
        return RegistrationAnswer(
            token=self.token,
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=10 * self.heartbeat_interval_s,
        )

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Tell whether it is known."""
        self._fail()
        if self.deaf and message.instance in self._known:
            raise Unavailable("no answer")
        self.heartbeats.append(message)
        return HeartbeatAnswer(known=message.instance in self._known)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Forget it."""
        self._fail()
        self.goodbyes.append(message)
        self._known.discard(message.instance)

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Note the wish."""
        self._fail()
        self.requirements.append(message)

    async def overview(self) -> ResourceOverview:
        """Return what `seen` holds."""
        self._fail()
        return self.seen

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return a piece of what `logs` holds."""
        self._fail()
        whole = self.logs.get(message.attempt)
        if whole is None:
            raise NotFound(f"no output of attempt {message.attempt}")
        offset = max(len(whole) + message.offset, 0) if message.offset < 0 else min(message.offset, len(whole))
        return LogChunk(
            data=whole[offset : offset + message.limit],
            offset=offset,
            size=len(whole),
            complete=message.attempt in self.complete_logs,
        )

    async def remove_files(self, message: RemoveFiles) -> None:
        """Note the wish."""
        self._fail()
        self.removed.append(message)

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


class FakeJobMasters:
    """A JobMasterGateway that keeps every report it answers."""

    def __init__(self) -> None:
        self.fail_with: FlintlockError | None = None  # raised by every call while it is set
        self.delay_s = 0.0  # how long it takes to answer
        self.reports: list[TaskReport] = []
        self.causes: list[CauseId | None] = []  # of each report
        self.tries = 0  # reports that came, answered or not

    def of(self, attempt: AttemptId) -> list[TaskReport]:
        """Return the reports of one attempt."""
        return [report for report in self.reports if report.attempt == attempt]

    async def slots_granted(self, message: SlotGrant) -> None:
        """Take them."""
        self._fail()

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Hear of it."""
        self._fail()

    async def no_resources(self, message: NoResources) -> None:
        """Hear of it."""
        self._fail()

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Want all of it."""
        self._fail()
        return UnwantedTasks()

    async def report(self, message: TaskReport) -> None:
        """Keep it."""
        self.tries += 1
        await asyncio.sleep(self.delay_s)
        self._fail()
        self.reports.append(message)
        self.causes.append(current_cause())

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


class FakeBlobs:
    """Content in memory: what `rest` uploads to, and what a TaskManager's cache fetches from."""

    def __init__(self) -> None:
        self.content: dict[BlobKey, bytes] = {}
        self.held: list[tuple[BlobKey, ...]] = []  # every hold that there was
        self.holding = 0  # how many holds are open
        self.abandoned: list[BlobKey] = []

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store content; an interrupted stream leaves nothing."""
        data = b"".join([piece async for piece in stream])
        key = BlobKey("sha256-" + hashlib.sha256(data).hexdigest())
        self.content[key] = data
        return key, len(data)

    async def abandon(self, keys: Collection[BlobKey]) -> None:
        """Note that no job will take these up."""
        self.abandoned += keys

    async def size_of(self, key: BlobKey) -> int | None:
        """Return the size, if it is here."""
        return len(self.content[key]) if key in self.content else None

    @contextmanager
    def pin(self, keys: Iterable[BlobKey]) -> Generator[None]:
        """Note that these are needed."""
        self.held.append(tuple(keys))
        self.holding += 1
        try:
            yield
        finally:
            self.holding -= 1

"""The JobMaster's shell: passes events to its core and performs the effects, in the scope of one `run`.

Every event is one synchronous `step` on the loop's thread: there is no await between reading the state and writing
it, hence no lock and no queue. An effect that takes time (a record, a message, a delay) is a task of the scope whose
result is an event. Records of one region are written one after another; a declaration that a newer one replaces is
never sent. A job that waits has no task but its `run`, and no timer.

Rejected: a mailbox task for each job. It would cost a loop iteration for each event, and thousands of idle tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

import structlog
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from flintlock.gateways.jobmaster import JobListener, JobMasterFactory, JobMasterRunner
from flintlock.jobmaster.core import refusal_to_cancel, step, unwanted_attempts
from flintlock.jobmaster.enrichers import labels_of
from flintlock.jobmaster.events import (
    CancelAnswered,
    CancelRequested,
    ClusterMessage,
    Declare,
    DeploymentTaken,
    DeploymentUndelivered,
    DiscardStaging,
    Enrich,
    FailureLabelled,
    FindProgress,
    JobEffect,
    JobEvent,
    JobStarted,
    Moved,
    Probed,
    ProgressFound,
    PublicationUndelivered,
    Record,
    Recorded,
    RecordHistory,
    RequirementsChanged,
    RestartDue,
    SendCommand,
    SendDeploy,
    SendProbe,
    SendPublish,
    StartTimer,
    StepContext,
    Suspended,
    TimedOut,
)
from flintlock.jobmaster.execution_graph import (
    ExecutionGraph,
    address_of_running,
    initial_state,
    plan_of,
    ranges_of,
)
from flintlock.jobmaster.recording import ProgressRecorder
from flintlock.jobmaster.reporting.history import with_history
from flintlock.jobmaster.reporting.snapshot import active_queries, outcome_of, requirements_of, snapshot_of
from flintlock.jobmaster.services import JobMasterServices
from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.causes import CauseId, caused_by, current_cause, internal_cause
from flintlock.model.commands import CancelJob, CancelTask, JobCommand, RescaleJob, TaskAnswer, TaskQuery
from flintlock.model.errors import Conflict, Fenced, FlintlockError, InvariantBroken, Refused, Unavailable
from flintlock.model.failures.failure_text import log_facts
from flintlock.model.files.staging import staged_sinks
from flintlock.model.ids import JobId, RegionId, RequestId, StepName
from flintlock.model.jobs import JobHistory, JobOutcome, JobRequirements, JobSnapshot, StoredJob
from flintlock.model.slots import (
    DeployedTasks,
    LivenessProbe,
    NoResources,
    ResourceRequirements,
    SlotGrant,
    TaskManagerLost,
    UnwantedTasks,
)
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import RegionPhase, RegionRecord, RemoveFiles, TaskReport

log: FilteringBoundLogger = structlog.get_logger()


_COMMAND_TIMEOUT_S: Final = 2.0
_QUERY_TIMEOUT_S: Final = 8.0  # longer than a TaskManager waits for a runner, whose own error says more
_ENRICH_TIMEOUT_S: Final = 2.0
_PROBE_TIMEOUT_S: Final = 1.0
_DECLARATION_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=5.0)
_STORAGE_BACKOFF: Final = Backoff(initial_s=0.5, maximum_s=10.0)
_Work: TypeAlias = Callable[[], Awaitable[None]]

#: Moves that every job makes and that say nothing about it: logged at debug level.
_QUIET: Final = frozenset({JobStatus.CREATED, JobStatus.RUNNING, ExecutionState.SCHEDULED})


def job_master_factory(services: JobMasterServices) -> JobMasterFactory:
    """Return the factory with which a Dispatcher makes its JobMasters."""

    def make(
        job: StoredJob,
        progress: tuple[RegionRecord, ...],
        listener: JobListener,
        cluster_ms: Callable[[], int],
        history: JobHistory | None = None,
    ) -> JobMasterRunner:
        with services.current_job.working_on(job.graph.job_id):
            plan = plan_of(job.graph, services.configuration, services.work_dir, services.checkpoints_dir)
            state = with_history(initial_state(plan, job, progress, services.clock_ms()), history)
            for record in progress:
                if record.phase is not RegionPhase.FINISHED:
                    sinks = staged_sinks(plan.graph, plan.regions[record.region])
                    services.claims.restore(plan.job_id, sinks, record.taken)
            return JobMaster(state, services, listener, cluster_ms)

    return make


class JobMaster:
    """One job's master: a JobMasterRunner to its Dispatcher, a JobMasterGateway to the cluster."""

    __slots__ = (
        "_backlog",
        "_cause",
        "_cluster_ms",
        "_crash",
        "_declaring",
        "_droppable",
        "_ended",
        "_listener",
        "_recorder",
        "_request_causes",
        "_scope",
        "_services",
        "_snapshot",
        "_state",
        "_taken",
        "_undeclared",
    )

    def __init__(
        self,
        state: ExecutionGraph,
        services: JobMasterServices,
        listener: JobListener,
        cluster_ms: Callable[[], int],
    ) -> None:
        self._state = state  # written by _feed only
        self._services = services
        self._listener = listener
        self._cluster_ms = cluster_ms
        self._snapshot: JobSnapshot | None = None  # of `_state`, once requested
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._ended = asyncio.Event()  # set by the job's end, or by a crash
        self._crash: Exception | None = None  # an error that no step handles; raised by run
        self._backlog: list[tuple[JobEffect, CauseId | None]] = []  # effects of events before it ran; emptied by run
        self._droppable: set[asyncio.Task[None]] = set()  # tasks that are cancelled at the job's end
        self._recorder = ProgressRecorder(services.progress, services.gate)
        self._taken: dict[RegionId, dict[StepName, JobId]] = {}  # of the latest deployment; by _with_claims
        self._cause: CauseId | None = None  # of what started it: for messages that bring none; written by run
        self._request_causes: dict[RequestId, CauseId | None] = {}  # of each declared request; written by Declare
        #: Not yet acknowledged by the ResourceManager.
        self._undeclared: tuple[ResourceRequirements, CauseId | None] | None = None
        self._declaring: asyncio.Task[None] | None = None  # sends `_undeclared`

    # For the Dispatcher

    async def run(self) -> JobOutcome:
        """Run the job to its end and return its outcome; then nothing of it runs in this process.

        When cancelled, it leaves the job SUSPENDED, with its tasks untouched. Raises Fenced if a newer leader exists,
        InvariantBroken for a bug.
        """
        job_id = self._state.plan.job_id
        self._services.directory.register(job_id, self)
        metrics = self._services.metrics
        if metrics is not None:
            graph = self._state.plan.graph
            uids = {str(vertex.name): vertex.uid for vertex in graph.vertices if vertex.query is not None}
            metrics.queries.show(job_id, graph.name, lambda: active_queries(self._state), uids)
        self._cause = current_cause()
        try:
            async with asyncio.TaskGroup() as scope:
                self._scope = scope
                try:
                    self._begin()
                    await self._ended.wait()
                finally:
                    self._scope = None
                self._cancel_droppable()
        except asyncio.CancelledError:
            self._handle(Suspended())
            raise
        finally:
            self._services.directory.unregister(job_id, self)
            if metrics is not None:
                metrics.queries.forget(job_id)
        self._services.claims.release(job_id)
        if self._crash is not None:
            await self._release_all(self._crash)
            raise self._crash
        return outcome_of(self._state)

    def snapshot(self) -> JobSnapshot:
        """Return the job's current view; the same object until something changes."""
        if self._snapshot is None:
            with self._services.current_job.working_on(self._state.plan.job_id):
                self._snapshot = snapshot_of(self._state)
        return self._snapshot

    def command(self, command: JobCommand) -> None:
        """Carry out a command, also before the job runs. Raises Conflict for a cancel that is too late."""
        match command:
            case CancelJob(force=force):
                refusal = refusal_to_cancel(self._state, force=force)
                if refusal is not None:
                    raise Conflict(f"job {self._state.plan.job_id} {refusal}")
                self._handle(CancelRequested(force))
            case RescaleJob(vertices=vertices, rescale=rescale, reverts=reverts):
                self._handle(RequirementsChanged(ranges_of(self._state.plan, vertices), rescale, reverts))

    async def query_task(self, query: TaskQuery) -> TaskAnswer:
        """Pass a query to the TaskManager of a running attempt and return its answer. The job's state is not affected.

        Raises NotFound or Conflict for an attempt that does not run, Unavailable if no answer comes in time.
        """
        if self._scope is None:
            raise self._stopped_error()
        address = address_of_running(self._state, query.attempt)
        try:
            async with asyncio.timeout(_QUERY_TIMEOUT_S):
                return await self._services.task_managers(address).command(query)
        except TimeoutError:
            raise Unavailable(f"the TaskManager at {address} did not answer within {_QUERY_TIMEOUT_S:g} s") from None

    def requirements(self) -> JobRequirements:
        """Return how many slots each step may use."""
        return requirements_of(self._state)

    # For the cluster

    async def slots_granted(self, message: SlotGrant) -> None:
        """Use the slots, or ignore them if no region waits for them.

        The cause is that of the request: the ResourceManager may have granted it while it handled another job.
        """
        with caused_by(self._request_causes.get(message.request)):
            self._receive(message)

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Fail the attempts at that TaskManager."""
        self._receive(message)

    async def no_resources(self, message: NoResources) -> None:
        """Fail the region whose request can never be served."""
        self._receive(message)

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Fail attempts that are gone; return those that are unwanted."""
        self._receive(message)
        return UnwantedTasks(attempts=unwanted_attempts(self._state, message))

    async def report(self, message: TaskReport) -> None:
        """Apply a report; return once its consequence is durable. Raises Unavailable if this stops before that."""
        self._receive(message)
        durable = await self._recorder.wait_until_durable(message.attempt.region)
        # `run` may handle the suspension only after this: then what was being written is not durable.
        if not durable or self._crash is not None or self._state.status is JobStatus.SUSPENDED:
            raise self._stopped_error()

    # Events

    def _receive(self, event: ClusterMessage) -> None:
        if self._scope is None:
            raise self._stopped_error()
        with caused_by(current_cause() or self._cause):
            self._handle(event)
        if self._crash is not None:
            raise self._stopped_error() from self._crash

    def _handle(self, event: JobEvent) -> None:
        """Take one step and perform its effects; `run` raises an error of the step."""
        before = self._state
        try:
            with self._services.current_job.working_on(before.plan.job_id):
                self._state, effects = step(before, event, self._step_context())
                for effect in effects:
                    self._count(effect)
                    self._perform(effect)
            if self._state is not before:
                self._snapshot = None
                self._listener(self._state.plan.job_id)
        except Exception as error:  # noqa: BLE001 - the sender of the event did not cause it
            self._fail(error)
        if self._state.status.globally_terminal:
            self._ended.set()

    def _step_context(self) -> StepContext:
        services = self._services
        return StepContext(now_ms=services.clock_ms(), cluster_ms=self._cluster_ms(), random=services.random.random())

    def _fail(self, error: Exception) -> None:
        """End `run` with this error; the first one counts."""
        self._crash = self._crash or error
        self._ended.set()

    def _stopped_error(self) -> Unavailable:
        return Unavailable(f"the JobMaster of job {self._state.plan.job_id} has stopped")

    # Effects

    def _begin(self) -> None:
        backlog, self._backlog = self._backlog, []
        for effect, cause in backlog:
            with caused_by(cause):
                self._perform(effect)
        self._handle(JobStarted())

    def _perform(self, effect: JobEffect) -> None:
        match effect:
            case Moved():
                self._log(effect)
            case _ if self._scope is None:
                self._backlog.append((effect, current_cause()))
            case Declare(requirements):
                self._queue_declaration(self._scope, requirements)
            case Record() | RecordHistory():
                claimed = self._with_claims(effect)
                self._recorder.begin(claimed, partial(self._spawn, self._scope), self._recorded)
            case SendDeploy():
                self._spawn_droppable(self._scope, partial(self._deploy, effect), f"deploy-{effect.order.attempt}")
            case SendCommand():
                self._spawn(self._scope, partial(self._send_command, effect), f"command-{effect.order.attempt}")
            case SendProbe():
                self._spawn_droppable(self._scope, partial(self._probe, effect), f"probe-{effect.attempt}")
            case SendPublish():
                self._spawn_droppable(self._scope, partial(self._publish, effect), f"publish-{effect.order.attempt}")
            case DiscardStaging():
                self._spawn_droppable(self._scope, partial(self._discard_staging, effect), "discard-staging")
            case FindProgress():
                self._spawn_droppable(self._scope, self._find_progress, "find-progress")
            case StartTimer():
                self._spawn_droppable(self._scope, partial(self._wait, effect), f"wait-{type(effect.event).__name__}")
            case Enrich():
                self._begin_to_enrich(self._scope, effect)

    def _spawn(self, scope: asyncio.TaskGroup, work: _Work, name: str) -> asyncio.Task[None]:
        return scope.create_task(self._guarded(work), name=f"{self._state.plan.job_id}-{name}")

    def _spawn_droppable(self, scope: asyncio.TaskGroup, work: _Work, name: str) -> None:
        """Start a task that is cancelled at the job's end."""
        task = self._spawn(scope, work, name)
        self._droppable.add(task)
        task.add_done_callback(self._droppable.discard)

    async def _guarded(self, work: _Work) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - `run` raises it, alone instead of in a group
            self._fail(error)

    def _cancel_droppable(self) -> None:
        """Cancel tasks that an ended job does not need; after a crash records and declarations too."""
        tasks = [*self._droppable]
        if self._crash is not None:
            tasks += self._recorder.unfinished
            tasks += () if self._declaring is None else (self._declaring,)
        for task in tasks:
            task.cancel()

    def _recorded(self, record: RegionRecord) -> None:
        self._handle(Recorded(record))

    def _with_claims(self, effect: Record | RecordHistory) -> Record | RecordHistory:
        """Claim the targets of an attempt that is deployed; return its record with what other jobs have of them."""
        if not isinstance(effect, Record) or effect.record.phase is not RegionPhase.DEPLOYED:
            return effect
        plan, region = self._state.plan, effect.record.region
        taken = self._services.claims.claim(plan.job_id, staged_sinks(plan.graph, plan.regions[region]))
        self._taken[region] = taken
        return Record(structs.replace(effect.record, taken=taken)) if taken else effect

    def _queue_declaration(self, scope: asyncio.TaskGroup, requirements: ResourceRequirements) -> None:
        cause, known = current_cause(), self._request_causes
        self._undeclared = (requirements, cause)
        self._request_causes = {request.id: known.get(request.id, cause) for request in requirements.requests}
        if self._declaring is None:
            self._declaring = self._spawn(scope, self._declare_requirements, "declare")

    async def _declare_requirements(self) -> None:
        failures = 0
        while (undeclared := self._undeclared) is not None:
            requirements, cause = undeclared
            try:
                with caused_by(cause):
                    await self._services.resource_manager.declare_requirements(requirements)
                failures = 0
                if self._undeclared is undeclared:
                    self._undeclared = None
            except Unavailable as error:
                self._warn(log_events.RESOURCEMANAGER_UNAVAILABLE, error)
                failures += 1
                await asyncio.sleep(_DECLARATION_BACKOFF.delay_s(failures))
        self._declaring = None

    async def _deploy(self, effect: SendDeploy) -> None:
        attempt = effect.order.attempt
        taken = self._taken.get(attempt.region)
        order = structs.replace(effect.order, taken=taken) if taken else effect.order
        try:
            answer = await self._services.task_managers(effect.address).deploy(order)
        except Fenced:
            raise
        except FlintlockError as error:
            self._warn(log_events.TASKMANAGER_UNAVAILABLE, error, address=effect.address, attempt=str(attempt))
            self._handle(DeploymentUndelivered(attempt, effect.instance, error.public))
        else:
            self._handle(DeploymentTaken(attempt, effect.instance, answer.heartbeat))

    async def _send_command(self, effect: SendCommand) -> None:
        """Send it once. The job's end waits for this, so it must be short: the core sends it again if necessary."""
        attempt, unreachable = effect.order.attempt, False
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                await self._services.task_managers(effect.address).command(effect.order)
        except Fenced:
            raise
        except (FlintlockError, TimeoutError) as error:
            self._warn(log_events.TASKMANAGER_UNAVAILABLE, error, address=effect.address, attempt=str(attempt))
            unreachable = isinstance(error, Unavailable) and error.unreachable
        self._handle(CancelAnswered(attempt, unreachable))

    async def _probe(self, effect: SendProbe) -> None:
        """Ask whether an incarnation is alive: while it is, the call does not return."""
        over = unreachable = False
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                gateway = self._services.task_managers(effect.address)
                await gateway.watch_liveness(LivenessProbe(instance=effect.instance))
                over = True
        except Fenced:
            raise
        except (FlintlockError, TimeoutError) as error:
            unreachable = isinstance(error, Unavailable) and error.unreachable
        self._handle(Probed(effect.attempt, over, unreachable))

    async def _publish(self, effect: SendPublish) -> None:
        attempt = effect.order.attempt
        try:
            await self._services.task_managers(effect.address).publish(effect.order)
        except Fenced:
            raise
        except FlintlockError as error:
            self._warn(log_events.TASKMANAGER_UNAVAILABLE, error, address=effect.address, attempt=str(attempt))
            refused = isinstance(error, Refused)
            self._handle(PublicationUndelivered(attempt, effect.instance, error.public, refused))

    async def _discard_staging(self, effect: DiscardStaging) -> None:
        """Try it once: the disk is not to fill up while the job restarts. The job's cleanup does it again."""
        order = RemoveFiles(job_id=self._state.plan.job_id, directories=effect.directories)
        with suppress(FlintlockError):  # logged by the ResourceManager
            await self._services.resource_manager.remove_files(order)

    async def _find_progress(self) -> None:
        """Wait for the storage of the checkpoints as long as that takes, or until the job ends otherwise."""
        failures = 0
        while True:
            try:
                gone_on = await self._services.has_gone_on(self._state.plan.graph)
            except Unavailable as error:
                if not failures:
                    self._warn(log_events.JOB_WAITS_FOR_STORAGE, error)
                failures += 1
                await asyncio.sleep(_STORAGE_BACKOFF.delay_s(failures))
            else:
                self._handle(ProgressFound(gone_on))
                return

    def _begin_to_enrich(self, scope: asyncio.TaskGroup, effect: Enrich) -> None:
        if self._services.enrichers:
            self._spawn(scope, partial(self._enrich, effect), f"enrich-{effect.attempt}")

    async def _enrich(self, effect: Enrich) -> None:
        """Call the plug-ins. The job's end waits for this, so they have a timeout."""
        graph = self._state.plan.graph
        try:
            async with asyncio.timeout(_ENRICH_TIMEOUT_S):
                labels = await asyncio.to_thread(
                    labels_of, self._services.enrichers, effect.failure, graph.job_id, graph.name
                )
        except TimeoutError as error:
            self._warn(log_events.FAILURE_ENRICHERS_SLOW, error)
            return
        if labels:
            self._handle(FailureLabelled(effect.attempt, labels))

    async def _wait(self, effect: StartTimer) -> None:
        """Deliver a timer's event: under the cause of the step that started it, except for the job's timeout."""
        await asyncio.sleep(effect.delay_s)
        timed_out = isinstance(effect.event, TimedOut)
        with caused_by(internal_cause("job-timeout", self._state.plan.job_id) if timed_out else current_cause()):
            self._handle(effect.event)

    async def _release_all(self, crash: Exception) -> None:
        """Release the slots and tasks of a crashed job, with one try for each; leases and heartbeats do the rest."""
        if isinstance(crash, Fenced | InvariantBroken):
            return
        job_id = self._state.plan.job_id
        for region in self._state.regions:
            if region.grant is not None:
                with suppress(FlintlockError):
                    order = CancelTask(attempt=self._state.attempt_id(region))
                    await self._services.task_managers(region.grant.address).command(order)
        with suppress(FlintlockError):
            await self._services.resource_manager.declare_requirements(ResourceRequirements(job_id=job_id))

    # Metrics and log

    def _count(self, effect: JobEffect) -> None:
        metrics = self._services.metrics
        match effect:
            case Enrich(attempt=attempt, failure=failure):
                if attempt is not None:
                    log.info(log_events.ATTEMPT_FAILED, attempt=str(attempt), **log_facts(failure))
                if metrics is not None:
                    metrics.failed(failure.kind)
            case StartTimer(event=RestartDue()) if metrics is not None:
                metrics.restarted()
            case _:
                pass

    def _log(self, moved: Moved) -> None:
        write = log.debug if moved.new in _QUIET else log.info
        write(
            log_events.EXECUTION_STATE_CHANGED,
            job_id=self._state.plan.job_id,
            subject=moved.subject,
            old=moved.old,
            new=moved.new,
        )

    def _warn(self, event: str, error: Exception, **facts: str) -> None:
        log.warning(event, job_id=self._state.plan.job_id, reason=str(error) or repr(error), **facts)

"""The execution graph: a job's regions, their attempts, and how far each has come.

All of it is frozen; a step of the core makes a new one. A comment beside each field says what changes it.
`RegionState.phase` never goes back: from ACCEPTED on the region has one attempt whose outcome counts, and neither
failure nor cancellation affects it any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.jobmaster.restart import RestartStrategy, restart_strategy
from flintlock.model.errors import Conflict, Corrupt, NotFound
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, RequestId, TaskManagerId, VertexId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import ExceptionEntry, ParallelismRange, RestartHistory, StoredJob
from flintlock.model.regions import Region, regions_of, shared_steps, values_of_region
from flintlock.model.slots import SlotGrant, SlotRequest
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.checkpoints import QueryProgress, StateRescale
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.tasks import Failure, RegionPhase, RegionRecord, StepOutput, TaskFinished, TaskMetrics

E: Final = ExecutionState


#: How many attempts at one region are remembered: its first ones, and its latest ones with the current one. A job that
#: restarts for ever neither fills the memory nor slows each of its steps down.
FIRST_ATTEMPTS: Final = 2
LATEST_ATTEMPTS: Final = 8

#: The request id of a grant by an earlier ResourceManager that the current one has not confirmed yet.
UNCONFIRMED: Final = RequestId("")


#: The ends of a job after which its checkpoints are kept, by the value of `CHECKPOINT_RETENTION`.
_KEPT_AFTER: Final[Mapping[str, frozenset[JobStatus]]] = {
    "NO_EXTERNALIZED_CHECKPOINTS": frozenset(),
    "DELETE_ON_CANCELLATION": frozenset({JobStatus.FAILED}),
    "RETAIN_ON_CANCELLATION": frozenset({JobStatus.FAILED, JobStatus.CANCELED}),
}


class JobPlan(Struct, frozen=True, kw_only=True):
    """What does not change while the job runs: its graph, and what its configuration says."""

    graph: JobGraph
    regions: tuple[Region, ...]
    strategy: RestartStrategy
    infrastructure_attempts: int  # restarts after infrastructure failures, in addition to the strategy
    priority: int
    timeout_s: float  # 0: none
    at_most: int | None  # slots of a region without a parallelism of its own
    analyze_first: bool
    cancel_timeout_s: float
    publication_timeout_s: float  # how long a publication without progress is retried
    heartbeat_timeout_s: float  # the length of the leases that this leader grants
    refusals_of_the_dead: int  # a TaskManager that refuses so many connections in a row, a second apart, is dead
    history_size: int
    work_dir: str  # the job's own
    checkpoint_dir: str = ""  # the job's own, of a streaming job
    upgrades: bool = False  # it takes the place of another job: before its first batch it fails rather than restarts
    kept_after: frozenset[JobStatus] = frozenset()  # the ends of the job after which its checkpoints are kept

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.graph.job_id

    @property
    def shares_slots(self) -> bool:
        """Whether a region takes as few slots as it may: a query does not end, and others would wait for ever."""
        return self.graph.job_type is JobType.STREAMING


class Execution(Struct, frozen=True, kw_only=True):
    """One attempt at one region."""

    attempt: int
    state: ExecutionState = E.CREATED
    timestamps: dict[ExecutionState, int]
    task_manager: TaskManagerId | None = None  # set when slots are granted, never cleared
    address: str = ""
    slots: int = 0
    recording: int = 0  # records of its TaskManager that are not durable yet
    deployments: int = 0  # how many deliveries have failed
    in_flight: bool = False  # a deployment was sent and not yet acknowledged
    listed_after: int | None = None  # heartbeats of its TaskManager after this one list it until its end is reported
    lease_s: float = 0.0  # as recorded: no lease covers it for longer
    refusals: int = 0  # consecutive cancellations or probes that found nothing listening
    metrics: TaskMetrics = TaskMetrics()
    outputs: tuple[StepOutput, ...] = ()
    activity: str = ""
    publishing_ms: int = 0  # when its outcome was accepted, if there are files to publish
    failure: Failure | None = None
    output_tail: bytes = b""  # the end of what it printed; set by the report of its end
    query: QueryProgress | None = None  # of a streaming job
    queries: tuple[QueryFigures, ...] = ()  # of a streaming job or program


class Publication(Struct, frozen=True, kw_only=True):
    """The progress of publishing the files of an accepted attempt."""

    durable: bool = False  # ACCEPTED is recorded: files may be moved
    done: int = 0  # steps, as `FilesPublished` counts them
    total: int = 0
    waiting: bool = False  # for the next retry
    failures: int = 0  # since the last progress: they lengthen the backoff
    waited_s: float = 0.0  # for retries, since the last progress
    abandoned: bool = False  # it was retried for too long; the execution has FAILED


class RegionState(Struct, frozen=True, kw_only=True):
    """A region from its first attempt to its end."""

    plan: Region
    executions: tuple[Execution, ...]  # the first and the latest, in order; the last is the current one
    attempts_omitted: int = 0  # attempts between those that are no longer remembered
    asked: int = 0  # requests so far: their ids are never used again
    request: SlotRequest | None = None  # its open slot request; None: it needs no slots
    grant: SlotGrant | None = None  # the granted slots; cleared with `request`, or by the TaskManager's loss
    phase: RegionPhase | None = None  # decided; durable when its record is
    outcome: TaskFinished | None = None  # of the accepted attempt
    redo: bool = False  # it was published, but its blocking results are gone: only they are computed again
    publication: Publication | None = None  # from ACCEPTED on, if there are files to publish
    staging: tuple[str, ...] = ()  # where attempts may have written: `model.staging.staging_of_attempts`, the work_dir
    restart_pending: bool = False  # its current execution FAILED and another will follow

    @property
    def id(self) -> RegionId:
        """The region's id: its index in `ExecutionGraph.regions`."""
        return self.plan.id

    @property
    def current(self) -> Execution:
        """The latest attempt."""
        return self.executions[-1]

    @property
    def finished(self) -> bool:
        """Whether its output is published and that is recorded."""
        return self.current.state is E.FINISHED

    @property
    def committed(self) -> bool:
        """Whether its attempt is accepted and has not ended yet: it cannot be cancelled or failed now."""
        return self.phase in (RegionPhase.ACCEPTED, RegionPhase.FINISHED) and not self.current.state.terminal

    @property
    def publishing(self) -> bool:
        """Whether it has files that are not published yet."""
        return self.phase is RegionPhase.ACCEPTED and not self.current.state.terminal

    def with_current(self, execution: Execution) -> RegionState:
        """Return the region with its latest attempt replaced."""
        return structs.replace(self, executions=(*self.executions[:-1], execution))

    def with_next(self, execution: Execution) -> RegionState:
        """Return the region with one more attempt. Of too many, the one after the first ones is dropped."""
        executions, omitted = (*self.executions, execution), self.attempts_omitted
        if len(executions) > FIRST_ATTEMPTS + LATEST_ATTEMPTS:
            executions = (*executions[:FIRST_ATTEMPTS], *executions[-LATEST_ATTEMPTS:])
            omitted += 1
        return structs.replace(self, executions=executions, attempts_omitted=omitted)


class PendingDecision(Struct, frozen=True):
    """Whether a job that takes the place of another one restarts, or fails, is decided once no query of it runs."""

    asked: bool = False  # none runs any more, and their files are being read


class ExecutionGraph(Struct, frozen=True, kw_only=True):
    """A job as its JobMaster knows it."""

    plan: JobPlan
    status: JobStatus = JobStatus.INITIALIZING
    timestamps: dict[JobStatus, int]
    timed_from_ms: int  # when its timeout began, on the clock of the cluster
    regions: tuple[RegionState, ...]  # by RegionId
    restarts: RestartHistory = RestartHistory()
    infrastructure_restarts: int = 0
    charged_losses: tuple[InstanceId, ...] = ()  # incarnations of TaskManagers whose end has been counted; the latest
    required: dict[RegionId, ParallelismRange] = {}  # what users have changed since the submission
    pending: PendingDecision | None = None  # of a job that takes the place of another one; emptied by the decision
    gone_on: bool = False  # likewise: its files say that it has a batch of its own
    rescale: StateRescale | None = None  # of a streaming job: what attempts are started with since it was rescaled
    exceptions: tuple[ExceptionEntry, ...] = ()  # the first and the latest, oldest first
    exceptions_omitted: int = 0  # entries between those that are no longer remembered
    declared: tuple[SlotRequest, ...] = ()  # the requests of the latest declaration
    must_fail: bool = False  # an earlier JobMaster decided that the job fails; read when it starts
    modified_ms: int
    recent_moves: tuple[str, ...] = ()  # the latest moves, for the message about an illegal one

    def attempt_id(self, region: RegionState) -> AttemptId:
        """Return the id of the region's latest attempt."""
        return AttemptId(job_id=self.plan.job_id, region=region.id, attempt=region.current.attempt)

    def region_of(self, attempt: AttemptId) -> RegionState | None:
        """Return the region whose latest attempt this is; None for any other attempt."""
        if attempt.job_id != self.plan.job_id or not 0 <= attempt.region < len(self.regions):
            return None
        region = self.regions[attempt.region]
        return region if region.current.attempt == attempt.attempt else None


def plan_of(graph: JobGraph, cluster: Configuration, work_dir: str, checkpoints_dir: str = "") -> JobPlan:
    """Return the plan of a job: its configuration over the cluster's. Raises if the graph cannot be planned."""
    configuration = cluster.over(graph.config)
    default = configuration.get(options.DEFAULT_PARALLELISM)
    streaming = graph.job_type is JobType.STREAMING
    return JobPlan(
        graph=graph,
        regions=regions_of(graph),
        strategy=restart_strategy(configuration, graph.job_type),
        infrastructure_attempts=configuration.get(options.INFRASTRUCTURE_ATTEMPTS),
        priority=configuration.get(options.JOB_PRIORITY),
        timeout_s=configuration.get(options.JOB_TIMEOUT),
        at_most=graph.parallelism or default or None,
        analyze_first=configuration.get(options.ANALYZE_FIRST),
        cancel_timeout_s=configuration.get(options.TASK_CANCEL_TIMEOUT),
        publication_timeout_s=configuration.get(options.PUBLICATION_TIMEOUT),
        heartbeat_timeout_s=cluster.get(options.HEARTBEAT_TIMEOUT),
        refusals_of_the_dead=math.ceil(cluster.get(options.HEARTBEAT_INTERVAL)) + 2,
        history_size=configuration.get(options.EXCEPTION_HISTORY),
        work_dir=f"{work_dir.rstrip('/')}/{graph.job_id}",
        checkpoint_dir=f"{checkpoints_dir.rstrip('/')}/{graph.job_id}" if streaming and checkpoints_dir else "",
        upgrades=bool(configuration.get(options.UPGRADE_OF)),
        kept_after=_KEPT_AFTER[configuration.get(options.CHECKPOINT_RETENTION)],
    )


def address_of_running(job: ExecutionGraph, attempt: AttemptId) -> str:
    """Return the address of the TaskManager on which user code of this attempt runs.

    Raises NotFound for an attempt that the job does not have, Conflict for one that does not run (yet, or any more).
    """
    known = 0 <= attempt.region < len(job.regions) and attempt.job_id == job.plan.job_id
    current = job.regions[attempt.region].current if known else None
    if current is None or attempt.attempt > current.attempt or attempt.attempt < 0:
        raise NotFound(f"there is no attempt {attempt}")
    if attempt.attempt < current.attempt:
        raise Conflict(f"attempt {attempt} is over: the current one is number {current.attempt}")
    if current.state is not E.RUNNING:
        raise Conflict(f"attempt {attempt} is {current.state}: only a running one answers")
    if job.regions[attempt.region].committed:
        raise Conflict(f"attempt {attempt} has done its work, which is being published: only a running one answers")
    return current.address


def initial_state(plan: JobPlan, job: StoredJob, progress: tuple[RegionRecord, ...], now_ms: int) -> ExecutionGraph:
    """Return the job as its records describe it: new, or as far as earlier JobMasters made it durable.

    FINISHED stays finished; ACCEPTED is to be published; an attempt that was only DEPLOYED may still run: it is to be
    adopted, and the next one, with the next number, follows only when it is known to have ended. Raises Corrupt for
    records that contradict the graph.
    """
    records = {record.region: record for record in progress}
    unknown = [region for region in records if not 0 <= region < len(plan.regions)]
    if unknown:
        raise Corrupt(f"job {plan.job_id} has no region {unknown[0]}, but a record of one")
    regions = tuple(_region_state(region, records.get(region.id), now_ms) for region in plan.regions)
    return ExecutionGraph(
        plan=plan,
        timestamps={JobStatus.INITIALIZING: job.submitted_ms},
        timed_from_ms=job.timed_from_ms,
        regions=regions,
        required=ranges_of(plan, job.requirements),
        rescale=None if job.rescaling is None else job.rescaling.wanted,
        modified_ms=now_ms,
    )


def ranges_of(plan: JobPlan, requirements: Mapping[VertexId, ParallelismRange]) -> dict[RegionId, ParallelismRange]:
    """Return what is required of each region: that of its steps, which agree. Unknown steps are ignored."""
    if not requirements:
        return {}
    by_step = {v.name: requirements[v.id] for v in plan.graph.vertices if v.id in requirements}
    shared = shared_steps(plan.regions)
    return {
        region.id: next(iter(wanted.values()))
        for region in plan.regions
        if (wanted := values_of_region(region, shared, by_step))
    }


def _region_state(plan: Region, record: RegionRecord | None, now_ms: int) -> RegionState:
    if record is None:
        return RegionState(plan=plan, executions=(Execution(attempt=0, timestamps={E.CREATED: now_ms}),))
    if record.phase is RegionPhase.DEPLOYED:
        sent = Execution(
            attempt=record.attempt,
            state=E.RECONCILING if record.address else E.CANCELED,
            timestamps={E.DEPLOYING: record.recorded_ms, E.RECONCILING: now_ms},
            task_manager=record.task_manager,
            address=record.address,
            lease_s=record.lease_s,
        )
        return RegionState(
            plan=plan,
            executions=(sent,),
            grant=_unconfirmed_grant(record),
            staging=record.staging,
            outcome=record.outcome,
            redo=record.outcome is not None,
        )
    outcome = record.outcome
    if outcome is None:
        raise Corrupt(f"region {plan.id} of job {record.job_id} is {record.phase} without an outcome")
    finished = record.phase is RegionPhase.FINISHED
    state = E.FINISHED if finished else E.RUNNING
    execution = Execution(
        attempt=record.attempt,
        state=state,
        timestamps={state: record.recorded_ms},
        task_manager=None if record.reused_from else record.task_manager,
        metrics=outcome.metrics,
        outputs=outcome.outputs,
        output_tail=outcome.output_tail,
        activity="" if finished else "publishing",
        publishing_ms=0 if finished else record.recorded_ms,
    )
    return RegionState(
        plan=plan,
        executions=(execution,),
        phase=record.phase,
        outcome=outcome,
        publication=None if finished else Publication(durable=True, total=file_count(outcome)),
        staging=record.staging,
    )


def _unconfirmed_grant(record: RegionRecord) -> SlotGrant:
    """Return the slots that an attempt was sent to. The current ResourceManager has not confirmed them yet."""
    return SlotGrant(
        job_id=record.job_id,
        request=UNCONFIRMED,
        task_manager=record.task_manager,
        instance=record.instance,
        address=record.address,
        slots=(),
    )


def file_count(outcome: TaskFinished) -> int:
    """Return how many steps publishing an outcome has, as TaskManagers count them: each marker is removed and made."""
    return sum(len(sink.moves) + len(sink.removes) + 2 * (sink.success_marker is not None) for sink in outcome.sinks)

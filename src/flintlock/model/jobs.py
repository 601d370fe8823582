"""A job as other components see it: summary, snapshot with its executions, result."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

from msgspec import Struct

from flintlock.model.ids import JobId, RegionId, StepName, TaskManagerId, TriggerId, VertexId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.regions import Region, readers_of, writers_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.checkpoints import QueryProgress, StateRescale
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.tasks import Failure, ResultRows, StepOutput, TaskMetrics
from flintlock.model.times import elapsed_ms


class JobSubmission(Struct, frozen=True, kw_only=True):
    """A graph, and the client's idempotency key for it if it has one."""

    graph: JobGraph
    idempotency_key: str | None = None
    digest: str = ""  # of the request: decides whether a repeated key has the same graph


class Submitted(Struct, frozen=True, kw_only=True):
    """The job is durable. `existing`: the key was known, and this is its job."""

    job_id: JobId
    existing: bool = False


class ParallelismRange(Struct, frozen=True, kw_only=True):
    """How many slots a step may have."""

    lower: int = 1
    upper: int


class JobRequirements(Struct, frozen=True, kw_only=True):
    """What a job may use, for each step. Steps that only one region has agree."""

    job_id: JobId
    vertices: dict[VertexId, ParallelismRange]


class ClientHeartbeat(Struct, frozen=True, kw_only=True):
    """The client of an attached job is alive."""

    job_id: JobId


class JobRescaling(Struct, frozen=True, kw_only=True):
    """The latest rescale of a streaming job as an operation: what its queries are restarted with, and what was before.

    Stored with the job, in one write with what the job may use: a leader that finds it not completed goes on with it.
    """

    trigger_id: TriggerId
    partitions: int  # that the state of each query is to have
    former: dict[VertexId, ParallelismRange] = {}  # what the job could use before
    completed: bool = False
    failure: str = ""  # of the completed one: why the job goes on as it was

    @property
    def wanted(self) -> StateRescale | None:
        """What attempts are started with; None if it has failed."""
        return None if self.failure else StateRescale(trigger_id=self.trigger_id, partitions=self.partitions)


class JobUpgrade(Struct, frozen=True, kw_only=True):
    """Of a job that takes the place of another one: what runs again if it fails before its first batch."""

    former: JobGraph  # of its predecessor, with that one's id


class StoredJob(Struct, frozen=True, kw_only=True):
    """What is persisted before a submission is acknowledged."""

    graph: JobGraph
    submitted_ms: int
    idempotency_key: str | None = None
    digest: str = ""
    requirements: dict[VertexId, ParallelismRange] = {}  # changed since; the latest of each step
    cause: str = ""  # id of the request that submitted it (`model.causes`); "" if it had none
    rescaling: JobRescaling | None = None  # of a streaming job
    upgrade: JobUpgrade | None = None
    submitted_at_ms: int = 0  # on the retention clock; 0 in records of versions that had none

    @property
    def timed_from_ms(self) -> int:
        """When its timeout began, on the retention clock, which a leader adds to a job of an older version."""
        return self.submitted_at_ms or self.submitted_ms


class ExecutionInfo(Struct, frozen=True, kw_only=True):
    """One attempt at one region."""

    region: RegionId
    attempt: int
    state: ExecutionState
    timestamps: dict[ExecutionState, int]
    task_manager: TaskManagerId | None = None
    address: str = ""
    slots: int = 0
    metrics: TaskMetrics = TaskMetrics()
    outputs: tuple[StepOutput, ...] = ()
    activity: str = ""
    publishing_ms: int = 0  # when its outcome was accepted, if there were files to publish; 0: there were none
    failure: Failure | None = None
    output_tail: bytes = b""  # the end of what it printed, once it has ended
    query: QueryProgress | None = None  # of a streaming job
    queries: tuple[QueryFigures, ...] = ()  # of a streaming job or program


class ExceptionEntry(Struct, frozen=True, kw_only=True):
    """One failure in the job's history."""

    failure: Failure
    timestamp_ms: int
    region: RegionId | None = None
    attempt: int = 0
    task_name: str | None = None
    task_manager: TaskManagerId | None = None
    endpoint: str | None = None
    labels: dict[str, str] = {}
    concurrent: tuple[ExceptionEntry, ...] = ()  # what else failed before the job ran again


class RestartHistory(Struct, frozen=True, kw_only=True):
    """The memory of a restart strategy about one job's failures."""

    restarts: int = 0  # fixed-delay: in all; exponential-delay: since the last reset
    failures_ms: tuple[int, ...] = ()  # failure-rate: when the latest ones were
    backoff_s: float = 0.0  # exponential-delay: the latest delay, before jitter
    last_ms: int = 0  # exponential-delay: when the latest failure was


class JobHistory(Struct, frozen=True, kw_only=True):
    """What has happened to a running job so far. Stored with its progress: the next leader goes on from it."""

    job_id: JobId
    restarts: RestartHistory = RestartHistory()
    infrastructure_restarts: int = 0
    failing: bool = False  # it was decided that the job fails; its other attempts may not have ended yet
    exceptions: tuple[ExceptionEntry, ...] = ()
    exceptions_omitted: int = 0
    attempts: tuple[ExecutionInfo, ...] = ()  # that have ended, in order of region and attempt; without stack traces
    attempts_omitted: dict[RegionId, int] = {}


class TaskCounts(Struct, frozen=True, kw_only=True):
    """How many of a job's steps are in each state, which is that of the step's region, or regions."""

    total: int
    by_state: dict[ExecutionState, int]

    @property
    def waiting_for_slots(self) -> bool:
        """Whether no step runs, and some wait for slots."""
        counts = {state for state, count in self.by_state.items() if count}
        return ExecutionState.SCHEDULED in counts and not any(state.active for state in counts)


class JobSummary(Struct, frozen=True, kw_only=True):
    """One line of a listing."""

    job_id: JobId
    name: str
    job_type: JobType
    status: JobStatus
    start_ms: int
    end_ms: int  # -1 while it runs
    last_modified_ms: int
    tasks: TaskCounts
    stale: bool = False
    labels: dict[str, str] = {}
    submitted_by: str = ""
    first_run_ms: int = -1  # when the first of its attempts ran; -1: none has, or an earlier leader knew it
    upgrade_of: str = ""  # the job whose place it takes
    successor: str = ""  # the job that has taken its place
    held_up_by: str = ""  # what it cannot go on without, other than slots

    @property
    def waits_for(self) -> str:
        """What a job waits for: what holds it up, or slots if it is RUNNING but none of its regions is; "": nothing."""
        return self.held_up_by or self._waits_for_slots

    @property
    def _waits_for_slots(self) -> str:
        return "slots" if self.status is JobStatus.RUNNING and self.tasks.waiting_for_slots else ""

    def duration_ms(self, now_ms: int) -> int:
        """Return how long the job took, or has taken until now."""
        return elapsed_ms(self.start_ms, now_ms if self.end_ms < 0 else self.end_ms)


class JobSnapshot(Struct, frozen=True, kw_only=True, dict=True):
    """The complete state of a job at one time; also what is archived after its end."""

    graph: JobGraph
    regions: tuple[Region, ...]
    status: JobStatus
    timestamps: dict[JobStatus, int]
    end_ms: int
    last_modified_ms: int
    executions: tuple[ExecutionInfo, ...]  # the first and the latest attempts, in order of region and attempt
    attempts_omitted: dict[RegionId, int] = {}  # by region: attempts between those that are no longer remembered
    exceptions: tuple[ExceptionEntry, ...] = ()  # the first and the latest, oldest first
    exceptions_truncated: bool = False
    exceptions_omitted: int = 0  # entries between those that are no longer remembered
    result_names: tuple[StepName, ...] = ()
    publishing: tuple[int, int] | None = None  # files published so far, of how many
    stale: bool = False
    ended_at_ms: int = 0  # on the retention clock; 0 in records of versions that had none
    successor: str = ""  # the job that has taken its place
    held_up_by: str = ""  # what it cannot go on without, other than slots

    @property
    def retained_from_ms(self) -> int:
        """When its retention began, on the retention clock. Older versions counted by the wall clock."""
        return self.ended_at_ms or self.end_ms

    @property
    def start_ms(self) -> int:
        """When it was submitted."""
        return self.timestamps.get(JobStatus.INITIALIZING, 0)

    def duration_ms(self, now_ms: int) -> int:
        """Return how long the job took, or has taken until now."""
        return elapsed_ms(self.start_ms, now_ms if self.end_ms < 0 else self.end_ms)

    def current(self, region: RegionId) -> ExecutionInfo | None:
        """Return the region's latest attempt, if it has any."""
        return self._latest.get(region)

    def regions_with(self, step: StepName) -> tuple[Region, ...]:
        """Return the regions that the step is in: one, or several if outputs with regions of their own share it."""
        return self._regions_by_step.get(step, ())

    @cached_property
    def readers(self) -> dict[RegionId, tuple[StepName, ...]]:
        """For each region its steps that make Spark read."""
        return {region.id: readers_of(self.graph, region) for region in self.regions}

    @cached_property
    def writers(self) -> dict[RegionId, tuple[StepName, ...]]:
        """For each region its steps that make Spark write."""
        return {region.id: writers_of(self.graph, region) for region in self.regions}

    @cached_property
    def _latest(self) -> dict[RegionId, ExecutionInfo]:
        return {execution.region: execution for execution in self.executions}

    @cached_property
    def _regions_by_step(self) -> dict[StepName, tuple[Region, ...]]:
        found: dict[StepName, tuple[Region, ...]] = {}
        for region in self.regions:
            for step in region.steps:
                found[step] = (*found.get(step, ()), region)
        return found

    def summary(self) -> JobSummary:
        """Return the job's line in a listing. A step that several regions share counts once."""
        counts = dict.fromkeys(ExecutionState, 0)
        latest = {execution.region: execution.state for execution in self.executions}
        states: dict[StepName, list[ExecutionState]] = {}
        for region in self.regions:
            for step in region.steps:
                states.setdefault(step, []).append(latest.get(region.id, ExecutionState.CREATED))
        for found in states.values():
            counts[ExecutionState.aggregate(found)] += 1
        return JobSummary(
            job_id=self.graph.job_id,
            name=self.graph.name,
            job_type=self.graph.job_type,
            status=self.status,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            last_modified_ms=self.last_modified_ms,
            tasks=TaskCounts(total=len(self.graph.vertices), by_state=counts),
            stale=self.stale,
            labels=self.graph.labels,
            submitted_by=self.graph.submitted_by,
            first_run_ms=_first_run_ms(self.executions),
            upgrade_of=self.graph.upgrade_of,
            successor=self.successor,
            held_up_by=self.held_up_by,
        )


def _first_run_ms(executions: Iterable[ExecutionInfo]) -> int:
    """Return when the first attempt ran; -1 if none has.

    Also -1 if one was taken over from an earlier leader: of its attempts the record has other times, which are later.
    """
    found = -1
    for execution in executions:
        if ExecutionState.CREATED not in execution.timestamps:
            return -1
        ran = execution.timestamps.get(ExecutionState.RUNNING, -1)
        if ran >= 0 and (found < 0 or ran < found):
            found = ran
    return found


class JobOutcome(Struct, frozen=True, kw_only=True):
    """How a JobMaster's work on a job ended."""

    snapshot: JobSnapshot
    results: tuple[ResultRows, ...] = ()
    scratch: tuple[str, ...] = ()  # directories of the job that must be removed


class KeptResults(Struct, frozen=True, kw_only=True):
    """What stays of a failed job after its cleanup, for a job that continues where it failed (`JobGraph.reuses`).

    Its recorded progress, and the directory of its blocking results.
    """

    until_ms: int  # on the retention clock
    directories: tuple[str, ...] = ()
    bytes: int = 0


class JobResult(Struct, frozen=True, kw_only=True):
    """An entry of the JobResultStore: how the job has ended; `scratch` is what its cleanup must remove."""

    job_id: JobId
    name: str
    status: JobStatus
    start_ms: int
    end_ms: int
    scratch: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    ended_at_ms: int = 0  # on the retention clock; 0 in records of versions that had none
    quarantined: bool = False  # its graph is: what the job uses stays, for when it is put back
    kept: KeptResults | None = None  # what its cleanup removes later: until then the entry is dirty
    cause: ExceptionEntry | None = None  # why it has FAILED, without stack traces: its archive may never be written

    @property
    def retained_from_ms(self) -> int:
        """When its retention began, on the retention clock. Older versions counted by the wall clock."""
        return self.ended_at_ms or self.end_ms


class QuarantinedJob(Struct, frozen=True, kw_only=True):
    """A job that is stored and cannot be run, and what is kept of it."""

    job_id: JobId
    name: str  # empty if it is unknown
    reason: str
    since_ms: int  # -1 if it is unknown
    readable: bool  # whether its graph can be read
    directories: tuple[str, ...] = ()  # that its attempts have written to
    artifacts: tuple[str, ...] = ()  # their names


class QuarantinedJobs(Struct, frozen=True, kw_only=True):
    """All quarantined jobs."""

    jobs: tuple[QuarantinedJob, ...]


class RetentionReading(Struct, frozen=True, kw_only=True):
    """The cluster's retention clock, as its leader recorded it last, and the wall clock at that time."""

    clock_ms: int
    wall_ms: int


class JobQuery(Struct, frozen=True, kw_only=True):
    """Names one job."""

    job_id: JobId


class ResultQuery(Struct, frozen=True, kw_only=True):
    """Names one result of one job."""

    job_id: JobId
    name: str


class AwaitJob(Struct, frozen=True, kw_only=True):
    """Wait up to `wait_s` for the job's end."""

    job_id: JobId
    wait_s: float = 0.0


class JobOrder(StrEnum):
    """The order of a page of the listing; `-`: the largest value first."""

    NEWEST = "-start"
    OLDEST = "start"
    FIRST_ENDED = "end"
    LAST_ENDED = "-end"
    SHORTEST = "duration"
    LONGEST = "-duration"
    BY_NAME = "name"
    BY_NAME_REVERSED = "-name"

    @property
    def column(self) -> str:
        """What is compared."""
        return self.value.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the largest value comes first."""
        return self.value.startswith("-")


class JobPosition(Struct, frozen=True, kw_only=True):
    """A place in the listing, whose order is: the newest start first, then by id."""

    start_ms: int
    job_id: JobId
    value: str = ""  # in another order: what that compares


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs a listing shows: those that fulfil every condition that is set."""

    name: str = ""  # the name, or a pattern with `*`
    states: frozenset[str] = frozenset()  # one of these; WAITING for a job that waits, which is then not RUNNING
    labels: dict[str, str] = {}  # all of these; an empty value stands for any
    since_ms: int = 0  # started then or later
    id_prefix: str = ""
    submitted_by: str = ""


class JobsQuery(Struct, frozen=True, kw_only=True):
    """A page of the listing: at most `limit` jobs behind a position; only those that have not ended if not `ended`.

    With a filter, a page may have fewer jobs than its limit, and yet a next one: it is the work of finding them that
    is limited, too.
    """

    limit: int
    after: JobPosition | None = None
    ended: bool = True
    filter: JobFilter | None = None
    order: JobOrder = JobOrder.NEWEST


JobLine: TypeAlias = JobSummary | bytes
"""A line of the listing; that of an ended job encoded, as clients of REST receive it (`api.job_lines`)."""


class JobsPage(Struct, frozen=True, kw_only=True):
    """Lines in the order of the listing, and the position of the last one; None if there are no more jobs."""

    lines: tuple[JobLine, ...]
    next: JobPosition | None = None


class JobCounts(Struct, frozen=True, kw_only=True):
    """How many jobs are in each state. The same object is returned until some line of the listing changes."""

    by_status: dict[JobStatus, int]

    @property
    def running(self) -> int:
        """How many jobs have not ended."""
        return sum(count for status, count in self.by_status.items() if not status.globally_terminal)


class ListingChangesQuery(Struct, frozen=True, kw_only=True):
    """Which lines have changed since a version of the listing."""

    since: int


class ListingChanges(Struct, frozen=True, kw_only=True):
    """Lines that changed, the latest change last, and the version up to which they are complete.

    `complete` is False if more lines have changed than are remembered: then list the jobs again.
    """

    version: int
    lines: tuple[JobLine, ...] = ()
    complete: bool = True

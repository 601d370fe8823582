"""What REST returns about jobs.

Names and types are Flink's wherever the meaning is; `tests/data/flink-rest` holds responses of Flink that these are
compared with. Where a message is Flintlock's own and shows a struct of the model, its attributes have the model's
names: `msgspec.convert(…, from_attributes=True)` makes the one from the other, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import Meta, field

from flintlock.api.base import ApiStruct, CamelCase, KebabCase
from flintlock.model.commands import OperationStatus
from flintlock.model.jobgraph import MAX_PARALLELISM, Scalar
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind, Frame, StepOutput

WAITING: Final = "WAITING"
"""How a job is shown that Flink's API calls RUNNING, and of which nothing runs yet."""


SLOTS: Final = "slots"
"""What a job waits for in the queue; whatever else it may wait for is a text that says why."""


class Empty(ApiStruct, frozen=True, kw_only=True):
    """An empty answer."""


class Errors(ApiStruct, frozen=True, kw_only=True):
    """Every answer that is not a success."""

    errors: list[str]


class JobIdStatus(ApiStruct, frozen=True, kw_only=True):
    """One entry of GET /jobs."""

    id: str
    status: str


class JobIds(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs."""

    jobs: list[JobIdStatus]


class OverviewTasks(ApiStruct, frozen=True, kw_only=True):
    """Steps of a job, counted by state."""

    running: int
    canceling: int
    canceled: int
    total: int
    created: int
    scheduled: int
    deploying: int
    reconciling: int
    finished: int
    initializing: int
    failed: int


class JobsOverviewEntry(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of GET /jobs/overview. `waits-for`: slots, or what holds it up; not there if it goes on.

    `first-run`: when its first attempt ran; not there before that, nor where an earlier leader alone knew it.
    `upgrade-of` and `successor`: the job whose place this one takes, and the job that has taken its place.
    """

    jid: str
    name: str
    job_type: str = field(name="jobType")
    scheduler_type: str = field(name="schedulerType")
    start_time: int = field(name="start-time")
    end_time: int = field(name="end-time")
    duration: int
    state: JobStatus
    last_modification: int = field(name="last-modification")
    tasks: OverviewTasks
    pending_operators: int = field(name="pending-operators")
    waits_for: str = field(default="", name="waits-for")
    labels: dict[str, str] = field(default_factory=dict)  # not dict[…]: msgspec omits this default only
    submitted_by: str = field(default="", name="submitted-by")
    first_run: int = field(default=-1, name="first-run")
    upgrade_of: str = field(default="", name="upgrade-of")
    successor: str = ""

    @property
    def shown_state(self) -> str:
        """The state as people read it: WAITING if the job waits for something, such as slots."""
        return WAITING if self.waits_for else self.state


class JobsOverviewResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/overview; `next` is where the next page begins, if `limit` was given and there is one."""

    jobs: tuple[JobsOverviewEntry, ...]
    next: str | None = None


class VertexMetrics(KebabCase, frozen=True, kw_only=True):
    """What a step read and wrote. `…-complete` is false where Spark has not reported it, or not for this step alone."""

    read_bytes: int
    read_bytes_complete: bool
    write_bytes: int
    write_bytes_complete: bool
    read_records: int
    read_records_complete: bool
    write_records: int
    write_records_complete: bool
    accumulated_backpressured_time: int
    accumulated_idle_time: int
    accumulated_busy_time: float


class Vertex(ApiStruct, frozen=True, kw_only=True):
    """One step in GET /jobs/:jobid."""

    id: str
    slot_sharing_group_id: str = field(name="slotSharingGroupId")
    name: str
    max_parallelism: int = field(name="maxParallelism")
    parallelism: int
    status: str
    start_time: int = field(name="start-time")
    end_time: int = field(name="end-time")
    duration: int
    tasks: dict[str, int]
    metrics: VertexMetrics


class PlanInput(ApiStruct, frozen=True, kw_only=True):
    """An edge of the plan."""

    num: int
    id: str
    ship_strategy: str
    exchange: str


class PlanNode(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the plan. `definition`: the step's query, or what it does in a line."""

    id: str
    operator: str = field()
    parallelism: int
    operator_strategy: str = field()
    description: str
    optimizer_properties: dict[str, Any] = field()
    inputs: tuple[PlanInput, ...] = ()
    step: str = ""
    kind: str = ""  # source, sql, function, sink, …
    definition: str = ""
    guarantee: str = ""  # what an output promises
    uid: str = ""  # of a query of a streaming job
    schema: str = ""  # of a source, where the job declares it


class Plan(ApiStruct, frozen=True, kw_only=True):
    """A job's plan."""

    jid: str
    name: str
    type: str
    nodes: list[PlanNode]


class JobCheckProblem(ApiStruct, frozen=True, kw_only=True):
    """One thing that is wrong with a job document: the keys that lead to it, and what it is."""

    path: tuple[str, ...]
    message: str


class JobCheck(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /jobs/check: the plan of a document and the steps of its regions, or what is wrong with it."""

    plan: Plan | None = None
    regions: tuple[tuple[str, ...], ...] = ()
    problems: tuple[JobCheckProblem, ...] = ()
    omitted: int = 0  # problems beyond those


class PlanResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/plan."""

    plan: Plan


class JobDetails(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """GET /jobs/:jobid. `waits-for`: slots, or what holds it up; not there if it goes on."""

    jid: str
    application_id: str = field(name="application-id")
    name: str
    is_stoppable: bool = field(name="isStoppable")
    state: str
    job_type: str = field(name="job-type")
    scheduler_type: str = field(name="schedulerType")
    start_time: int = field(name="start-time")
    end_time: int = field(name="end-time")
    duration: int
    max_parallelism: int = field(name="maxParallelism")
    now: int
    timestamps: dict[str, int]
    vertices: list[Vertex]
    status_counts: dict[str, int] = field(name="status-counts")
    plan: Plan
    pending_operators: int = field(name="pending-operators")
    waits_for: str = field(default="", name="waits-for")
    labels: dict[str, str] = field(default_factory=dict)  # not dict[…]: msgspec omits this default only
    submitted_by: str = field(default="", name="submitted-by")
    rerun_of: str = field(default="", name="rerun-of")
    upgrade_of: str = field(default="", name="upgrade-of")
    successor: str = ""


class ExecutionConfig(KebabCase, frozen=True, kw_only=True):
    """How a job was configured."""

    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]


class JobConfigResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/config."""

    jid: str
    name: str
    execution_config: ExecutionConfig = field(name="execution-config")
    params: dict[str, Scalar] = field(default_factory=dict[str, Scalar])  # secrets are references to them


class JobStatusResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/status."""

    status: JobStatus


class FailureCause(KebabCase, frozen=True, kw_only=True):
    """Why a job failed, as Flink's clients read it."""

    class_: str = field(name="class")
    stack_trace: str
    serialized_throwable: str


class ExecutionResult(KebabCase, frozen=True, kw_only=True, omit_defaults=True):
    """How a job ended."""

    id: str
    application_status: str
    accumulator_results: dict[str, str] = field()
    net_runtime: int
    failure_cause: FailureCause | None = None


class QueueStatus(ApiStruct, frozen=True, kw_only=True):
    """COMPLETED or IN_PROGRESS."""

    id: str


class ExecutionResultResponse(KebabCase, frozen=True, kw_only=True, omit_defaults=True):
    """GET /jobs/:jobid/execution-result."""

    status: QueueStatus
    job_execution_result: ExecutionResult | None = None


class ExceptionInfo(CamelCase, frozen=True, kw_only=True):
    """One failure of a job."""

    exception_name: str
    stacktrace: str
    timestamp: int
    failure_labels: dict[str, str]
    task_name: str | None
    endpoint: str | None
    task_manager_id: str | None


class ExceptionHistoryEntry(ExceptionInfo, frozen=True, kw_only=True):
    """A failure that the job reacted to, and what else failed before it ran again."""

    concurrent_exceptions: list[ExceptionInfo]


class ExceptionHistory(ApiStruct, frozen=True, kw_only=True):
    """The last failures of a job, newest first."""

    entries: list[ExceptionHistoryEntry]
    truncated: bool


class ExceptionsResponse(CamelCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/exceptions."""

    exception_history: ExceptionHistory


class SubmittedJob(ApiStruct, frozen=True, kw_only=True):
    """POST /jobs: the job is durable."""

    jobid: str


class StoredBlob(ApiStruct, frozen=True, kw_only=True):
    """POST /blobs."""

    blob: str
    size: int


class ResultColumn(ApiStruct, frozen=True, kw_only=True):
    """A column of a result, with Spark's name for its type."""

    name: str
    type: str = ""


class ResultTable(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/results/:name."""

    name: str
    truncated: bool = False
    columns: tuple[ResultColumn, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


class ResultNames(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/results."""

    results: tuple[str, ...] = ()


class ParallelismBounds(CamelCase, frozen=True, kw_only=True):
    """How many slots a step may have."""

    lower: Annotated[int, Meta(ge=1, le=MAX_PARALLELISM)] = field(default=1, name="lowerBound")
    upper: Annotated[int, Meta(ge=1, le=MAX_PARALLELISM)] = field(name="upperBound")


class VertexRequirements(CamelCase, frozen=True, kw_only=True):
    """What one step may use: a value of GET /jobs/:jobid/resource-requirements, by vertex id."""

    parallelism: ParallelismBounds


class TriggerResponse(KebabCase, frozen=True, kw_only=True):
    """An operation was triggered: ask for its outcome by this id."""

    request_id: str


class OperationStatusId(ApiStruct, frozen=True, kw_only=True):
    """Whether the outcome of an operation is known."""

    id: OperationStatus


class OperationOutcome(KebabCase, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an operation; without a failure cause it was carried out."""

    location: str | None = None  # of the savepoint that it has made
    failure_cause: FailureCause | None = None


class OperationResponse(KebabCase, frozen=True, kw_only=True, omit_defaults=True):
    """GET /jobs/:jobid/rescaling/:triggerid, savepoints/:triggerid. `operation` is there once it is COMPLETED."""

    status: OperationStatusId
    operation: OperationOutcome | None = None


class AttemptMetrics(KebabCase, frozen=True, kw_only=True):
    """What Spark counted for one attempt: the model's TaskMetrics."""

    read_records: int = 0
    read_bytes: int = 0
    write_records: int = 0
    write_bytes: int = 0
    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class FailureInfo(KebabCase, frozen=True, kw_only=True):
    """The model's Failure, complete."""

    kind: FailureKind
    message: str
    exception: str = ""
    step: str | None = None
    frames: tuple[Frame, ...] = ()
    error_class: str | None = None
    query_context: str | None = None
    stack_trace: str = ""
    jvm_stack_trace: str | None = None


class AttemptInfo(KebabCase, frozen=True, kw_only=True):
    """One attempt at one region: the model's ExecutionInfo."""

    attempt: int
    state: ExecutionState
    task_manager: str | None = field(default=None, name="taskmanager-id")
    slots: int = 0
    timestamps: dict[str, int] = field(default_factory=dict[str, int])
    activity: str = ""
    publishing_ms: int = field(default=0, name="publishing")  # since when files were published; 0: there are none
    metrics: AttemptMetrics = AttemptMetrics()
    outputs: tuple[StepOutput, ...] = ()
    failure: FailureInfo | None = None


class RegionAttempts(ApiStruct, frozen=True, kw_only=True):
    """One region with its first and its latest attempts, the latest last."""

    id: int = field(name="region")
    steps: tuple[str, ...] = ()
    parallelism: int | None = None
    reads: tuple[str, ...] = ()
    materialises: tuple[str, ...] = ()
    attempts: tuple[AttemptInfo, ...] = ()
    omitted: int = 0  # attempts between the first and the latest that are no longer remembered

    @property
    def count(self) -> int:
        """How many attempts there were."""
        return len(self.attempts) + self.omitted

    @property
    def latest(self) -> AttemptInfo | None:
        """The attempt that counts now."""
        return self.attempts[-1] if self.attempts else None


class PublishingProgress(ApiStruct, frozen=True, kw_only=True):
    """How many files are published."""

    done: int
    total: int


class FailureSummary(KebabCase, frozen=True, kw_only=True):
    """One failure of a job in a line; its attempt and the exception history have the complete one."""

    timestamp: int
    region: int | None = None  # None: the job as a whole
    attempt: int = 0
    task_manager: str | None = field(default=None, name="taskmanager-id")
    kind: str = ""
    headline: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    concurrent: bool = False  # it happened together with the one before it


class JobAttempts(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/attempts: everything that a display of a job needs."""

    jobid: str
    name: str
    status: JobStatus
    engine: str = "shared"
    regions: tuple[RegionAttempts, ...] = ()
    publishing: PublishingProgress | None = None
    failure: FailureInfo | None = None
    failures: tuple[FailureSummary, ...] = ()  # the first and the latest, oldest first
    failures_omitted: int = field(default=0, name="failures-omitted")  # failures between those
    submitted_by: str = field(default="", name="submitted-by")
    rerun_of: str = field(default="", name="rerun-of")  # the job that this one runs again
    upgrade_of: str = field(default="", name="upgrade-of")  # the job whose place this one has taken
    successor: str = ""  # the job that has taken its place
    waits_for: str = field(default="", name="waits-for")  # slots, or what holds it up
    continuable: bool = False  # whether it can be run again from where it failed, while its results are kept
    labels: dict[str, str] = field(default_factory=dict[str, str])
    start_time: int = field(default=0, name="start-time")
    end_time: int = field(default=-1, name="end-time")

    @property
    def shown_state(self) -> str:
        """The state as people read it: WAITING if the job waits for something, such as slots."""
        return WAITING if self.waits_for else self.status


class JobChange(KebabCase, frozen=True, kw_only=True):
    """A cancel, a rescaling or a savepoint of a job: who requested it and when, and what came of it."""

    kind: str  # cancel, rescale, savepoint or stop
    requested: int
    requested_by: str = ""
    status: str = ""  # of an operation: IN_PROGRESS or COMPLETED
    failure: str = ""
    location: str = ""  # of the savepoint that was made


class JobChanges(KebabCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/changes: who submitted the job, and what was requested of it since, the earliest first."""

    submitted_by: str = ""
    changes: tuple[JobChange, ...] = ()


class TextSpan(KebabCase, frozen=True, kw_only=True):
    """A part of a text: its first character, and the one behind its last."""

    start: int
    end: int


class LogPart(KebabCase, frozen=True, kw_only=True):
    """A piece of one attempt's output."""

    region: int
    attempt: int
    taskmanager_id: str | None = None
    offset: int = 0
    next_offset: int  # where the next piece begins: `text` is characters, offsets are bytes
    size: int = 0
    complete: bool = False
    text: str = ""
    stderr: tuple[TextSpan, ...] = ()  # which parts of `text` are standard error

    def streams(self) -> Iterator[tuple[str, bool]]:
        """Yield the text in pieces, and of each whether it is standard error."""
        position = 0
        for span in self.stderr:
            if span.start > position:
                yield self.text[position : span.start], False
            yield self.text[span.start : span.end], True
            position = span.end
        if position < len(self.text):
            yield self.text[position:], False


class JobLogs(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/logs."""

    logs: tuple[LogPart, ...] = ()

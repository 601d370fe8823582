"""What REST answers about jobs, field by field.

Names and types are Flink's wherever the meaning is; `tests/data/flink-rest` holds real answers of Flink that these
are compared with.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Shape(Struct, frozen=True, kw_only=True):
    """Base of all answers."""


class Kebab(Shape, frozen=True, kw_only=True, rename="kebab"):
    """An answer whose fields are written with hyphens."""


class Camel(Shape, frozen=True, kw_only=True, rename="camel"):
    """An answer whose fields are written in camelCase."""


class Empty(Shape, frozen=True, kw_only=True):
    """An empty answer."""


class Errors(Shape, frozen=True, kw_only=True):
    """Every answer that is not a success."""

    errors: list[str]


class JobIdStatus(Shape, frozen=True, kw_only=True):
    """One entry of GET /jobs."""

    id: str
    status: str


class JobIds(Shape, frozen=True, kw_only=True):
    """GET /jobs."""

    jobs: list[JobIdStatus]


class OverviewTasks(Shape, frozen=True, kw_only=True):
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


class JobsOverviewEntry(Shape, frozen=True, kw_only=True):
    """One entry of GET /jobs/overview."""

    jid: str
    name: str
    job_type: str = field(name="jobType")
    scheduler_type: str = field(name="schedulerType")
    start_time: int = field(name="start-time")
    end_time: int = field(name="end-time")
    duration: int
    state: str
    last_modification: int = field(name="last-modification")
    tasks: OverviewTasks
    pending_operators: int = field(name="pending-operators")


class JobsOverviewAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/overview."""

    jobs: list[JobsOverviewEntry]


class VertexMetrics(Kebab, frozen=True, kw_only=True):
    """What a step read and wrote. `…-complete` is false where Spark has not said, or not for this step alone."""

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


class Vertex(Shape, frozen=True, kw_only=True):
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


class PlanInput(Shape, frozen=True, kw_only=True):
    """An edge of the plan."""

    num: int
    id: str
    ship_strategy: str
    exchange: str


class PlanNode(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the plan."""

    id: str
    operator: str = field()
    parallelism: int
    operator_strategy: str = field()
    description: str
    optimizer_properties: dict[str, Any] = field()
    inputs: list[PlanInput] = []


class Plan(Shape, frozen=True, kw_only=True):
    """A job's plan."""

    jid: str
    name: str
    type: str
    nodes: list[PlanNode]


class PlanAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/plan."""

    plan: Plan


class JobDetails(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid."""

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


class ExecutionConfig(Kebab, frozen=True, kw_only=True):
    """How a job was configured."""

    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]


class JobConfigAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/config."""

    jid: str
    name: str
    execution_config: ExecutionConfig = field(name="execution-config")


class JobStatusAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/status."""

    status: str


class FailureCause(Kebab, frozen=True, kw_only=True):
    """Why a job failed, as Flink's clients read it."""

    class_: str = field(name="class")
    stack_trace: str
    serialized_throwable: str


class ExecutionResult(Kebab, frozen=True, kw_only=True, omit_defaults=True):
    """How a job ended."""

    id: str
    application_status: str
    accumulator_results: dict[str, str] = field()
    net_runtime: int
    failure_cause: FailureCause | None = None


class QueueStatus(Shape, frozen=True, kw_only=True):
    """COMPLETED or IN_PROGRESS."""

    id: str


class ExecutionResultAnswer(Kebab, frozen=True, kw_only=True, omit_defaults=True):
    """GET /jobs/:jobid/execution-result."""

    status: QueueStatus
    job_execution_result: ExecutionResult | None = None


class ExceptionInfo(Camel, frozen=True, kw_only=True):
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


class ExceptionHistory(Shape, frozen=True, kw_only=True):
    """The last failures of a job, newest first."""

    entries: list[ExceptionHistoryEntry]
    truncated: bool


class ExceptionsAnswer(Camel, frozen=True, kw_only=True):
    """GET /jobs/:jobid/exceptions."""

    exception_history: ExceptionHistory


class Jobid(Shape, frozen=True, kw_only=True):
    """POST /jobs: the job is durable."""

    jobid: str


class BlobAnswer(Shape, frozen=True, kw_only=True):
    """POST /blobs."""

    blob: str
    size: int


class ResultColumn(Shape, frozen=True, kw_only=True):
    """A column of a result, with Spark's name for its type."""

    name: str
    type: str


class ResultAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/results/:name."""

    name: str
    truncated: bool
    columns: list[ResultColumn]
    rows: list[list[Any]]


class ResultNames(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/results."""

    results: list[str]


class AttemptMetrics(Kebab, frozen=True, kw_only=True):
    """What Spark counted for one attempt."""

    read_records: int
    read_bytes: int
    write_records: int
    write_bytes: int
    stages_done: int
    stages_total: int
    tasks_done: int
    tasks_total: int


class OutputAnswer(Shape, frozen=True, kw_only=True):
    """Rows and bytes of one output step."""

    step: str
    rows: int
    bytes: int


class FrameAnswer(Shape, frozen=True, kw_only=True):
    """One of the user's own stack frames."""

    file: str
    line: int
    function: str
    source: str


class FailureAnswer(Kebab, frozen=True, kw_only=True):
    """A failure, whole."""

    kind: str
    message: str
    exception: str
    step: str | None
    frames: list[FrameAnswer]
    error_class: str | None
    query_context: str | None
    stack_trace: str
    jvm_stack_trace: str | None


class AttemptAnswer(Kebab, frozen=True, kw_only=True):
    """One attempt at one region."""

    attempt: int
    state: str
    taskmanager_id: str | None
    slots: int
    timestamps: dict[str, int]
    activity: str
    metrics: AttemptMetrics
    outputs: list[OutputAnswer]
    failure: FailureAnswer | None


class RegionAnswer(Shape, frozen=True, kw_only=True):
    """One region with all its attempts."""

    region: int
    steps: list[str]
    parallelism: int | None
    reads: list[str]
    materialises: list[str]
    attempts: list[AttemptAnswer]


class Publishing(Shape, frozen=True, kw_only=True):
    """Files published so far."""

    done: int
    total: int


class FailureLine(Kebab, frozen=True, kw_only=True):
    """One failure of a job in a line; the whole of it is with its attempt, and in the exception history."""

    timestamp: int
    region: int | None  # None: the job as a whole
    attempt: int
    taskmanager_id: str | None
    kind: str
    headline: str
    labels: dict[str, str]
    concurrent: bool  # it came together with the one before it


class AttemptsAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/attempts."""

    jobid: str
    name: str
    status: str
    engine: str
    regions: list[RegionAnswer]
    publishing: Publishing | None
    failure: FailureAnswer | None
    failures: list[FailureLine]  # the last ones, the oldest of them first


class LogAnswer(Kebab, frozen=True, kw_only=True):
    """A piece of one attempt's output."""

    region: int
    attempt: int
    taskmanager_id: str
    offset: int
    next_offset: int  # where the next piece begins: `text` is characters, offsets are bytes
    size: int
    complete: bool
    text: str


class LogsAnswer(Shape, frozen=True, kw_only=True):
    """GET /jobs/:jobid/logs."""

    logs: list[LogAnswer]

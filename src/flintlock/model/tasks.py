"""Messages and records about tasks: deployment, progress, the outcome of an attempt, publication, logs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.files.manifests import Manifest
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, StepName, TaskManagerId
from flintlock.model.jobgraph import JobGraph, Resources
from flintlock.model.regions import Region
from flintlock.model.streaming.checkpoints import QueryProgress, StateRescale
from flintlock.model.streaming.query_figures import QueryFigures


class Analysis(StrEnum):
    """What an attempt resolves before its first Spark job: errors that can be found early are reported early."""

    WHOLE = "whole-graph"
    REGION = "region"
    DONE = "done"  # a region that ran before has resolved the whole graph


class DeployTask(Struct, frozen=True, kw_only=True):
    """JobMaster to TaskManager: run this attempt in these slots. Sending it twice runs it once."""

    attempt: AttemptId
    graph: JobGraph
    region: Region
    slots: tuple[int, ...]
    inputs: dict[StepName, str] = {}  # blocking results of other regions: where their rows are
    manifests: dict[StepName, Manifest] = {}  # of those inputs; records of older versions have none
    work_dir: str = ""  # the job's own directory for its blocking results
    analysis: Analysis = Analysis.REGION
    cancel_timeout_s: float = 10.0
    instance: InstanceId | None = None  # that has the slots: another incarnation of the TaskManager refuses it
    resources: Resources | None = None  # what the task's runner may use
    outputs: tuple[StepName, ...] | None = None  # only these of the region's outputs; None: all of them
    lease_s: float = 0.0  # no leader's lease covers the attempt for longer than this; 0: as long as the leader grants
    taken: dict[StepName, JobId] = {}  # sinks that must not write: another job writes to their target
    checkpoint_dir: str = ""  # of a streaming job: contains the checkpoint of each query, by its uid
    rescale: StateRescale | None = None  # of a streaming job: what its state is to have before the query starts
    continues: bool = False  # of a streaming job: an earlier attempt of the query has committed a batch


class DeploymentAnswer(Struct, frozen=True, kw_only=True):
    """TaskManager to JobMaster: it has the attempt. Its heartbeats after this one list the attempt until its end."""

    heartbeat: int = 0


class FileMove(Struct, frozen=True):
    """One staged file and the place where it is published."""

    source: str
    target: str


class SinkFiles(Struct, frozen=True, kw_only=True):
    """The file operations that publish one staged sink."""

    step: StepName
    target: str
    staging: str
    moves: tuple[FileMove, ...] = ()
    removes: tuple[str, ...] = ()
    success_marker: str | None = None


class PublishFiles(Struct, frozen=True, kw_only=True):
    """JobMaster to TaskManager: publish an accepted attempt. Twice or late is harmless."""

    attempt: AttemptId
    sinks: tuple[SinkFiles, ...]


class RemoveFiles(Struct, frozen=True, kw_only=True):
    """Remove directories that are Flintlock's own: staging of attempts that were not accepted, work directories."""

    job_id: JobId
    directories: tuple[str, ...]  # those of staging may be patterns (`model.staging.ANY_ATTEMPT`)


class FailureKind(StrEnum):
    """Why an attempt failed: decides whether a retry can help."""

    USER_CODE = "user code"
    ANALYSIS = "analysis"
    MISSING_ARTIFACT = "missing artifact"
    MISSING_INPUT = "missing input"  # another region's result is gone: that region has to run again
    NO_RESOURCES = "no resources"
    TIMEOUT = "timeout"
    CONFIGURATION = "configuration"
    SPARK_TASK = "spark task failure"
    OUT_OF_MEMORY = "out of memory"
    NO_SPACE = "no space left"  # on a disk that the task writes to
    RUNNER_LOST = "runner lost"
    ENGINE_LOST = "engine lost"
    TASK_MANAGER_LOST = "TaskManager lost"
    PUBLICATION = "publication"
    INTERNAL = "internal"


class Frame(Struct, frozen=True):
    """A stack frame in user code."""

    file: str
    line: int
    function: str
    source: str = ""


#: `Failure.exception` of attempts that ended because their TaskManager, or its engine, has ended: an incarnation of the
#: TaskManager ends with either.
TASK_MANAGER_DIED: Final = "TaskManagerLost"
ENGINE_DIED: Final = "EngineLost"


class Failure(Struct, frozen=True, kw_only=True):
    """A failure as its user should read it: their step, error and lines; Spark's and the JVM's further down."""

    kind: FailureKind
    message: str
    exception: str = ""  # the exception's type
    step: StepName | None = None
    frames: tuple[Frame, ...] = ()
    error_class: str | None = None  # Spark's
    query_context: str | None = None
    stack_trace: str = ""  # Python's, whole
    jvm_stack_trace: str | None = None
    missing: tuple[StepName, ...] = ()  # MISSING_INPUT: the steps whose results are missing
    permanent: bool = False  # repeating the attempt cannot help, or its user code has said so: never retried
    lost_instance: InstanceId | None = None  # the TaskManager's incarnation that ended; set by the JobMaster


class ResultRows(Struct, frozen=True, kw_only=True):
    """Rows stored with the job, in the two forms that REST serves: the JobManager decodes neither."""

    name: StepName
    rows: int
    truncated: bool
    arrow: bytes  # an Arrow IPC stream
    json: bytes  # {"columns": [{"name", "type"}], "rows": [[…]]}


class TaskMetrics(Struct, frozen=True, kw_only=True):
    """What Spark counted for one attempt."""

    read_records: int = 0
    read_bytes: int = 0
    write_records: int = 0
    write_bytes: int = 0
    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class StepOutput(Struct, frozen=True, kw_only=True):
    """Rows and bytes of one output step."""

    step: StepName
    rows: int = 0
    bytes: int = 0


class TaskRunning(Struct, frozen=True, kw_only=True, tag="running"):
    """The runner has its task: user code runs from here on."""


class TaskProgress(Struct, frozen=True, kw_only=True, tag="progress"):
    """The attempt's progress; later messages replace earlier ones."""

    metrics: TaskMetrics
    activity: str = ""  # what it does now, such as "writing out"
    query: QueryProgress | None = None  # of a streaming task
    queries: tuple[QueryFigures, ...] = ()  # of a streaming task, or those that a program has started


class TaskFinished(Struct, frozen=True, kw_only=True, tag="finished"):
    """The work is done and staged; nothing is published yet."""

    metrics: TaskMetrics = TaskMetrics()
    outputs: tuple[StepOutput, ...] = ()
    materialised: dict[StepName, str] = {}
    manifests: dict[StepName, Manifest] = {}  # of what was materialised; records of older versions have none
    results: tuple[ResultRows, ...] = ()
    sinks: tuple[SinkFiles, ...] = ()
    output_tail: bytes = b""  # the end of what the attempt printed


class TaskFailed(Struct, frozen=True, kw_only=True, tag="failed"):
    """The attempt has ended without a result."""

    failure: Failure
    output_tail: bytes = b""  # the end of what it printed


class TaskCanceled(Struct, frozen=True, kw_only=True, tag="canceled"):
    """The attempt was cancelled: its runner has exited, its Spark session is released."""

    output_tail: bytes = b""  # the end of what it printed


class FilesPublished(Struct, frozen=True, kw_only=True, tag="published"):
    """How far a publication is: in this order, success markers removed, files moved, files removed, markers made."""

    done: int
    total: int
    complete: bool = False


class PublicationFailed(Struct, frozen=True, kw_only=True, tag="publication-failed"):
    """Publishing failed; it may be retried, here or on another TaskManager."""

    reason: str
    permanent: bool = False  # its kind does not pass by itself: access denied, a file that is gone, an unknown scheme
    stopped: bool = False  # no file changes any more: what was reported as done is all that is done


TaskNews: TypeAlias = (
    TaskRunning | TaskProgress | TaskFinished | TaskFailed | TaskCanceled | FilesPublished | PublicationFailed
)


class TaskReport(Struct, frozen=True, kw_only=True):
    """TaskManager to JobMaster: what happened to an attempt. Sent again until it is acknowledged."""

    attempt: AttemptId
    task_manager: TaskManagerId
    instance: InstanceId
    news: TaskNews

    @property
    def job_id(self) -> JobId:
        """The job that the attempt belongs to."""
        return self.attempt.job_id


class LogQuery(Struct, frozen=True, kw_only=True):
    """A piece of an attempt's captured output; a negative offset counts from the end."""

    task_manager: TaskManagerId
    attempt: AttemptId
    offset: int = 0
    limit: int = 1 << 20


class LogChunk(Struct, frozen=True, kw_only=True):
    """Bytes from `offset` on; `size` is the whole length so far."""

    data: bytes
    offset: int
    size: int
    complete: bool  # the attempt has ended: nothing will be added
    stderr: tuple[tuple[int, int], ...] = ()  # which of these bytes are standard error: first, and behind the last


class LoggedJobsQuery(Struct, frozen=True, kw_only=True):
    """A page of the jobs whose captured output is still there: the first ones behind `after`, by id."""

    after: str = ""
    limit: int = 1000


class LoggedJobs(Struct, frozen=True, kw_only=True):
    """A page of the jobs whose captured output is still there, in the order of their ids. Empty: there are no more."""

    job_ids: tuple[JobId, ...] = ()


class RemoveLogs(Struct, frozen=True, kw_only=True):
    """Remove the captured output of jobs that the cluster has forgotten."""

    job_ids: tuple[JobId, ...]


class RegionPhase(StrEnum):
    """How far a region has durably come."""

    DEPLOYED = "DEPLOYED"  # the attempt may run on the recorded TaskManager
    ACCEPTED = "ACCEPTED"  # the attempt's outcome counts; its files are being published
    FINISHED = "FINISHED"  # the outcome is complete, and published


#: Legal moves of a region's record. DEPLOYED follows itself with every further attempt; it follows FINISHED when a
#: blocking result of the region was lost and has to be produced again.
REGION_MOVES: Final[Mapping[RegionPhase, frozenset[RegionPhase]]] = {
    RegionPhase.DEPLOYED: frozenset({RegionPhase.DEPLOYED, RegionPhase.ACCEPTED, RegionPhase.FINISHED}),
    RegionPhase.ACCEPTED: frozenset({RegionPhase.FINISHED}),
    RegionPhase.FINISHED: frozenset({RegionPhase.DEPLOYED}),
}


class RegionRecord(Struct, frozen=True, kw_only=True):
    """The stored state of a region: written before the action that it announces."""

    job_id: JobId
    region: RegionId
    phase: RegionPhase
    attempt: int
    task_manager: TaskManagerId
    instance: InstanceId
    address: str = ""  # where that TaskManager listened: an interrupted attempt is ended there first
    outcome: TaskFinished | None = None  # from ACCEPTED on; with DEPLOYED: only blocking results are produced again
    staging: tuple[str, ...] = ()  # where attempts so far may have written to, one entry for each sink
    recorded_ms: int = 0
    lease_s: float = 0.0  # no lease covers the attempt for longer; 0: recorded by a version that did not limit them
    taken: dict[StepName, JobId] = {}  # with DEPLOYED: `DeployTask.taken`
    reused_from: str = ""  # the failed job in which the region finished: none of its attempts ran in this job

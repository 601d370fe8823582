"""The messages between a TaskManager, its template and its runners, over Unix sockets.

Frames: four bytes of length, then one msgpack struct, tagged. A TaskManager has one socket to the template (it requests
forks and receives exits) and one to each runner, whose other end is passed to the template with the request to fork. So
a runner is reached without the template, and each side notices the loss of its peer as the end of the stream.

Rejected: pipes and pickles (a runner runs user code: what it sends is data, never code); a listening socket in the run
directory (its path may be longer than the 107 bytes that the kernel allows).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.commands import TaskAnswer, TaskCommand
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import JobGraph
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    TaskRunning,
)
from flintlock.spark.engine.publication.publish_plan import MaterialisedStep, StagedSink
from flintlock.spark.environments import EnvironmentPlaces


class Fork(Struct, frozen=True, kw_only=True, tag="fork"):
    """TaskManager to template: fork a runner; the socket that is passed with this frame is its own."""

    runner: int


class Kill(Struct, frozen=True, kw_only=True, tag="kill"):
    """TaskManager to template: kill this runner and its process group. Harmless for one that has ended."""

    runner: int


class Capture(Struct, frozen=True, kw_only=True, tag="capture"):
    """TaskManager to template: write this runner's output to a file from now on, at most `limit` bytes."""

    runner: int
    path: str
    limit: int
    opened: bool = False  # two descriptors are passed with this frame: the file's, and that of its record of stderr


class TemplateReady(Struct, frozen=True, kw_only=True, tag="template-ready"):
    """Template to TaskManager: everything is imported; forks are fast from now on."""


class Forked(Struct, frozen=True, kw_only=True, tag="forked"):
    """Template to TaskManager: the runner is running."""

    runner: int
    pid: int


class Exited(Struct, frozen=True, kw_only=True, tag="exited"):
    """Template to TaskManager: the runner, and all that it left running, is gone; or could not be forked.

    `code` is the exit code, or the negated number of the signal that killed it.
    """

    runner: int
    code: int = 0
    fork_error: str | None = None


class Prepare(Struct, frozen=True, kw_only=True, tag="prepare"):
    """TaskManager to runner: open this Spark session and set it up, ahead of the task."""

    remote_url: str
    session: SparkSessionKey
    config: dict[str, str] = {}
    warm_up: bool = True  # also have the server build what every session needs: no task waits yet


class Prepared(Struct, frozen=True, kw_only=True, tag="prepared"):
    """Runner to TaskManager: the session is open. `problem` says why it is not."""

    problem: str | None = None


class DedicatedEngine(Struct, frozen=True, kw_only=True):
    """The settings of a Spark driver that serves one task only."""

    run_dir: str  # where its JVM is recorded; where empty: nowhere
    lease_s: float = 50.0  # its executors elsewhere end within it, if this machine is silent
    start_timeout_s: float = 300.0  # of an engine: executors elsewhere may take a part of it to come
    heap_bytes: int = 1 << 30
    conf: dict[str, str] = {}  # spark.* of the cluster; the job's own takes precedence
    archive_dir: str = ""  # of class archives; none are used where empty
    packages_dir: str = ""  # of downloaded packages; where empty: Spark's own default
    python_is_shipped: bool = False  # other applications of YARN do not have it


class Limits(Struct, frozen=True, kw_only=True):
    """What one task may use, and which setting limits it. 0: no limit."""

    memory: int = 0  # bytes, of the runner
    memory_from: str = ""  # the option or the steps that set it, for messages
    cpu: float = 0.0  # cores, of the runner: enforced in a cgroup only
    in_cgroup: bool = False  # the TaskManager has put the runner into one, which enforces the limits
    worker_memory: int = 0  # bytes, of each of Spark's Python workers; enforced by the engine


class Run(Struct, frozen=True, kw_only=True, tag="run"):
    """TaskManager to runner: run this task."""

    task: DeployTask
    log_path: str  # empty if the runner cannot open it
    scratch: str  # an empty directory of the attempt's own; the runner's working directory
    artifacts: dict[str, str] = {}  # the local path of each artifact's content
    limits: Limits = Limits()
    cores: int = 1  # of the TaskManager
    dedicated: DedicatedEngine | None = None  # the task needs a Spark driver of its own
    secrets: dict[str, str] = {}  # the values of those that the graph refers to


class BuildEnvironment(Struct, frozen=True, kw_only=True, tag="build-environment"):
    """TaskManager to runner, in place of a task: build the Python environment of this task's job, or find it."""

    task: DeployTask
    scratch: str
    places: EnvironmentPlaces
    has_executors: bool = False  # which need the environment, too
    artifacts: dict[str, str] = {}
    limits: Limits = Limits()


class EnvironmentBuilt(Struct, frozen=True, kw_only=True, tag="environment-built"):
    """Runner to TaskManager: the environment is there, and is not removed while this runner lives."""

    python: str


class TargetsChecked(Struct, frozen=True, kw_only=True, tag="targets-checked"):
    """TaskManager to runner: which staged sinks have data in their target already. `problem`: that is not known."""

    occupied: tuple[StepName, ...] = ()
    problem: str | None = None


class RequestRepartition(Struct, frozen=True, kw_only=True, tag="request-repartition"):
    """Runner to TaskManager: have the engine give the state in this checkpoint another number of partitions."""

    checkpoint: str
    partitions: int
    config: dict[str, str] = {}  # spark.sql.* of the job


class StateRepartitioned(Struct, frozen=True, kw_only=True, tag="state-repartitioned"):
    """TaskManager to runner: it is done. `problem` says why it is not."""

    problem: str = ""


class Analyze(Struct, frozen=True, kw_only=True, tag="analyze"):
    """TaskManager to runner: resolve the schemas of the whole graph, run nothing."""

    graph: JobGraph
    scratch: str
    log_path: str
    artifacts: dict[str, str] = {}
    limits: Limits = Limits()
    secrets: dict[str, str] = {}


class CommandTask(Struct, frozen=True, kw_only=True, tag="command"):
    """TaskManager to runner: a command to its task."""

    command: TaskCommand
    number: int = 0  # of a query, which is answered under this number; 0: no answer is expected


class CommandAnswered(Struct, frozen=True, kw_only=True, tag="answered"):
    """Runner to TaskManager: the answer to a query. `problem` says why there is none."""

    number: int
    answer: TaskAnswer | None = None
    problem: str = ""


class Worked(Struct, frozen=True, kw_only=True, tag="worked"):
    """Runner to TaskManager, its last message: done; files and metrics are still to be added."""

    finished: TaskFinished
    operations: dict[StepName, str] = {}  # the Spark Connect operation that wrote each output


class ProgramExited(Struct, frozen=True, kw_only=True, tag="program-exited"):
    """Runner to TaskManager, its last message: the program ended by itself, with a code that is not zero."""

    code: int


class DriverNeeded(Struct, frozen=True, kw_only=True, tag="driver-needed"):
    """Runner to TaskManager, its last message: a program of the engine `auto` needs a driver, and has changed nothing.

    `failure` is what it fails with where it is not begun again.
    """

    failure: Failure


class SchemaColumn(Struct, frozen=True, kw_only=True):
    """A column, with its type as Spark names it."""

    name: str
    type: str
    nullable: bool = True


class StepSchema(Struct, frozen=True, kw_only=True):
    """The columns of a step's rows."""

    step: StepName
    columns: tuple[SchemaColumn, ...]


class Analyzed(Struct, frozen=True, kw_only=True, tag="analyzed"):
    """Runner to TaskManager, its last message: every step's schema, or the first failure."""

    schemas: tuple[StepSchema, ...] = ()
    failure: Failure | None = None


ToTemplate: TypeAlias = Fork | Kill | Capture
FromTemplate: TypeAlias = TemplateReady | Forked | Exited
ToRunner: TypeAlias = Prepare | Run | BuildEnvironment | TargetsChecked | StateRepartitioned | Analyze | CommandTask
FromRunner: TypeAlias = (
    Prepared
    | EnvironmentBuilt
    | TaskRunning
    | TaskProgress
    | StagedSink
    | RequestRepartition
    | CommandAnswered
    | MaterialisedStep
    | Worked
    | ProgramExited
    | DriverNeeded
    | TaskFailed
    | Analyzed
)

TO_TEMPLATE: Final[msgspec.msgpack.Decoder[ToTemplate]] = msgspec.msgpack.Decoder(ToTemplate)
FROM_TEMPLATE: Final[msgspec.msgpack.Decoder[FromTemplate]] = msgspec.msgpack.Decoder(FromTemplate)
TO_RUNNER: Final[msgspec.msgpack.Decoder[ToRunner]] = msgspec.msgpack.Decoder(ToRunner)
FROM_RUNNER: Final[msgspec.msgpack.Decoder[FromRunner]] = msgspec.msgpack.Decoder(FromRunner)

"""The messages between a TaskManager and its engine's process, over the process's stdin and stdout.

Frames are those of `framing`: a length and one tagged msgpack struct. The first message says what to start; after that,
commands and replies are sent independently, matched by `call`. The process sends `EngineReady` once it is warm, and
`EngineDied` as its last message if it cannot continue.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from flintlock.host.runner_user import RunnerUser
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.tasks import FileMove, TaskMetrics
from flintlock.spark.engine.java import Java
from flintlock.spark.engine.jvm import DEFAULT_HEAP_BYTES
from flintlock.spark.engine.publication.publish_plan import FileListing

#: How long a session's work may take to end before its release counts as not confirmed.
RELEASE_S: Final = 20.0


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Everything that defines one engine."""

    java: Java
    scratch_dir: str  # the engine's own: temporary files, local directories, warehouse
    log_file: str
    run_dir: str  # where its processes are recorded, by the process that starts it if they run as another user
    cores: int = 2  # of a local engine; elsewhere those that its executors have together
    lease_s: float = 50.0  # executors elsewhere end before a TaskManager that is silent for so long counts as lost
    heap_bytes: int = DEFAULT_HEAP_BYTES
    worker_memory: int = 0  # bytes that each of Spark's Python workers may use, on a local engine; 0: no limit
    worker_output: str = ""  # where Python workers find the pipes of attempts; where empty: they print to the log
    cgroup: str = ""  # the directory of the group that it runs in; where empty: its parent's
    conf: dict[str, str] = {}  # spark.* of the cluster; a spark.master here makes the engine a driver of that cluster
    sync_files: bool = True  # whether local files that Spark wrote are made durable
    work_root: str = ""  # Flintlock may remove directories below it, as those named .flintlock-*
    checkpoint_root: str = ""  # and below this one
    working_dir: str = ""  # relative paths in jobs start here; where empty: they are refused
    environment: dict[str, str] = msgspec.field(default_factory=lambda: dict(os.environ))
    user: RunnerUser | None = None  # whom its processes run as; None: the user of this one
    python: str = sys.executable
    in_container: bool = False  # of YARN, whose nodes then have Flintlock, at the same path
    start_timeout_s: float = 300.0  # an engine that is not ready by then is ended
    archive_dir: str = ""  # of class archives; none are used where empty
    record_archive: bool = False  # write one and end; the engine serves nothing else


class StartEngine(Struct, frozen=True, kw_only=True, tag="start"):
    """The first message: the engine to start."""

    settings: EngineSettings


class ReleaseSessions(Struct, frozen=True, kw_only=True, tag="release-sessions"):
    """End a session and confirm that nothing of it is active; without a session id, every session of that user."""

    call: int
    user_id: str
    session_id: str | None = None
    timeout_s: float = RELEASE_S


class ListFiles(Struct, frozen=True, kw_only=True, tag="list-files"):
    """List the files below a path; `with_sizes` requests the size of each as well, `durable` makes local ones so."""

    call: int
    path: str
    with_sizes: bool = False
    durable: bool = False


class MakeDurable(Struct, frozen=True, kw_only=True, tag="make-durable"):
    """Make all files below a path durable, if they are local and that is not switched off."""

    call: int
    path: str


class FindUnshared(Struct, frozen=True, kw_only=True, tag="find-unshared"):
    """Find a path that executors on other machines do not see as this one does."""

    call: int
    targets: tuple[str, ...] = ()  # where they write
    sources: tuple[str, ...] = ()  # what they read


class Publish(Struct, frozen=True, kw_only=True, tag="publish"):
    """Publish file by file, in the order of `publish_steps`."""

    call: int
    moves: tuple[FileMove, ...] = ()
    removes: tuple[str, ...] = ()
    success_markers: tuple[str, ...] = ()
    staging_dirs: tuple[str, ...] = ()
    left_dirs: tuple[str, ...] = ()


class StopPublication(Struct, frozen=True, kw_only=True, tag="stop-publication"):
    """Stop a publication after the file that it is at: its caller has stopped waiting. There is no reply."""

    publication: int  # the call that began it


class RemoveTree(Struct, frozen=True, kw_only=True, tag="remove-tree"):
    """Remove a directory that is Flintlock's own, with all that is in it."""

    call: int
    path: str


class MeasureSession(Struct, frozen=True, kw_only=True, tag="measure-session"):
    """Count what Spark did for a session, and for each of these operations."""

    call: int
    user_id: str
    session_id: str
    operations: tuple[str, ...] = ()


class RepartitionState(Struct, frozen=True, kw_only=True, tag="repartition-state"):
    """Give the state in a checkpoint directory, which no query uses, another number of partitions."""

    call: int
    checkpoint: str
    partitions: int
    config: dict[str, str] = {}  # spark.sql.* of the job


class ReadUi(Struct, frozen=True, kw_only=True, tag="read-ui"):
    """Read a page, a script or an image of Spark's UI."""

    call: int
    path: str  # with its query
    root: str  # that the links of the page begin with


class Stop(Struct, frozen=True, kw_only=True, tag="stop"):
    """End the process and the JVM."""


class EngineReady(Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is warm. `steps_s`: the seconds after which each step of its start was done."""

    remote_url: str
    spark_version: str
    application_id: str
    jvm_pid: int
    steps_s: dict[str, float]
    has_executors: bool = False  # outside of its own process


class EngineDied(Struct, frozen=True, kw_only=True, tag="died"):
    """The engine cannot continue: the process's last message."""

    cause: str


class Released(Struct, frozen=True, kw_only=True, tag="released"):
    """`confirmed`: nothing of the sessions is active, and nothing can become so. Else `active` names what was."""

    call: int
    confirmed: bool
    active: tuple[str, ...] = ()


class FilesListed(Struct, frozen=True, kw_only=True, tag="files-listed"):
    """The files below a path."""

    call: int
    listing: FileListing


class Unshared(Struct, frozen=True, kw_only=True, tag="unshared"):
    """The path that executors do not share, and what is wrong with it; no path: none was found."""

    call: int
    path: str = ""
    reason: str = ""


class Published(Struct, frozen=True, kw_only=True, tag="published"):
    """`done` of `total` steps are done; the last reply is `complete`."""

    call: int
    done: int
    total: int
    complete: bool = False


class Measured(Struct, frozen=True, kw_only=True, tag="measured"):
    """What Spark counted for each of the named operations, and for the session.

    For a closed session: the sum of the named operations, or, where none is named, of all sessions of its user.
    """

    call: int
    session: TaskMetrics
    operations: dict[str, TaskMetrics] = {}


class UiRead(Struct, frozen=True, kw_only=True, tag="ui-read"):
    """A response of Spark's UI."""

    call: int
    page: EngineUiPage


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """A command without a result has succeeded."""

    call: int


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """A command failed: `refused` is the caller's fault, `failed` that of a file system or of Spark."""

    call: int
    kind: Literal["refused", "failed"]
    reason: str
    permanent: bool = False  # whether the error is of a kind that does not pass by itself


EngineCommand: TypeAlias = (
    ReleaseSessions
    | ListFiles
    | MakeDurable
    | FindUnshared
    | Publish
    | RemoveTree
    | MeasureSession
    | RepartitionState
    | ReadUi
)
ToEngine: TypeAlias = StartEngine | EngineCommand | StopPublication | Stop
EngineReply: TypeAlias = Released | FilesListed | Unshared | Published | Measured | UiRead | Done | Failed
FromEngine: TypeAlias = EngineReady | EngineDied | EngineReply

TO_ENGINE: Final = msgspec.msgpack.Decoder[ToEngine](ToEngine)
FROM_ENGINE: Final = msgspec.msgpack.Decoder[FromEngine](FromEngine)

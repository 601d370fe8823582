"""What a TaskManager and its engine's process say to each other, over the process's stdin and stdout.

Frames are those of `wire`: a length and one tagged msgpack struct. The first message tells the process what to start;
then commands and answers cross freely, matched by `call`. The process says `EngineReady` once it is warm, and
`EngineDied` as its last word if it has to go.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from flintlock.model.tasks import FileMove, TaskMetrics
from flintlock.spark.engine.java import Java
from flintlock.spark.engine.jvm import DEFAULT_HEAP_BYTES
from flintlock.spark.engine.publish_plan import Listing

#: How long a session's work may take to end before its release counts as not confirmed.
RELEASE_S: Final = 20.0


class EngineSettings(Struct, frozen=True, kw_only=True):
    """One engine, wholly described."""

    java: Java
    scratch_dir: str  # the engine's own: temporary files, local directories, warehouse
    log_file: str
    run_dir: str  # processes are recorded here
    cores: int = 2  # of a local engine
    heap_bytes: int = DEFAULT_HEAP_BYTES
    worker_memory: int = 0  # bytes that each of Spark's Python workers may use, on a local engine; 0: no limit
    cgroup: str = ""  # the directory of the group that it runs in; where empty: its parent's
    conf: dict[str, str] = {}  # spark.* of the cluster; a spark.master here makes the engine a driver of that cluster
    work_root: str = ""  # directories below it are Flintlock's own, as those named .flintlock-* are
    working_dir: str = ""  # relative paths in jobs start here; where empty: the scratch directory
    environment: dict[str, str] = msgspec.field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    archive_dir: str = ""  # where class archives are looked for; none are used where empty
    record_archive: bool = False  # make one; the engine is of no other use then


class StartEngine(Struct, frozen=True, kw_only=True, tag="start"):
    """The first message: what to be."""

    settings: EngineSettings


class ReleaseSessions(Struct, frozen=True, kw_only=True, tag="release-sessions"):
    """End a session and confirm that nothing of it is active; without a session id, every session of that user."""

    call: int
    user_id: str
    session_id: str | None = None
    timeout_s: float = RELEASE_S


class ListFiles(Struct, frozen=True, kw_only=True, tag="list-files"):
    """List the files below a path; `weigh` asks for their size as well."""

    call: int
    path: str
    weigh: bool = False


class Publish(Struct, frozen=True, kw_only=True, tag="publish"):
    """Move, remove and mark file by file, in this order; then drop the directories that this left empty."""

    call: int
    moves: tuple[FileMove, ...] = ()
    removes: tuple[str, ...] = ()
    success_markers: tuple[str, ...] = ()
    staging_dirs: tuple[str, ...] = ()
    left_dirs: tuple[str, ...] = ()


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


class AskStats(Struct, frozen=True, kw_only=True, tag="ask-stats"):
    """Say how the engine is."""

    call: int


class Stop(Struct, frozen=True, kw_only=True, tag="stop"):
    """End, with the JVM."""


class EngineReady(Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is warm. `steps_s` says after how many seconds each step of its start was done."""

    remote_url: str
    spark_version: str
    application_id: str
    jvm_pid: int
    steps_s: dict[str, float]


class EngineDied(Struct, frozen=True, kw_only=True, tag="died"):
    """The process's last word."""

    cause: str


class Released(Struct, frozen=True, kw_only=True, tag="released"):
    """`confirmed`: nothing of the sessions is active, and nothing can become so. Else `active` says what was."""

    call: int
    confirmed: bool
    active: tuple[str, ...] = ()


class FilesListed(Struct, frozen=True, kw_only=True, tag="files-listed"):
    """What is below a path."""

    call: int
    listing: Listing


class Published(Struct, frozen=True, kw_only=True, tag="published"):
    """`done` of `total` files are where they belong; the answer is the one that is complete."""

    call: int
    done: int
    total: int
    complete: bool = False


class Measured(Struct, frozen=True, kw_only=True, tag="measured"):
    """What Spark counted for each of the named operations, and for the session.

    Of one that is closed: for the named ones, and where none is named, for all sessions of its user.
    """

    call: int
    session: TaskMetrics
    operations: dict[str, TaskMetrics] = {}


class EngineStats(Struct, frozen=True, kw_only=True, tag="stats"):
    """How the engine is."""

    call: int
    heap_used_bytes: int
    heap_max_bytes: int
    executors: int
    active_tasks: int
    sessions: int


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """It is done."""

    call: int


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """It could not be done: `refused` is the caller's fault, `failed` that of a file system or of Spark."""

    call: int
    kind: Literal["refused", "failed"]
    reason: str


Command: TypeAlias = ReleaseSessions | ListFiles | Publish | RemoveTree | MeasureSession | AskStats
ToEngine: TypeAlias = StartEngine | Command | Stop
Answer: TypeAlias = Released | FilesListed | Published | Measured | EngineStats | Done | Failed
FromEngine: TypeAlias = EngineReady | EngineDied | Answer

TO_ENGINE: Final = msgspec.msgpack.Decoder[ToEngine](ToEngine)
FROM_ENGINE: Final = msgspec.msgpack.Decoder[FromEngine](FromEngine)

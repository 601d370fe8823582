"""What a TaskManager requires of its Spark engine and of its runners.

The package `spark` implements these with real processes; the simulation with fakes on virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from flintlock.model.commands import TaskAnswer, TaskCommand
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.tasks import (
    DeployTask,
    FilesPublished,
    SinkFiles,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    TaskRunning,
)


class SparkSessionKey(Struct, frozen=True, kw_only=True):
    """Names one Spark Connect session of an engine."""

    user_id: str
    session_id: str


class Engine(Protocol):
    """One Spark application. `died` returns when it is dead; the TaskManager then starts another."""

    @property
    def remote_url(self) -> str:
        """Where its Connect server listens (`sc://host:port`)."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes on this machine, to be observed; none where there are none."""
        ...

    async def died(self) -> str:
        """Return the cause once the engine is dead."""
        ...

    async def release_session(self, session: SparkSessionKey) -> bool:
        """End a session and its work; True once nothing of it is active any more, False if that is not certain."""
        ...

    def publish(self, sinks: tuple[SinkFiles, ...]) -> AsyncIterator[FilesPublished]:
        """Move, remove and mark file by file; the last item is complete. Raises JobFailed with the file's name."""
        ...

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Remove directories that are Flintlock's own (refuses others). Idempotent."""
        ...

    async def read_ui(self, path: str, root: str) -> EngineUiPage:
        """Return a page of Spark's UI, its links below `root`. Raises Refused if it has none, Unavailable."""
        ...


class TaskRunner(Protocol):
    """One process for one task: forked, used once, ended."""

    def run(
        self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]
    ) -> AsyncIterator[TaskRunning | TaskProgress | TaskFinished | TaskFailed]:
        """Run the task; `artifacts`: the local path of each of the graph's artifacts, by name.

        Ends with finished or failed; a runner that dies yields failed (RUNNER_LOST) with its cause.
        """
        ...

    @property
    def session(self) -> SparkSessionKey | None:
        """The Spark session that it uses, once it has one."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process, while it is running."""
        ...

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Pass a command to the task and return its answer.

        CancelTask: Spark's work is interrupted, user code gets an exception; answered once it is sent. Idempotent.
        TaskQuery: answered by the process. Raises Unavailable if the runner ends before it answers, does not answer in
        time, or has too many queries to answer.
        """
        ...

    async def kill(self) -> None:
        """Kill it and return once the process is gone. Idempotent."""
        ...


class RunnerPool(Protocol):
    """Provides runners, warm ones first."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes on which all runners depend."""
        ...

    async def take(self, task: DeployTask) -> TaskRunner:
        """Return a runner for this task. Raises Unavailable if none can be started."""
        ...


class ProcessTable(Protocol):
    """The processes on a TaskManager's machine. Nothing here raises or waits."""

    def is_stopped(self, pid: int) -> bool:
        """Return whether a process is stopped (SIGSTOP, a terminal); False for one that is gone."""
        ...

    def resident_bytes(self, pid: int) -> int:
        """Return the resident memory of a process; 0 for one that is gone."""
        ...

    def kill(self, pid: int) -> None:
        """Send SIGKILL; harmless for one that is gone."""
        ...


class EngineLauncher(Protocol):
    """Opens a warm engine and the runners that belong to it; the end of the scope ends both in any case."""

    def open(self) -> AbstractAsyncContextManager[tuple[Engine, RunnerPool]]:
        """Start an engine. Raises Unavailable with the cause if it cannot be started, Invalid for its settings."""
        ...

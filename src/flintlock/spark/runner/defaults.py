"""What all runners of a pool share: the engine's services, the control of their processes, and their limits."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from flintlock.config.options import RUNNER_MEMORY
from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.cgroups import Cgroups, Group
from flintlock.host.logs.stderr_spans import spans_path
from flintlock.host.runner_user import RunnerUser
from flintlock.model import log_events
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.tasks import DeployTask, TaskMetrics
from flintlock.security.job_secrets import SecretProvider
from flintlock.spark.engine.publication.publish_plan import FileListing, UnsharedPath
from flintlock.spark.environments import EnvironmentPlaces
from flintlock.spark.runner_messages import DedicatedEngine, Limits

log = structlog.get_logger(__name__)


class OperationMetrics(Protocol):
    """What Spark counted for a session, and for each of the requested operations."""

    @property
    def session(self) -> TaskMetrics:
        """The whole session."""
        ...

    @property
    def operations(self) -> dict[str, TaskMetrics]:
        """By Spark Connect's id of the operation."""
        ...


class FileLister(Protocol):
    """Lists files through an engine's file systems."""

    async def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        """Return every file below a path, and the size of each if requested. May raise a FlintlockError.

        `durable`: local files are durable when this returns, unless the cluster does not require it.
        """
        ...

    async def make_durable(self, path: str) -> None:
        """Return when all local files below a path are durable, unless the cluster does not require it.

        May raise a FlintlockError.
        """
        ...

    async def find_unshared(self, targets: tuple[str, ...], sources: tuple[str, ...]) -> UnsharedPath | None:
        """Return a path that executors on other machines do not see as this one does. May raise a FlintlockError."""
        ...


class EngineServices(FileLister, Protocol):
    """What runners need of the shared engine; `SparkEngine` has it. Each call may raise a FlintlockError."""

    @property
    def remote_url(self) -> str:
        """Where its Connect server listens."""
        ...

    async def repartition_state(self, checkpoint: str, partitions: int, config: dict[str, str]) -> None:
        """Give the state in a checkpoint directory, which no query uses, another number of partitions."""
        ...

    async def measure(self, session: SparkSessionKey, operations: tuple[str, ...]) -> OperationMetrics:
        """Return what Spark counted."""
        ...


class RunnerDefaults(Struct, frozen=True, kw_only=True):
    """The settings that all runners of a pool share."""

    scratch_dir: str
    cores: int = 1  # of the TaskManager: its slots
    dedicated: DedicatedEngine | None = None
    memory: int = 0  # bytes that a runner may use unless its task has a limit of its own; 0: no limit
    worker_memory: int = 0  # bytes that each of Spark's Python workers may use, for messages
    output_limit: int = 64 << 20  # bytes of captured output that are written to the log
    cgroups: Cgroups | None = None  # where groups for runners can be made
    secrets: tuple[SecretProvider, ...] = ()  # where the secrets of jobs are read
    environments: EnvironmentPlaces = EnvironmentPlaces(own="")  # of the Python environments of jobs
    user: RunnerUser | None = None  # whom runners run as; None: the user of this process

    def master_of(self, graph: JobGraph) -> str:
        """Return the master of the Spark driver that a job uses, or may come to use."""
        of_cluster = self.dedicated.conf if self.dedicated is not None else {}
        own = graph.config if graph.engine is not EngineKind.SHARED else {}
        return {**of_cluster, **own}.get("spark.master", "local")

    def scratch(self, number: int) -> Path:
        """Return the directory of a runner's task. That of a user's own cannot be guessed by the user's other tasks."""
        name = f"runner-{number}" if self.user is None else f"runner-{number}-{secrets.token_hex(16)}"
        return Path(self.scratch_dir) / name

    def make_scratch(self, path: Path) -> None:
        """Make the directory of a runner's task. Raises OSError."""
        if self.user is None:
            path.mkdir(parents=True)
        else:
            self.user.make_directory(path)

    def open_log(self, path: str) -> tuple[int, ...]:
        """Open the log of an attempt whose template cannot do that itself, and its record of what is standard error.

        Empty if the template can. Raises OSError.
        """
        if self.user is None:
            return ()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(path, flags, 0o600)
        try:
            return log, os.open(spans_path(path), flags, 0o600)
        except OSError:
            os.close(log)
            raise

    def limits(self, task: DeployTask | None = None) -> Limits:
        """Return the limits of a task's runner."""
        requested = task.resources if task is not None else None
        if requested is not None and requested.memory > 0:
            memory, source = requested.memory, "the `memory` of its steps"
        else:
            memory, source = self.memory, RUNNER_MEMORY.key
        return Limits(
            memory=memory,
            memory_from=source,
            cpu=requested.cpu if requested is not None else 0.0,
            worker_memory=self.worker_memory,
        )

    def group(self, number: int, limits: Limits, *, dedicated: bool) -> Group | None:
        """Make a control group for a runner with limits; None without limits, or without control groups."""
        if self.cgroups is None or (limits.memory <= 0 and limits.cpu <= 0):
            return None
        # The heap of a dedicated driver is a limit already; a JVM takes about a quarter more than that.
        heap = self.dedicated.heap_bytes * 5 // 4 if dedicated and self.dedicated is not None else 0
        memory = limits.memory + heap if limits.memory > 0 else 0
        try:
            return self.cgroups.group(f"runner-{number}", memory=memory, cpu=limits.cpu)
        except OSError as error:
            log.warning(log_events.CGROUP_NOT_MADE, runner=number, reason=str(error))
            return None


class RunnerControl(Protocol):
    """What a runner's handle requests of the template process, through the pool."""

    def kill(self, number: int) -> None:
        """Kill a runner; harmless for one that has ended."""
        ...

    def capture(self, number: int, path: str, limit: int, opened: tuple[int, ...] = ()) -> None:
        """Have a runner's output written to a file, at most `limit` bytes.

        `opened`: descriptors of it and of its record of what is standard error, which stay open here.
        """
        ...

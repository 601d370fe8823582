"""What the Dispatcher depends on, for the process and for each term. Entrypoints build the implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.gateways.jobmaster import JobMasterFactory
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model.errors import Refused
from flintlock.model.ids import BlobKey, FencingToken, JobId, TriggerId
from flintlock.model.jobgraph import JobGraph, Versions


class BlobReferences(Protocol):
    """Which jobs need which blobs: a blob is retained while at least one job needs it."""

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Retain these blobs for the job. Idempotent. Raises Refused if one of them is not stored."""
        ...

    async def release(self, job_id: JobId) -> None:
        """Release all blobs of the job, which may be stored further. Idempotent. Called once its graph is removed."""
        ...

    async def find_damaged(self, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        """Return which of these blobs are missing or damaged, and why.

        Raises Unavailable if that cannot be determined now.
        """
        ...

    async def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """Retain what these jobs need and remove what only other jobs needed."""
        ...

    async def expire_unreferenced(self, older_than_s: float, ended_s: float) -> tuple[BlobKey, ...]:
        """Remove uploads older than that which no job references; return their keys.

        Those of jobs that have ended are removed after `ended_s`, or earlier where there are too many.
        """
        ...


class Savepoints(Protocol):
    """Makes savepoints of streaming jobs, and restores jobs. Each call may be repeated, also by another JobManager."""

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:
        """Save the last committed batch of each query of a job; return where the savepoint is.

        The savepoint is complete or not there. Repeated with the same trigger id it is the same one. `directory`: ""
        for the configured one. Raises Refused if it cannot be made there, Unavailable if the files cannot be read or
        written now.
        """
        ...

    async def check_disposal(self, path: str) -> str:
        """Return what identifies the savepoint that can be removed there, or what is left of it.

        Raises Refused if there is none, Unavailable if that cannot be found out now.
        """
        ...

    async def dispose(self, path: str, identity: str) -> None:
        """Remove a savepoint, or what is left of it; another one that has got its place is left alone.

        `identity`: what `check_disposal` has returned; "" for whichever is there. Raises Unavailable if it cannot be
        removed, Refused.
        """
        ...

    async def prepare(self, directory: str) -> None:
        """Check that savepoints can be made in a directory ("": the configured one). Raises Refused, Unavailable."""
        ...

    async def check_restore(self, job: JobGraph) -> None:
        """Return if a job can be restored from the savepoint that its configuration names, or names none.

        Raises Refused with the reasons: the savepoint is damaged, does not match the job, or its sinks are ahead of it.
        """
        ...

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:
        """Return where the savepoint of a job with this trigger id is, or will be, in the configured directory."""
        ...

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:
        """Return if a job can go on from where another one is that runs. Raises Refused with the reasons."""
        ...

    async def way_back(self, job: JobGraph, former: JobGraph) -> str | None:
        """Return the savepoint from which the graph runs again whose place a job has taken that has failed.

        It is the one that the job was to begin from, or has the batches, too, that the job has begun. None if it is not
        there, or the job has gone on from it. Raises Unavailable while that cannot be found out, or it cannot be made.
        """
        ...

    async def has_gone_on(self, job: JobGraph) -> bool:
        """Return whether a query of a job has committed a batch after its savepoint, or has written one to a file sink.

        No query of it runs. Raises Unavailable while that cannot be found out.
        """
        ...

    async def is_restored(self, job: JobGraph) -> bool:
        """Return whether a job may start: it names no savepoint, or all of it is restored.

        Raises Unavailable while the files cannot be read.
        """
        ...

    async def restore(self, job: JobGraph) -> None:
        """Restore a job from its savepoint, before any of its queries starts. Raises Refused, Unavailable."""
        ...

    async def abandon_restore(self, job: JobGraph) -> None:
        """Remove what has been restored of a job that is given up before a query of it has started."""
        ...


class NoSavepoints:
    """Where there is no place for savepoints: none is made, and every job starts from the beginning."""

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:  # noqa: ARG002 - makes none
        """Raise Refused."""
        raise Refused("this cluster makes no savepoints")

    async def check_disposal(self, path: str) -> str:
        """Raise Refused."""
        raise Refused(f"this cluster makes no savepoints: {path} is none of its own")

    async def dispose(self, path: str, identity: str) -> None:  # noqa: ARG002 - makes none
        """Raise Refused."""
        raise Refused(f"this cluster makes no savepoints: {path} is none of its own")

    async def prepare(self, directory: str) -> None:  # noqa: ARG002 - makes none
        """Raise Refused."""
        raise Refused("this cluster makes no savepoints")

    async def check_restore(self, job: JobGraph) -> None:
        """Accept every job."""

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:  # noqa: ARG002 - makes none
        """Raise Refused."""
        raise Refused("this cluster makes no savepoints")

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:  # noqa: ARG002 - makes none
        """Raise Refused."""
        raise Refused("this cluster makes no savepoints")

    async def way_back(self, job: JobGraph, former: JobGraph) -> str | None:  # noqa: ARG002 - makes none
        """Return that there is no way back."""
        return None

    async def has_gone_on(self, job: JobGraph) -> bool:  # noqa: ARG002 - makes none
        """Return False."""
        return False

    async def is_restored(self, job: JobGraph) -> bool:  # noqa: ARG002 - every job
        """Return that nothing is to be restored."""
        return True

    async def restore(self, job: JobGraph) -> None:
        """Restore nothing."""

    async def abandon_restore(self, job: JobGraph) -> None:
        """Remove nothing."""


#: Returns how many leaders were lost while they worked on each of these jobs, and forgets all other jobs.
LostLeaders: TypeAlias = Callable[[Collection[JobId]], Awaitable[Mapping[JobId, int]]]


#: Records that a leader is lost because of a job.
CountLostLeader: TypeAlias = Callable[[JobId], Awaitable[None]]


async def count_no_leader(job_id: JobId) -> None:
    """Record nothing."""


async def no_lost_leaders(job_ids: Collection[JobId]) -> Mapping[JobId, int]:  # noqa: ARG001 - nothing is recorded
    """Return that no leader was lost."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherServices:
    """What lasts as long as the JobManager process."""

    blobs: BlobReferences
    configuration: Configuration
    versions: Versions  # of the cluster: pickled functions must be compatible with them
    clock_ms: Callable[[], int]  # the wall clock
    boot_time_s: Callable[[], float]  # only grows, also while the machine sleeps
    metrics: DispatcherMetrics | None = None
    lost_leaders: LostLeaders = no_lost_leaders
    count_lost_leader: CountLostLeader = count_no_leader
    savepoints: Savepoints = field(default_factory=NoSavepoints)
    unshared_checkpoints: str = ""  # the directory of checkpoints, if it is one of this machine that was not chosen


async def no_task_managers() -> None:
    """Stop nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermServices:
    """What lasts as long as one term: all of it carries that term's fencing token."""

    stores: Stores
    job_masters: JobMasterFactory
    resource_manager: ResourceManagerGateway
    admit: Callable[[], None] = lambda: None  # lets TaskManagers in, once every recovered job has its JobMaster
    stop_task_managers: Callable[[], Awaitable[None]] = no_task_managers  # for a shut-down of the cluster
    gate: LeaderGate = field(default_factory=LeaderGate)  # whether the leader may act now


#: Opens the services of a term; leaving the scope closes them.
TermOpener: TypeAlias = Callable[[FencingToken, Stores], AbstractAsyncContextManager[TermServices]]

"""What the REST endpoint answers, as far as the client reads it. Unknown fields are let pass: servers may be newer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure


class _Answer(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Base: Flink writes its field names with hyphens."""


class JobLine(_Answer, frozen=True, kw_only=True):
    """One line of a listing."""

    jid: str
    name: str
    state: JobStatus
    start_time: int = 0
    end_time: int = -1
    duration: int = 0
    tasks: dict[str, int] = {}

    def same_as(self, other: JobLine | None) -> bool:
        """Tell whether nothing has happened between the two but the passing of time."""
        return other is not None and (self.state, self.tasks) == (other.state, other.tasks)


class JobLines(_Answer, frozen=True, kw_only=True):
    """`GET /jobs/overview`."""

    jobs: tuple[JobLine, ...] = ()


class Metrics(_Answer, frozen=True, kw_only=True):
    """What Spark counted for one attempt."""

    read_records: int = 0
    read_bytes: int = 0
    write_records: int = 0
    write_bytes: int = 0
    stages_done: int = 0
    stages_total: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


class OutputLine(_Answer, frozen=True, kw_only=True):
    """Rows and bytes of one output step."""

    step: str
    rows: int = 0
    bytes: int = 0


class AttemptLine(_Answer, frozen=True, kw_only=True):
    """One attempt at one region."""

    attempt: int
    state: ExecutionState
    taskmanager_id: str | None = None
    slots: int = 0
    timestamps: dict[str, int] = {}
    activity: str = ""
    metrics: Metrics = Metrics()
    outputs: tuple[OutputLine, ...] = ()
    failure: dict[str, Any] | None = None


class RegionLine(_Answer, frozen=True, kw_only=True):
    """One region and all attempts at it, the latest last."""

    region: int
    steps: tuple[str, ...] = ()
    parallelism: int | None = None
    reads: tuple[str, ...] = ()
    materialises: tuple[str, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()

    @property
    def latest(self) -> AttemptLine | None:
        """The attempt that counts now."""
        return self.attempts[-1] if self.attempts else None


class Publishing(_Answer, frozen=True, kw_only=True):
    """How many files are published."""

    done: int
    total: int


class FailureLine(_Answer, frozen=True, kw_only=True):
    """One of a job's failures in a line."""

    timestamp: int
    region: int | None = None  # None: the job as a whole
    attempt: int = 0
    taskmanager_id: str | None = None
    kind: str = ""
    headline: str = ""
    labels: dict[str, str] = {}
    concurrent: bool = False  # it came together with the one before it


class JobAttempts(_Answer, frozen=True, kw_only=True):
    """`GET /jobs/:id/attempts`: everything that a display of a job needs."""

    jobid: str
    name: str
    status: JobStatus
    engine: str = "shared"
    regions: tuple[RegionLine, ...] = ()
    publishing: Publishing | None = None
    failure: dict[str, Any] | None = None
    failures: tuple[FailureLine, ...] = ()  # the last ones, the oldest of them first


class WaitingLine(_Answer, frozen=True, kw_only=True):
    """A place in the queue for slots."""

    jobid: str
    slots: int | None = None
    since: int = 0
    priority: int = 0


class Resources(_Answer, frozen=True, kw_only=True):
    """`GET /resources`: who waits for slots, in order, and how many TaskManagers are on their way."""

    waiting: tuple[WaitingLine, ...] = ()
    starting: int = 0


class Bounds(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many slots a step may have."""

    lower_bound: int = 1
    upper_bound: int


class StepRequirements(Struct, frozen=True, kw_only=True):
    """What one step may use, in `GET` and `PUT /jobs/:id/resource-requirements`."""

    parallelism: Bounds


class Overview(_Answer, frozen=True, kw_only=True):
    """`GET /overview`."""

    taskmanagers: int = 0
    slots_total: int = 0
    slots_available: int = 0
    jobs_running: int = 0
    jobs_finished: int = 0
    jobs_cancelled: int = 0
    jobs_failed: int = 0


class LogPart(_Answer, frozen=True, kw_only=True):
    """A piece of an attempt's captured output."""

    region: int
    attempt: int
    taskmanager_id: str | None = None
    offset: int = 0
    next_offset: int | None = None  # where the next piece begins; an older server does not say
    size: int = 0
    complete: bool = False
    text: str = ""


class LogParts(_Answer, frozen=True, kw_only=True):
    """`GET /jobs/:id/logs`."""

    logs: tuple[LogPart, ...] = ()


class Column(_Answer, frozen=True, kw_only=True):
    """A column of a result, with Spark's name of its type."""

    name: str
    type: str = ""


class ResultTable(_Answer, frozen=True, kw_only=True):
    """`GET /jobs/:id/results/:name` as JSON."""

    name: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    truncated: bool = False


class ResultNames(_Answer, frozen=True, kw_only=True):
    """`GET /jobs/:id/results`."""

    results: tuple[str, ...] = ()


def read_failure(answer: Mapping[str, Any] | None) -> Failure | None:
    """Return a failure as the model knows it."""
    if answer is None:
        return None
    return msgspec.convert({key.replace("-", "_"): value for key, value in answer.items()}, Failure, strict=False)

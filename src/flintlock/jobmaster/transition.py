"""One step in progress: the job as it changes, and the effects so far.

`step` makes a Transition, passes it to the part of the core that handles the event, and takes the new state and the
effects out of it; a Transition does not outlive its step.

It also maintains the exception history: failures, oldest first. An entry is a root cause; failures that happened while
the job was already restarting or failing are its concurrent failures. `web.exception-history-size` entries remain, and
as many concurrent failures in each: a quarter of them are the job's first failures, the others its latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import structs

from flintlock.jobmaster.events import DiscardStaging, Enrich, JobEffect, Moved, StepContext
from flintlock.jobmaster.execution_graph import Execution, ExecutionGraph, RegionState
from flintlock.model.errors import InvariantBroken
from flintlock.model.files.staging import staging_directories
from flintlock.model.ids import AttemptId
from flintlock.model.jobs import ExceptionEntry
from flintlock.model.states import EXECUTION_MOVES, JOB_MOVES, ExecutionState, JobStatus, checked_move
from flintlock.model.tasks import Failure

_RECENT_MOVES: Final = 32
_State = TypeVar("_State", JobStatus, ExecutionState)


class Transition:
    """The working copy of an ExecutionGraph. Every change of a state is checked against `model.states` and logged."""

    def __init__(self, job: ExecutionGraph, context: StepContext) -> None:
        self.job = job
        self.context: Final = context
        self.effects: list[JobEffect] = []
        self.history_changed = False  # an attempt or a failure was added to what has happened

    def emit(self, effect: JobEffect) -> None:
        """Add an effect."""
        self.effects.append(effect)

    def update(self, region: RegionState) -> RegionState:
        """Replace a region."""
        index = region.id
        regions = (*self.job.regions[:index], region, *self.job.regions[index + 1 :])
        self.job = structs.replace(self.job, regions=regions)
        return region

    def move(self, region: RegionState, state: ExecutionState, **changes: Any) -> RegionState:
        """Move the region's latest attempt to another state, with `changes` to that attempt."""
        execution = region.current
        self._check(EXECUTION_MOVES, f"{region.id}#{execution.attempt}", execution.state, state)
        timestamps = {**execution.timestamps, state: self.context.now_ms}
        moved = structs.replace(execution, state=state, timestamps=timestamps, **changes)
        return self.update(region.with_current(moved))

    def next_attempt(self, region: RegionState) -> RegionState:
        """Give the region a new attempt, numbered one higher than the last."""
        execution = Execution(
            attempt=region.current.attempt + 1, timestamps={ExecutionState.CREATED: self.context.now_ms}
        )
        self._discard_staging(region)
        self.history_changed = True
        return self.update(structs.replace(region.with_next(execution), phase=None, restart_pending=False, asked=0))

    def _discard_staging(self, region: RegionState) -> None:
        """Have what the region's latest attempt staged removed: that attempt has ended, and will not be accepted."""
        if region.finished or region.current.task_manager is None:
            return  # what it staged is published, or it was never sent
        directories = staging_directories(self.job.plan.graph, region.plan, self.job.attempt_id(region))
        if directories:
            self.emit(DiscardStaging(directories))

    def move_job(self, status: JobStatus) -> None:
        """Move the job itself to another state."""
        self._check(JOB_MOVES, "job", self.job.status, status)
        timestamps = {**self.job.timestamps, status: self.context.now_ms}
        self.job = structs.replace(self.job, status=status, timestamps=timestamps)

    def note_failure(self, region: RegionState | None, failure: Failure) -> None:
        """Enter a failure of a region (None: of the job itself) into the history and pass it to the enrichers.

        A failure while the job is already restarting or failing belongs to the failure that caused that.
        """
        entry = ExceptionEntry(failure=failure, timestamp_ms=self.context.now_ms)
        if region is not None:
            entry = structs.replace(
                entry,
                region=region.id,
                attempt=region.current.attempt,
                task_name=", ".join(region.plan.steps),
                task_manager=region.current.task_manager,
                endpoint=region.current.address or None,
            )
        self.history_changed = True
        concurrent = self.job.status.handles_a_failure
        self.job = with_failure(self.job, entry, concurrent=concurrent)
        self.emit(Enrich(None if region is None else self.job.attempt_id(region), failure))

    def _check(self, moves: Mapping[_State, frozenset[_State]], subject: str, old: _State, new: _State) -> None:
        try:
            checked_move(moves, old, new)
        except InvariantBroken as error:
            recent_moves = "; ".join(self.job.recent_moves)
            raise InvariantBroken(
                f"job {self.job.plan.job_id}, {subject}: {error.public}. Before that: {recent_moves}"
            ) from error
        line = f"{self.context.now_ms} {subject} {old} -> {new}"
        self.job = structs.replace(self.job, recent_moves=(*self.job.recent_moves[1 - _RECENT_MOVES :], line))
        self.effects.append(Moved(subject, old, new))


def with_failure(job: ExecutionGraph, entry: ExceptionEntry, *, concurrent: bool) -> ExecutionGraph:
    """Return the job with one more failure in its history. Of too many, the one after the first ones is dropped."""
    size, entries = job.plan.history_size, job.exceptions
    if concurrent and entries:
        root = entries[-1]
        root = structs.replace(root, concurrent=(*root.concurrent, entry)[:size])
        return structs.replace(job, exceptions=(*entries[:-1], root))
    entries, omitted = (*entries, entry), job.exceptions_omitted
    if len(entries) > size:
        first = size // 4
        entries = (*entries[:first], *entries[first - size :])
        omitted += 1
    return structs.replace(job, exceptions=entries, exceptions_omitted=omitted)


def with_labels(job: ExecutionGraph, attempt: AttemptId | None, labels: Mapping[str, str]) -> ExecutionGraph:
    """Return the job with labels on the failure of that attempt (None: of the job itself), if it is still there."""
    return structs.replace(job, exceptions=tuple(_labelled(entry, attempt, labels) for entry in job.exceptions))


def _labelled(entry: ExceptionEntry, attempt: AttemptId | None, labels: Mapping[str, str]) -> ExceptionEntry:
    concurrent = tuple(_labelled(other, attempt, labels) for other in entry.concurrent)
    own = (
        entry.region is None if attempt is None else (entry.region, entry.attempt) == (attempt.region, attempt.attempt)
    )
    return structs.replace(entry, concurrent=concurrent, labels={**entry.labels, **labels} if own else entry.labels)

"""One step in progress: the job as it becomes, and what is to be done about it.

`step` makes a Turn, lets the part of the core that an event concerns work on it, and takes the new state and the
effects out of it; nothing of a Turn outlives its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import structs

from flintlock.jobmaster import history
from flintlock.jobmaster.events import Enrich, JobEffect, Moment, Moved
from flintlock.jobmaster.execution_graph import Execution, ExecutionGraph, RegionState
from flintlock.model.errors import InvariantBroken
from flintlock.model.jobs import ExceptionEntry
from flintlock.model.states import EXECUTION_MOVES, JOB_MOVES, ExecutionState, JobStatus, checked_move
from flintlock.model.tasks import Failure

_STORY_LENGTH: Final = 32
_State = TypeVar("_State", JobStatus, ExecutionState)


class Turn:
    """The working copy of a ExecutionGraph. Every change of a state is checked against the law and told."""

    def __init__(self, job: ExecutionGraph, moment: Moment) -> None:
        self.job = job
        self.moment: Final = moment
        self.effects: list[JobEffect] = []

    def do(self, effect: JobEffect) -> None:
        """Want something done."""
        self.effects.append(effect)

    def put(self, life: RegionState) -> RegionState:
        """Replace a region."""
        index = life.region.id
        regions = (*self.job.regions[:index], life, *self.job.regions[index + 1 :])
        self.job = structs.replace(self.job, regions=regions)
        return life

    def move(self, life: RegionState, state: ExecutionState, **changes: Any) -> RegionState:
        """Put the region with its latest attempt in another state, and with `changes` to that attempt."""
        execution = life.current
        self._check(EXECUTION_MOVES, f"{life.region.id}#{execution.attempt}", execution.state, state)
        timestamps = {**execution.timestamps, state: self.moment.now_ms}
        moved = structs.replace(execution, state=state, timestamps=timestamps, **changes)
        return self.put(life.with_current(moved))

    def next_attempt(self, life: RegionState) -> RegionState:
        """Put the region with a new attempt, numbered one higher than the last."""
        execution = Execution(attempt=life.current.attempt + 1, timestamps={ExecutionState.CREATED: self.moment.now_ms})
        return self.put(
            structs.replace(life, executions=(*life.executions, execution), phase=None, restart_pending=False, asked=0)
        )

    def move_job(self, status: JobStatus) -> None:
        """Put the job itself in another state."""
        self._check(JOB_MOVES, "job", self.job.status, status)
        timestamps = {**self.job.timestamps, status: self.moment.now_ms}
        self.job = structs.replace(self.job, status=status, timestamps=timestamps)

    def note_failure(self, life: RegionState | None, failure: Failure) -> None:
        """Enter a failure of a region (None: of the job itself) into the history; enrichers will look at it.

        What fails while the job is already about to restart or to fail belongs to the failure that made it so.
        """
        entry = ExceptionEntry(failure=failure, timestamp_ms=self.moment.now_ms)
        if life is not None:
            entry = structs.replace(
                entry,
                region=life.region.id,
                attempt=life.current.attempt,
                task_name=", ".join(life.region.steps),
                task_manager=life.current.task_manager,
                endpoint=life.current.address or None,
            )
        concurrent = self.job.status.handles_a_failure
        self.job = history.with_failure(self.job, entry, concurrent=concurrent)
        self.do(Enrich(None if life is None else self.job.attempt_id(life), failure))

    def _check(self, moves: Mapping[_State, frozenset[_State]], subject: str, old: _State, new: _State) -> None:
        try:
            checked_move(moves, old, new)
        except InvariantBroken as error:
            story = "; ".join(self.job.story)
            raise InvariantBroken(
                f"job {self.job.plan.job_id}, {subject}: {error.public}. Before that: {story}"
            ) from error
        line = f"{self.moment.now_ms} {subject} {old} -> {new}"
        self.job = structs.replace(self.job, story=(*self.job.story[1 - _STORY_LENGTH :], line))
        self.effects.append(Moved(subject, old, new))

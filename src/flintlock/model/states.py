"""Job and execution states, spelled as Flink spells them (tasks CANCELING, jobs CANCELLING), and the legal moves.

The tables define every legal move; `docs/states.md` is drawn from them. A set of states that several modules need is a
property here, so that a new state is classified in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, TypeVar

from flintlock.model.errors import InvariantBroken


class JobStatus(StrEnum):
    """The state of a job."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def globally_terminal(self) -> bool:
        """Whether the job has ended for the whole cluster and for good."""
        return self in _GLOBALLY_TERMINAL

    @property
    def terminal(self) -> bool:
        """Whether this JobMaster is done with the job (SUSPENDED: another leader continues it)."""
        return self in _GLOBALLY_TERMINAL or self is JobStatus.SUSPENDED

    @property
    def not_started(self) -> bool:
        """Whether the job was accepted but does not run yet."""
        return self in (JobStatus.INITIALIZING, JobStatus.CREATED)

    @property
    def schedules_regions(self) -> bool:
        """Whether regions of the job that do not run are going to: they wait for inputs, for slots or for a restart."""
        return self.not_started or self in (JobStatus.RUNNING, JobStatus.RESTARTING)

    @property
    def handles_a_failure(self) -> bool:
        """Whether the job is recovering or ending because of a failure: further failures belong to the same event."""
        return self in (JobStatus.RESTARTING, JobStatus.FAILING)


class ExecutionState(StrEnum):
    """The state of one attempt at one region.

    INITIALIZING is Flink's state of a task that restores its state. No attempt of Flintlock is ever in it; it exists
    because Flink's REST API reports a count for every state.
    """

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    RECONCILING = "RECONCILING"

    @property
    def terminal(self) -> bool:
        """Whether the attempt has ended."""
        return self in (ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED)

    @property
    def waiting(self) -> bool:
        """Whether the attempt has not been sent to a TaskManager."""
        return self in (ExecutionState.CREATED, ExecutionState.SCHEDULED)

    @property
    def on_a_task_manager(self) -> bool:
        """Whether the attempt was sent to a TaskManager, has not ended and has not been asked to end."""
        return self in (ExecutionState.DEPLOYING, ExecutionState.RUNNING, ExecutionState.RECONCILING)

    @property
    def accepted_by_task_manager(self) -> bool:
        """Whether a TaskManager has confirmed the attempt and has not reported its end."""
        return self in (ExecutionState.RUNNING, ExecutionState.CANCELING)

    @property
    def may_have_output(self) -> bool:
        """Whether user code of the attempt may have written to its log."""
        return not self.waiting and self is not ExecutionState.DEPLOYING

    @property
    def timed(self) -> bool:
        """Whether Flink's REST API reports how long an attempt was in this state."""
        return self in _TIMED

    @property
    def active(self) -> bool:
        """Whether the attempt may do something on a TaskManager."""
        return not self.waiting and not self.terminal

    @classmethod
    def aggregate(cls, states: Collection[ExecutionState]) -> ExecutionState:
        """Return the state of a step that several attempts run, as Flink has it for a vertex with several subtasks.

        The worst state wins; a step has finished when all of its attempts have. Without attempts it is CREATED.
        """
        for state in _AGGREGATE:
            if state in states and (state is not cls.FINISHED or set(states) == {cls.FINISHED}):
                return state
        return cls.RUNNING if cls.FINISHED in states else min(states, key=_ORDER.index, default=cls.CREATED)

    def comes_after(self, other: ExecutionState) -> bool:
        """Whether an attempt that entered both within one millisecond entered this one later."""
        return self in _ORDER and other in _ORDER and _ORDER.index(self) > _ORDER.index(other)


_J = JobStatus
_E = ExecutionState
_GLOBALLY_TERMINAL: Final = frozenset({_J.FINISHED, _J.FAILED, _J.CANCELED})
_TIMED: Final = (_E.CREATED, _E.SCHEDULED, _E.DEPLOYING, _E.INITIALIZING, _E.RUNNING)
_AGGREGATE: Final = (_E.FAILED, _E.CANCELING, _E.CANCELED, _E.RECONCILING, _E.RUNNING, _E.FINISHED)
_ORDER: Final = (*_TIMED, _E.CANCELING, _E.FINISHED, _E.CANCELED, _E.FAILED)

#: Legal moves of a job.
JOB_MOVES: Final[Mapping[JobStatus, frozenset[JobStatus]]] = {
    _J.INITIALIZING: frozenset({_J.CREATED, _J.RECONCILING, _J.CANCELLING, _J.FAILING, _J.SUSPENDED}),
    _J.CREATED: frozenset({_J.RUNNING, _J.CANCELLING, _J.FAILING, _J.SUSPENDED}),
    _J.RECONCILING: frozenset({_J.RUNNING, _J.CANCELLING, _J.FAILING, _J.SUSPENDED}),
    _J.RUNNING: frozenset({_J.FINISHED, _J.RESTARTING, _J.CANCELLING, _J.FAILING, _J.SUSPENDED}),
    _J.RESTARTING: frozenset({_J.RUNNING, _J.CANCELLING, _J.FAILING, _J.SUSPENDED}),
    _J.FAILING: frozenset({_J.FAILED, _J.CANCELLING, _J.SUSPENDED}),
    _J.CANCELLING: frozenset({_J.CANCELED, _J.FAILED, _J.SUSPENDED}),
    _J.FINISHED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELED: frozenset(),
    _J.SUSPENDED: frozenset(),
}

#: Legal moves of an execution. FINISHED is legal before RUNNING, as reports may be late. INITIALIZING is never entered.
EXECUTION_MOVES: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = {
    _E.CREATED: frozenset({_E.SCHEDULED, _E.CANCELED, _E.FAILED, _E.RECONCILING}),
    _E.SCHEDULED: frozenset({_E.DEPLOYING, _E.CANCELED, _E.FAILED}),
    _E.DEPLOYING: frozenset({_E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.RUNNING: frozenset({_E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.CANCELING: frozenset({_E.CANCELED}),
    _E.RECONCILING: frozenset({_E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.FINISHED: frozenset(),
    _E.CANCELED: frozenset(),
    _E.FAILED: frozenset(),
}

_State = TypeVar("_State", bound=StrEnum)


def checked_move(moves: Mapping[_State, frozenset[_State]], old: _State, new: _State) -> _State:
    """Return `new`, or raise InvariantBroken if the table has no move from `old` to `new`."""
    if new not in moves.get(old, ()):
        raise InvariantBroken(f"illegal move {old} -> {new}")
    return new

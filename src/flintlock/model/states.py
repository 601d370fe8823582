"""Job and execution states, spelled as Flink spells them (tasks CANCELING, jobs CANCELLING), and the legal moves.

The two tables are the whole law; the diagrams in the documentation are drawn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from flintlock.model.errors import InvariantBroken


class JobStatus(StrEnum):
    """Where a job is in its life."""

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
        """Whether this JobMaster is done with the job (SUSPENDED: another leader goes on with it)."""
        return self in _GLOBALLY_TERMINAL or self is JobStatus.SUSPENDED


class ExecutionState(StrEnum):
    """Where one attempt at one region is in its life."""

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


_J = JobStatus
_E = ExecutionState
_GLOBALLY_TERMINAL: Final = frozenset({_J.FINISHED, _J.FAILED, _J.CANCELED})

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

#: Legal moves of an execution. FINISHED is legal from the last three before it.
EXECUTION_MOVES: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = {
    _E.CREATED: frozenset({_E.SCHEDULED, _E.CANCELED, _E.FAILED, _E.RECONCILING}),
    _E.SCHEDULED: frozenset({_E.DEPLOYING, _E.CANCELED, _E.FAILED}),
    _E.DEPLOYING: frozenset({_E.INITIALIZING, _E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.INITIALIZING: frozenset({_E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.RUNNING: frozenset({_E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.CANCELING: frozenset({_E.CANCELED}),
    _E.RECONCILING: frozenset({_E.INITIALIZING, _E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.FINISHED: frozenset(),
    _E.CANCELED: frozenset(),
    _E.FAILED: frozenset(),
}

_State = TypeVar("_State", JobStatus, ExecutionState)


def checked_move(moves: Mapping[_State, frozenset[_State]], old: _State, new: _State) -> _State:
    """Return `new`, or raise InvariantBroken if the law does not allow to go there from `old`."""
    if new not in moves[old]:
        raise InvariantBroken(f"illegal move {old} -> {new}")
    return new

"""The law of states: where a job and an attempt may go, and that they always can come to an end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import pytest

from flintlock.model.errors import InvariantBroken
from flintlock.model.states import EXECUTION_MOVES, JOB_MOVES, ExecutionState, JobStatus, checked_move

S = TypeVar("S", JobStatus, ExecutionState)
J = JobStatus
E = ExecutionState


def reachable(moves: Mapping[S, frozenset[S]], start: S) -> set[S]:
    seen: set[S] = set()
    stack = [start]
    while stack:
        for state in moves[stack.pop()] - seen:
            seen.add(state)
            stack.append(state)
    return seen


def test_the_tables_speak_of_every_state() -> None:
    """No state is outside the law."""
    assert set(JOB_MOVES) == set(JobStatus)
    assert set(EXECUTION_MOVES) == set(ExecutionState)


@pytest.mark.parametrize("status", JobStatus)
def test_a_terminal_job_is_never_left_and_any_other_can_end(status: JobStatus) -> None:
    """A terminal state never changes; no job is caught in a state without a way out."""
    ends = {state for state in reachable(JOB_MOVES, status) if state.terminal}

    assert bool(JOB_MOVES[status]) != status.terminal
    assert status.terminal or ends


@pytest.mark.parametrize("state", ExecutionState)
def test_a_terminal_attempt_is_never_left_and_any_other_can_end(state: ExecutionState) -> None:
    """A terminal state never changes; no attempt is caught in a state without a way out."""
    ends = {other for other in reachable(EXECUTION_MOVES, state) if other.terminal}

    assert bool(EXECUTION_MOVES[state]) != state.terminal
    assert state.terminal or ends


@pytest.mark.parametrize("status", [status for status in JobStatus if not status.terminal])
def test_any_living_job_can_be_cancelled_failed_and_suspended(status: JobStatus) -> None:
    """Nobody has to wait for a state that allows it."""
    everywhere = reachable(JOB_MOVES, status)

    assert {J.FAILED, J.CANCELED} <= everywhere
    assert J.SUSPENDED in JOB_MOVES[status]


def test_only_running_jobs_finish() -> None:
    """Success is only ever reached by having run; a job that is being cancelled or fails never succeeds."""
    assert {status for status, targets in JOB_MOVES.items() if J.FINISHED in targets} == {J.RUNNING}
    assert J.FINISHED not in reachable(JOB_MOVES, J.CANCELLING)
    assert J.FINISHED not in reachable(JOB_MOVES, J.FAILING)


def test_a_cancelled_attempt_never_runs_on() -> None:
    """CANCELING leads to CANCELED and nowhere else: a failure meanwhile counts as that."""
    assert EXECUTION_MOVES[E.CANCELING] == {E.CANCELED}


def test_an_attempt_finishes_only_once_it_was_deployed() -> None:
    """FINISHED is legal from DEPLOYING, INITIALIZING, RUNNING, and for one that is found again."""
    finishing = {state for state, targets in EXECUTION_MOVES.items() if E.FINISHED in targets}

    assert finishing == {E.DEPLOYING, E.INITIALIZING, E.RUNNING, E.RECONCILING}


@pytest.mark.parametrize(
    "path",
    [
        (J.INITIALIZING, J.CREATED, J.RUNNING, J.FINISHED),
        (J.INITIALIZING, J.CREATED, J.RUNNING, J.RESTARTING, J.RUNNING, J.FAILING, J.FAILED),
        (J.INITIALIZING, J.RECONCILING, J.RUNNING, J.CANCELLING, J.CANCELED),
        (J.INITIALIZING, J.CANCELLING, J.CANCELED),
        (J.CREATED, J.RUNNING, J.FAILING, J.CANCELLING, J.CANCELED),
        (J.RUNNING, J.CANCELLING, J.FAILED),
        (J.RESTARTING, J.SUSPENDED),
    ],
)
def test_the_lives_that_jobs_lead_are_legal(path: tuple[JobStatus, ...]) -> None:
    """The lives that Flink describes."""
    for old, new in pairwise(path):
        assert checked_move(JOB_MOVES, old, new) is new


def test_an_illegal_move_is_a_bug_that_names_both_states() -> None:
    """Leaving a terminal state is an error, not a warning."""
    with pytest.raises(InvariantBroken, match="FINISHED -> RUNNING"):
        checked_move(JOB_MOVES, J.FINISHED, J.RUNNING)
    with pytest.raises(InvariantBroken, match="CREATED -> RUNNING"):
        checked_move(EXECUTION_MOVES, E.CREATED, E.RUNNING)


def test_suspended_ends_this_masters_work_but_not_the_job() -> None:
    """Another leader goes on with a suspended job."""
    assert J.SUSPENDED.terminal
    assert not J.SUSPENDED.globally_terminal
    assert {status for status in J if status.globally_terminal} == {J.FINISHED, J.FAILED, J.CANCELED}


def test_states_are_spelled_as_flink_spells_them() -> None:
    """Tasks are CANCELING, jobs CANCELLING; a state's text is its name."""
    assert str(J.CANCELLING) == "CANCELLING"
    assert str(E.CANCELING) == "CANCELING"
    assert all(str(state) == state.name for states in (J, E) for state in states)

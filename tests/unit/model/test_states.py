"""The tables of moves: the legal moves of a job and an attempt, and that both can always end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import pytest

from flintlock.model.errors import InvariantBroken
from flintlock.model.states import EXECUTION_MOVES, JOB_MOVES, ExecutionState, JobStatus, checked_move
from flintlock.model.tasks import REGION_MOVES, RegionPhase

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


def test_the_tables_have_every_state_that_occurs() -> None:
    """Every state is in its table, but Flink's INITIALIZING of executions, which no attempt ever enters."""
    assert set(JOB_MOVES) == set(JobStatus)
    assert set(EXECUTION_MOVES) == set(ExecutionState) - {E.INITIALIZING}
    assert all(E.INITIALIZING not in targets for targets in EXECUTION_MOVES.values())
    assert set(REGION_MOVES) == set(RegionPhase)


@pytest.mark.parametrize("status", JobStatus)
def test_a_terminal_job_is_never_left_and_any_other_can_end(status: JobStatus) -> None:
    """A terminal state never changes; no job stays in a state without a way out."""
    ends = {state for state in reachable(JOB_MOVES, status) if state.terminal}

    assert bool(JOB_MOVES[status]) != status.terminal
    assert status.terminal or ends


@pytest.mark.parametrize("state", EXECUTION_MOVES)
def test_a_terminal_attempt_is_never_left_and_any_other_can_end(state: ExecutionState) -> None:
    """A terminal state never changes; no attempt stays in a state without a way out."""
    ends = {other for other in reachable(EXECUTION_MOVES, state) if other.terminal}

    assert bool(EXECUTION_MOVES[state]) != state.terminal
    assert state.terminal or ends


@pytest.mark.parametrize("status", [status for status in JobStatus if not status.terminal])
def test_any_job_that_has_not_ended_can_be_cancelled_failed_and_suspended(status: JobStatus) -> None:
    """A cancellation never has to wait for another state."""
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
    """FINISHED is legal from DEPLOYING and RUNNING, and for an attempt that another leader adopts."""
    finishing = {state for state, targets in EXECUTION_MOVES.items() if E.FINISHED in targets}

    assert finishing == {E.DEPLOYING, E.RUNNING, E.RECONCILING}


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
def test_the_paths_of_jobs_that_flink_describes_are_legal(path: tuple[JobStatus, ...]) -> None:
    """Each pair of neighbours is a move in the table."""
    for old, new in pairwise(path):
        assert checked_move(JOB_MOVES, old, new) is new


def test_each_execution_state_is_in_one_class() -> None:
    """An attempt either waits, is at a TaskManager, is being cancelled, or has ended."""
    for state in EXECUTION_MOVES:
        classes = (state.waiting, state.on_a_task_manager, state is E.CANCELING, state.terminal)
        assert sum(classes) == 1, state
        assert not (state.accepted_by_task_manager and (state.waiting or state.terminal))
    assert {state for state in E if not state.may_have_output} == {E.CREATED, E.SCHEDULED, E.DEPLOYING}


def test_states_entered_in_one_millisecond_have_an_order() -> None:
    """The order is the one in which a successful attempt enters them, ends last; RECONCILING has no place in it."""
    assert E.RUNNING.comes_after(E.DEPLOYING)
    assert E.FINISHED.comes_after(E.RUNNING)
    assert not E.CREATED.comes_after(E.SCHEDULED)
    assert not E.RECONCILING.comes_after(E.CREATED)
    assert {state for state in E if state.timed} == {E.CREATED, E.SCHEDULED, E.DEPLOYING, E.INITIALIZING, E.RUNNING}


def test_job_states_are_classified() -> None:
    """A job waits to start, runs, handles a failure, is being cancelled, or this JobMaster is done with it."""
    assert {status for status in J if status.not_started} == {J.INITIALIZING, J.CREATED}
    assert {s for s in J if s.schedules_regions} == {J.INITIALIZING, J.CREATED, J.RUNNING, J.RESTARTING}
    assert {status for status in J if status.handles_a_failure} == {J.RESTARTING, J.FAILING}


def test_an_illegal_move_is_a_bug_that_names_both_states() -> None:
    """Leaving a terminal state is an error, not a warning."""
    with pytest.raises(InvariantBroken, match="FINISHED -> RUNNING"):
        checked_move(JOB_MOVES, J.FINISHED, J.RUNNING)
    with pytest.raises(InvariantBroken, match="CREATED -> RUNNING"):
        checked_move(EXECUTION_MOVES, E.CREATED, E.RUNNING)


def test_suspended_ends_this_job_masters_work_but_not_the_job() -> None:
    """Another leader continues a suspended job."""
    assert J.SUSPENDED.terminal
    assert not J.SUSPENDED.globally_terminal
    assert {status for status in J if status.globally_terminal} == {J.FINISHED, J.FAILED, J.CANCELED}


def test_states_are_spelled_as_flink_spells_them() -> None:
    """Tasks are CANCELING, jobs CANCELLING; a state's text is its name."""
    assert str(J.CANCELLING) == "CANCELLING"
    assert str(E.CANCELING) == "CANCELING"
    assert all(str(state) == state.name for states in (J, E) for state in states)

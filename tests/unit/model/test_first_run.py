"""When the first attempt of a job ran, as listings say it."""

from __future__ import annotations

from msgspec import structs
from tests.unit.model.test_shared_steps import snapshot

from flintlock.api.job_lines import encoded_line, overview_entry, summary_of
from flintlock.model.ids import RegionId
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.states import ExecutionState

E = ExecutionState


def job(*attempts: dict[ExecutionState, int]) -> JobSnapshot:
    """A job whose attempts have these times."""
    executions = [
        ExecutionInfo(region=RegionId(number), attempt=0, state=E.RUNNING, timestamps=timestamps)
        for number, timestamps in enumerate(attempts)
    ]
    return structs.replace(snapshot(), executions=tuple(executions))


def test_a_line_says_when_the_first_attempt_ran_also_after_the_end() -> None:
    summary = job({E.CREATED: 1, E.RUNNING: 9}, {E.CREATED: 1, E.RUNNING: 4}, {E.CREATED: 1}).summary()
    assert overview_entry(summary, 10).first_run == 4
    assert summary_of(encoded_line(summary, 10)).first_run_ms == 4


def test_a_job_of_which_no_attempt_ran_has_no_such_time_in_its_line() -> None:
    summary = job({E.CREATED: 1, E.SCHEDULED: 2}).summary()
    assert summary.first_run_ms == -1
    assert b"first-run" not in encoded_line(summary, 10)


def test_the_time_is_unknown_where_an_attempt_was_taken_over_from_an_earlier_leader() -> None:
    """Its record has no time of RUNNING, and a later region's would be taken for the first."""
    assert job({E.FINISHED: 5}, {E.CREATED: 6, E.RUNNING: 8}).summary().first_run_ms == -1
    assert job({E.DEPLOYING: 5, E.RECONCILING: 6, E.RUNNING: 8}).summary().first_run_ms == -1

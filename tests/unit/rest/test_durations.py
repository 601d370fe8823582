"""Durations in responses after the wall clock of the JobManager was set back: none is negative."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, ended, running

from flintlock.model.jobs import JobSnapshot
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.testing.simulation.checks.durations import duration_problems, negative_durations

DAY_MS = 86_400_000


def set_back_while_it_ran() -> JobSnapshot:
    """Return a job that has finished before it was submitted, by the wall clock."""
    job = ended(running(A), JobStatus.FINISHED)
    executions = tuple(
        structs.replace(
            each,
            state=ExecutionState.FINISHED,
            timestamps={**each.timestamps, ExecutionState.FINISHED: T0 - DAY_MS},
        )
        for each in job.executions
    )
    timestamps = {**job.timestamps, JobStatus.FINISHED: T0 - DAY_MS}
    return structs.replace(job, end_ms=T0 - DAY_MS, timestamps=timestamps, executions=executions)


@pytest.mark.parametrize("job", [running(A), set_back_while_it_ran()], ids=["running", "ended"])
def test_no_duration_is_negative_after_the_clock_was_set_back(job: JobSnapshot) -> None:
    rest = RestHarness()
    rest.now_ms = T0 - DAY_MS
    rest.dispatcher.put(job)
    vertex = rest.get(f"/jobs/{A}")["vertices"][0]["id"]
    for path in (
        f"/jobs/{A}",
        "/jobs/overview",
        "/applications/overview",
        f"/applications/{A}",
        f"/jobs/{A}/execution-result",
        f"/jobs/{A}/metrics?get=uptime,downtime,runningTime",
        f"/jobs/{A}/vertices/{vertex}",
        f"/jobs/{A}/vertices/{vertex}/subtasktimes",
        f"/jobs/{A}/vertices/{vertex}/taskmanagers",
        f"/jobs/{A}/vertices/{vertex}/subtasks/0",
    ):
        assert list(negative_durations(rest.get(path))) == [], path
    assert rest.get(f"/jobs/{A}")["duration"] == 0
    assert duration_problems(job, rest.now_ms) == []


def test_negative_durations_are_found_wherever_they_are() -> None:
    shown = {"duration": -5, "status-duration": {"RUNNING": {"min": -2}, "CREATED": -1}, "start-time": -7}
    found = dict(negative_durations({"jobs": [shown]}))
    assert found == {"/jobs/0/duration": -5, "/jobs/0/status-duration/RUNNING/min": -2}

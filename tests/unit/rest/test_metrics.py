"""Numbers: for Prometheus from one registry and what there is now; for Flink's tools by id."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from prometheus_client import Counter, Gauge, Histogram
from tests.unit.rest.rest_harness import RESOURCES, T0, A, B, RestHarness, ended, execution, running

from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import vertex_id
from flintlock.model.slots import ResourceOverview
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.rest.metrics.registry import number_text

E = ExecutionState
J = JobStatus
JOB: dict[str, Any] = {"name": "small", "steps": {"a": {"sql": "SELECT 1"}, "r": {"result": {}, "inputs": ["a"]}}}


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A), ended(running(B), J.CANCELED))
    made.resource_manager.seen = RESOURCES
    return made


def scraped(rest: RestHarness) -> list[str]:
    response = rest.call("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return response.text.splitlines()


def values(rest: RestHarness, path: str) -> dict[str, str]:
    """Every metric at a path with its value."""
    ids = [item["id"] for item in rest.get(path)]
    return {item["id"]: item["value"] for item in rest.get(path, params={"get": ",".join(ids)})}


def test_prometheus_scrapes_what_there_is_now(rest: RestHarness) -> None:
    """Jobs by state, slots by use, the queue, and what TaskManagers measure of themselves."""
    lines = scraped(rest)

    assert 'flintlock_jobs{state="RUNNING"} 1.0' in lines
    assert 'flintlock_jobs{state="CANCELED"} 1.0' in lines
    assert 'flintlock_slots{use="free"} 2.0' in lines
    assert 'flintlock_slots{use="taken"} 2.0' in lines
    assert "flintlock_taskmanagers 1.0" in lines
    assert "flintlock_taskmanagers_starting 1.0" in lines
    assert "flintlock_slot_requests_waiting 1.0" in lines
    assert 'flintlock_taskmanager_runner_memory{taskmanager="tm-1"} 1024.0' in lines
    assert 'flintlock_taskmanager_engine_memory{taskmanager="tm-1"} 2048.5' in lines
    assert "flintlock_leader 1.0" in lines


def test_prometheus_scrapes_what_the_rooms_count(rest: RestHarness) -> None:
    """Whatever they put into the registry that they were given."""
    Counter("flintlock_job_restarts", "Restarts.", registry=rest.registry).inc(3)

    assert "flintlock_job_restarts_total 3.0" in scraped(rest)


def test_no_family_is_exported_twice(rest: RestHarness) -> None:
    """Prometheus refuses that. What there is now counts: a room's own number may be from another term."""
    Gauge("flintlock_taskmanagers", "Stale.", registry=rest.registry).set(99)

    lines = [line for line in scraped(rest) if line.startswith("flintlock_taskmanagers ")]

    assert lines == ["flintlock_taskmanagers 1.0"]


def test_two_names_that_become_one_do_not_break_the_scrape(rest: RestHarness) -> None:
    """A TaskManager may name its numbers as it likes."""
    odd = structs.replace(RESOURCES.task_managers[0], metrics={"a.b": 1.0, "a-b": 2.0})
    rest.resource_manager.seen = ResourceOverview(task_managers=(odd,))

    assert [line for line in scraped(rest) if line.startswith("flintlock_taskmanager_a_b{")] == [
        'flintlock_taskmanager_a_b{taskmanager="tm-1"} 2.0'
    ]


def test_without_a_leader_a_jobmanager_exports_its_own_metrics(rest: RestHarness) -> None:
    """A standby is scraped like any other; it reports that it has no leader, and nothing about jobs."""
    Counter("flintlock_seen", "Seen.", registry=rest.registry).inc()
    rest.dispatcher.fail_with = Unavailable("no JobManager leads")

    lines = scraped(rest)

    assert "flintlock_leader 0.0" in lines
    assert "flintlock_seen_total 1.0" in lines
    assert not any(line.startswith("flintlock_jobs") for line in lines)
    assert "numRunningJobs" not in {item["id"] for item in rest.get("/jobmanager/metrics")}


def test_submissions_are_counted_and_timed_by_how_they_were_answered(rest: RestHarness) -> None:
    """Accepted, refused, and those that failed by our fault or for want of a leader."""
    assert 'flintlock_rest_submission_seconds_count{outcome="accepted"} 0.0' in scraped(rest)

    assert rest.call("POST", "/jobs", json=JOB).status_code == 202
    assert rest.call("POST", "/v1/jobs", json={"name": ""}).status_code == 400
    rest.dispatcher.fail_with = Unavailable("no JobManager leads")
    assert rest.call("POST", "/jobs", json=JOB).status_code == 503

    lines = scraped(rest)
    for outcome in ("accepted", "refused", "failed"):
        assert f'flintlock_rest_submission_seconds_count{{outcome="{outcome}"}} 1.0' in lines
        assert f'flintlock_rest_submission_seconds_bucket{{le="+Inf",outcome="{outcome}"}} 1.0' in lines


def test_the_jobmanagers_metrics_come_from_the_same_registry(rest: RestHarness) -> None:
    """By the sample's name with its labels behind dots, and by Flink's own ids."""
    Histogram("flintlock_lag", "Lag.", ["a", "b"], registry=rest.registry).labels("x,y", "z").observe(0.5)

    metrics = values(rest, "/jobmanager/metrics")

    assert metrics["flintlock_lag_sum.x_y.z"] == "0.5"
    assert metrics["flintlock_lag_count.x_y.z"] == "1"
    assert metrics["flintlock_jobs.RUNNING"] == "1"
    flinks = ("numRunningJobs", "taskSlotsTotal", "taskSlotsAvailable", "numRegisteredTaskManagers")
    assert [metrics[name] for name in flinks] == ["1", "4", "2", "1"]
    assert metrics["numPendingTaskManagers"] == "1"
    assert not any("_bucket" in name for name in metrics)


def test_only_requested_and_known_metrics_are_returned(rest: RestHarness) -> None:
    """In the order that it was asked for; an unknown id is left out, as Flink does it."""
    answer = rest.get("/jobmanager/metrics", params={"get": "taskSlotsTotal,nothing,numRunningJobs"})

    assert answer == [{"id": "taskSlotsTotal", "value": "4"}, {"id": "numRunningJobs", "value": "1"}]
    assert rest.get("/jobmanager/metrics?get=") == rest.get("/jobmanager/metrics")


def test_a_taskmanagers_metrics(rest: RestHarness) -> None:
    """What it sent with its last heartbeat."""
    assert rest.get("/taskmanagers/tm-1/metrics") == [{"id": "engine.memory"}, {"id": "runner-memory"}]
    assert values(rest, "/taskmanagers/tm-1/metrics") == {"engine.memory": "2048.5", "runner-memory": "1024"}
    assert rest.refused(404, "GET", "/taskmanagers/tm-9/metrics") == ["TaskManager tm-9 was not found"]


def test_the_metrics_of_all_taskmanagers_together(rest: RestHarness) -> None:
    """Smallest, largest, average and sum; or those that were asked for, of those TaskManagers that were."""
    first = RESOURCES.task_managers[0]
    second = structs.replace(first, id=TaskManagerId("tm-2"), metrics={"runner-memory": 0.0})
    rest.resource_manager.seen = ResourceOverview(task_managers=(first, second))
    path = "/taskmanagers/metrics"

    assert rest.get(path) == [{"id": "engine.memory"}, {"id": "runner-memory"}]
    assert rest.get(path, params={"get": "runner-memory,engine.memory,nothing"}) == [
        {"id": "runner-memory", "min": 0.0, "max": 1024.0, "avg": 512.0, "sum": 1024.0},
        {"id": "engine.memory", "min": 2048.5, "max": 2048.5, "avg": 2048.5, "sum": 2048.5},
    ]
    assert rest.get(path, params={"get": "runner-memory", "agg": "MAX,sum", "taskmanagers": "tm-2"}) == [
        {"id": "runner-memory", "max": 0.0, "sum": 0.0}
    ]
    assert rest.refused(400, "GET", path, params={"get": "x", "agg": "median"}) == [
        "query parameter 'agg': 'median' is not known; known are min, max, avg, sum"
    ]
    assert rest.refused(404, "GET", path, params={"taskmanagers": "tm-9"}) == ["TaskManager tm-9 was not found"]


def test_a_running_jobs_metrics(rest: RestHarness) -> None:
    """How long it is where it is, and how often it began again."""
    assert values(rest, f"/jobs/{A}/metrics") == {
        "cancellingTime": "0",
        "createdTime": "0",
        "downtime": "0",
        "failingTime": "0",
        "initializingTime": "0",
        "numRestarts": "1",
        "restartingTime": "0",
        "runningTime": "9990",
        "uptime": "9990",
    }


@pytest.mark.parametrize(
    ("status", "timestamps", "expected"),
    [
        (J.CREATED, {J.INITIALIZING: 0, J.CREATED: 4000}, {"createdTime": 6000, "uptime": 0, "downtime": 0}),
        (J.RESTARTING, {J.RUNNING: 1000, J.RESTARTING: 7000}, {"restartingTime": 3000, "downtime": 3000, "uptime": 0}),
        (J.RUNNING, {J.RESTARTING: 7000, J.RUNNING: 8000}, {"runningTime": 2000, "downtime": 0, "restartingTime": 0}),
        (
            J.CANCELLING,
            {J.RUNNING: 1000, J.RESTARTING: 7000, J.CANCELLING: 9000},
            {"cancellingTime": 1000, "downtime": 3000, "restartingTime": 0},
        ),
        (J.FAILING, {J.RUNNING: 1000, J.FAILING: 1000}, {"failingTime": 9000, "downtime": 9000}),
        (J.FINISHED, {J.RUNNING: 1000, J.FINISHED: 5000}, {"uptime": -1, "downtime": -1, "runningTime": 0}),
    ],
)
def test_times_are_those_of_the_present_state(
    rest: RestHarness, status: JobStatus, timestamps: dict[JobStatus, int], expected: dict[str, int]
) -> None:
    """As Flink counts them: only the current state's time grows; an outage counts from when the job ran last."""
    stamps = {state: T0 + at for state, at in timestamps.items()}
    rest.dispatcher.put(structs.replace(running(A), status=status, timestamps=stamps))

    found = values(rest, f"/jobs/{A}/metrics")

    assert {name: int(found[name]) for name in expected} == expected


def test_regions_that_began_again_together_count_as_one_restart(rest: RestHarness) -> None:
    """Two regions at one moment are one restart; another moment is another."""
    executions = tuple(
        execution(region, attempt, E.RUNNING, {E.CREATED: T0 + at})
        for region, attempt, at in [(0, 0, 0), (0, 1, 50), (0, 2, 90), (1, 0, 0), (1, 1, 50)]
    )
    rest.dispatcher.put(structs.replace(running(A), executions=executions))

    assert values(rest, f"/jobs/{A}/metrics")["numRestarts"] == "2"


def test_the_metrics_of_all_jobs_together(rest: RestHarness) -> None:
    """Of those that have not ended, unless some are named."""
    (one,) = rest.get("/jobs/metrics", params={"get": "uptime"})
    assert (one["min"], one["max"]) == (9990.0, 9990.0)
    (both,) = rest.get("/jobs/metrics", params={"get": "uptime", "jobs": f"{A},{B}", "agg": "min"})
    assert both == {"id": "uptime", "min": -1.0}
    assert rest.refused(404, "GET", "/jobs/metrics", params={"jobs": "c" * 32}) == [f"job {'c' * 32} was not found"]
    assert rest.refused(400, "GET", "/jobs/metrics", params={"jobs": "x"}) == [
        "query parameter 'jobs': 'x' is not a job id: 32 hex digits"
    ]


def test_the_metrics_of_a_step(rest: RestHarness) -> None:
    """Its own numbers where they can be determined, and all of its region's."""
    path = f"/jobs/{A}/vertices/{vertex_id(A, 'priced')}"

    metrics = values(rest, f"{path}/metrics")

    assert metrics["0.numRecordsIn"] == "7"
    assert "0.numRecordsOut" not in metrics
    assert (metrics["0.region.tasksDone"], metrics["0.region.tasksTotal"]) == ("3", "4")
    assert {f"0.{name}": value for name, value in values(rest, f"{path}/subtasks/0/metrics").items()} == metrics
    assert rest.get(f"{path}/subtasks/metrics", params={"get": "numRecordsIn", "agg": "sum"}) == [
        {"id": "numRecordsIn", "sum": 7.0}
    ]
    rest.refused(404, "GET", f"{path}/subtasks/1/metrics")


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (0.5, "0.5"), (-1, "-1"), (float("nan"), "NaN"), (float("inf"), "inf")]
)
def test_numbers_are_written_as_flink_writes_them(value: float, text: str) -> None:
    """Whole ones without a point."""
    assert number_text(value) == text

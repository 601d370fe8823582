"""A step that several regions share is one vertex, with a subtask for each of them."""

from __future__ import annotations

from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, execution, running, step

from flintlock.model.jobgraph import JobGraph, JobType, vertex_id
from flintlock.model.operations import Result, Sink, Source, Sql
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import TaskMetrics

E = ExecutionState


def forked() -> RestHarness:
    """A job with two regions that share `orders` and `clean`: one runs, one has finished."""
    made = JobGraph(
        job_id=A,
        name="fork",
        job_type=JobType.STREAMING,
        vertices=(
            step(A, "orders", Source(format="csv", paths=("in",))),
            step(A, "clean", Sql(query="SELECT * FROM orders"), "orders"),
            step(A, "out", Sink(format="parquet", path="out"), "clean"),
            step(A, "top", Result(), "clean"),
        ),
    )
    counted = TaskMetrics(read_records=5, read_bytes=50, write_records=4, write_bytes=40)
    attempts = (
        execution(0, 0, E.RUNNING, {E.DEPLOYING: T0 + 100, E.RUNNING: T0 + 200}, metrics=counted),
        execution(1, 2, E.FINISHED, {E.DEPLOYING: T0 + 50, E.RUNNING: T0 + 60, E.FINISHED: T0 + 90}, metrics=counted),
    )
    harness = RestHarness()
    harness.dispatcher.put(structs.replace(running(A), graph=made, regions=regions_of(made), executions=attempts))
    return harness


def at(name: str, rest: str = "") -> str:
    return f"/jobs/{A}/vertices/{vertex_id(A, name)}{rest}"


def test_a_shared_step_is_one_vertex() -> None:
    """The job lists every step once; counts are of steps, and of the subtasks of each."""
    job = forked().get(f"/jobs/{A}")

    assert [vertex["name"] for vertex in job["vertices"]] == ["Source: orders", "clean", "Sink: out", "Result: top"]
    orders, _, out, top = job["vertices"]
    assert (orders["status"], out["status"], top["status"]) == ("RUNNING", "RUNNING", "FINISHED")
    assert (orders["tasks"]["RUNNING"], orders["tasks"]["FINISHED"]) == (1, 1)
    assert (orders["start-time"], orders["end-time"]) == (T0 + 50, -1)
    assert job["status-counts"]["RUNNING"] == 3
    assert len(job["plan"]["nodes"]) == 4


def test_its_subtasks_are_its_regions() -> None:
    """Each with its own attempt; together they are summed up."""
    harness = forked()
    details = harness.get(at("orders"))

    assert [(one["subtask"], one["attempt"], one["status"]) for one in details["subtasks"]] == [
        (0, 0, "RUNNING"),
        (1, 2, "FINISHED"),
    ]
    assert details["aggregated"]["metrics"]["read-records"] == {
        "min": 5, "max": 5, "avg": 5, "sum": 10, "median": 5, "p25": 5, "p75": 5, "p95": 5,
    }  # fmt: skip
    assert harness.get(at("orders", "/subtasks/1"))["attempt"] == 2
    assert harness.get(at("top", "/subtasks/0"))["attempt"] == 2
    assert harness.refused(404, "GET", at("orders", "/subtasks/2"))
    assert harness.refused(404, "GET", at("top", "/subtasks/1"))
    assert [one["subtask"] for one in harness.get(at("orders", "/subtasktimes"))["subtasks"]] == [0, 1]
    (place,) = harness.get(at("orders", "/taskmanagers"))["taskmanagers"]
    assert (place["status"], place["status-counts"]["FINISHED"]) == ("RUNNING", 1)


def test_its_metrics_are_listed_by_subtask() -> None:
    """Numbers of a shared source are those of each region, and their sum in the job's view."""
    harness = forked()

    ids = {one["id"] for one in harness.get(at("orders", "/metrics"))}
    assert {"0.numRecordsIn", "1.numRecordsIn"} <= ids
    (summed,) = harness.get(at("orders", "/subtasks/metrics?get=numRecordsIn&agg=sum"))
    assert summed["sum"] == 10
    assert harness.get(f"/jobs/{A}")["vertices"][0]["metrics"]["read-records"] == 10

"""What REST returns about one step: the current attempt at its region, and only numbers that are the step's own."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, B, RestHarness, execution, graph, running, step

from flintlock.model.commands import DumpThreads, ThreadsDumped
from flintlock.model.diagnostics import ThreadStack
from flintlock.model.errors import Conflict, Unavailable
from flintlock.model.ids import AttemptId, RegionId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.operations import Program, Sink, Source, Sql
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import StepOutput, TaskMetrics

E = ExecutionState
COUNTED = TaskMetrics(read_records=10, read_bytes=100, write_records=4, write_bytes=40)


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A))
    return made


def at(name: str, rest: str = "", job: str = A) -> str:
    """The path of a step."""
    return f"/jobs/{job}/vertices/{vertex_id(A, name)}{rest}"


def test_a_step_is_returned_with_the_current_attempt_at_its_region(rest: RestHarness) -> None:
    """Where it ran, when, and how long it was in each state."""
    answer = rest.get(at("clean"))

    assert (answer["id"], answer["name"], answer["parallelism"], answer["now"]) == (
        vertex_id(A, "clean"),
        "clean",
        2,
        T0 + 10_000,
    )
    (subtask,) = answer["subtasks"]
    assert {key: subtask[key] for key in ("status", "attempt", "endpoint", "taskmanager-id")} == {
        "status": "FINISHED",
        "attempt": 1,
        "endpoint": "127.0.0.1:4711",
        "taskmanager-id": "tm-1",
    }
    assert (subtask["start-time"], subtask["end-time"], subtask["duration"]) == (T0 + 100, T0 + 1100, 1000)
    assert subtask["start_time"] == T0 + 100
    assert subtask["status-duration"] == {
        "CREATED": -1,
        "SCHEDULED": -1,
        "DEPLOYING": 100,
        "INITIALIZING": -1,
        "RUNNING": 900,
    }
    assert rest.get(at("clean", "/subtasks/0")) == subtask


def test_only_the_current_state_gets_longer(rest: RestHarness) -> None:
    """What runs has run until now, whatever else was entered in the same millisecond."""
    stamps = {E.CREATED: T0, E.SCHEDULED: T0, E.DEPLOYING: T0 + 7, E.INITIALIZING: T0 + 7, E.RUNNING: T0 + 7}
    rest.dispatcher.put(structs.replace(running(A), executions=(execution(0, 0, E.RUNNING, stamps),)))

    (subtask,) = rest.get(at("clean"))["subtasks"]

    assert subtask["status-duration"] == {
        "CREATED": 0,
        "SCHEDULED": 7,
        "DEPLOYING": 0,
        "INITIALIZING": 0,
        "RUNNING": 9_993,
    }
    assert (subtask["end-time"], subtask["duration"]) == (-1, 9_993)


def test_summaries_of_one_subtask_are_its_numbers(rest: RestHarness) -> None:
    """Every one of them."""
    aggregated = rest.get(at("clean"))["aggregated"]

    assert set(aggregated["metrics"]["write-records"].values()) == {7}
    assert set(aggregated["status-duration"]["RUNNING"].values()) == {900}
    assert set(aggregated["status-duration"]["CREATED"].values()) == {0}


def test_times_by_state(rest: RestHarness) -> None:
    """0 for a state that it has not been in; the duration counts from when it was scheduled."""
    (never_scheduled,) = rest.get(at("out", "/subtasktimes"))["subtasks"]
    assert {state: ms for state, ms in never_scheduled["timestamps"].items() if ms} == {
        "DEPLOYING": T0 + 1200,
        "RUNNING": T0 + 1300,
    }
    assert set(never_scheduled["timestamps"]) == {*ExecutionState}
    assert never_scheduled["duration"] == -1

    stamps = {E.SCHEDULED: T0 + 50, E.DEPLOYING: T0 + 60, E.FAILED: T0 + 90}
    rest.dispatcher.put(structs.replace(running(A), executions=(execution(0, 0, E.FAILED, stamps),)))
    (failed,) = rest.get(at("clean", "/subtasktimes"))["subtasks"]
    assert failed["duration"] == 40


def test_the_taskmanager_of_a_step(rest: RestHarness) -> None:
    """That of the present attempt."""
    (place,) = rest.get(at("out", "/taskmanagers"))["taskmanagers"]

    assert (place["taskmanager-id"], place["endpoint"], place["status"]) == ("tm-1", "127.0.0.1:4711", "RUNNING")
    assert {state: count for state, count in place["status-counts"].items() if count} == {"RUNNING": 1}
    assert (place["start-time"], place["end-time"], place["duration"]) == (T0 + 1200, -1, 8800)


def test_a_step_that_has_not_started(rest: RestHarness) -> None:
    """Every field, and nothing that is not so."""
    rest.dispatcher.put(structs.replace(running(A), executions=()))

    (subtask,) = rest.get(at("clean"))["subtasks"]

    assert (subtask["status"], subtask["attempt"], subtask["start-time"]) == ("CREATED", 0, -1)
    assert (subtask["endpoint"], subtask["taskmanager-id"]) == ("(unassigned)", "(unassigned)")
    assert set(subtask["status-duration"].values()) == {-1}
    assert not any(value for key, value in subtask["metrics"].items() if key.endswith("-complete"))
    (times,) = rest.get(at("clean", "/subtasktimes"))["subtasks"]
    assert (times["duration"], set(times["timestamps"].values())) == (-1, {0})


def test_what_does_not_exist_here_is_empty(rest: RestHarness) -> None:
    """Accumulators and watermarks are asked for by Flink's tools."""
    assert rest.get(at("clean", "/accumulators"))["user-accumulators"] == []
    assert rest.get(at("clean", "/watermarks")) == []
    assert rest.get(f"/jobs/{A}/accumulators")["job-accumulators"] == []
    (one,) = rest.get(at("clean", "/subtasks/accumulators"))["subtasks"]
    assert (one["attempt"], one["user-accumulators"]) == (1, [])


@pytest.mark.parametrize("of", ["", "/subtasktimes", "/taskmanagers", "/accumulators", "/watermarks", "/subtasks/0"])
def test_an_unknown_step_is_not_found(rest: RestHarness, of: str) -> None:
    """404, with its id; so is a step of a job that is not there."""
    assert rest.refused(404, "GET", at("other", of)) == [f"vertex {vertex_id(A, 'other')} of job {A} was not found"]
    assert rest.refused(404, "GET", at("clean", of, job=B)) == [f"job {B} was not found"]


def test_a_step_has_one_subtask(rest: RestHarness) -> None:
    """Another number is not found; what is no number is refused."""
    assert rest.refused(404, "GET", at("clean", "/subtasks/1")) == ["subtask 1 of step 'clean' was not found"]
    assert rest.refused(400, "GET", at("clean", "/subtasks/x")) == ["'x' is not the number of a subtask"]
    assert rest.refused(400, "GET", at("clean", "/subtasks/²")) == ["'²' is not the number of a subtask"]


def numbers(rest: RestHarness, job: JobSnapshot) -> dict[str, tuple[int | None, int | None]]:
    """What each step of a job read and wrote, in records; None where it cannot be determined."""
    rest.dispatcher.put(job)
    found: dict[str, tuple[int | None, int | None]] = {}
    for vertex in rest.get(f"/jobs/{A}")["vertices"]:
        metrics: dict[str, Any] = vertex["metrics"]
        found[vertex["name"]] = (
            metrics["read-records"] if metrics["read-records-complete"] else None,
            metrics["write-records"] if metrics["write-records-complete"] else None,
        )
        own = rest.get(f"/jobs/{A}/vertices/{vertex['id']}")
        assert own["subtasks"][0]["metrics"] == metrics  # the same, wherever one looks
    return found


def job_of(*vertices: JobVertex, executions: tuple[ExecutionInfo, ...]) -> JobSnapshot:
    made = JobGraph(job_id=A, name="j", vertices=vertices)
    return structs.replace(running(A), graph=made, regions=regions_of(made), executions=executions)


def ran(region: int = 0, state: ExecutionState = E.FINISHED, **more: Any) -> ExecutionInfo:
    return execution(region, 0, state, {E.DEPLOYING: T0, state: T0 + 1}, **more)


READ = step(A, "read", Source(format="csv", paths=("in",)))
MORE = step(A, "more", Source(format="csv", paths=("in",)))
OUT = step(A, "out", Sink(format="parquet", path="out"), "read")


def test_the_only_reader_and_the_only_writer_have_the_attempts_numbers(rest: RestHarness) -> None:
    """From the moment that Spark has counted anything."""
    assert numbers(rest, job_of(READ, OUT, executions=(ran(metrics=COUNTED),))) == {
        "Source: read": (10, None),
        "Sink: out": (None, 4),
    }
    assert numbers(rest, job_of(READ, OUT, executions=(ran(state=E.RUNNING, metrics=COUNTED),))) == {
        "Source: read": (10, None),
        "Sink: out": (None, 4),
    }
    assert numbers(rest, job_of(READ, OUT, executions=(ran(state=E.RUNNING),))) == {
        "Source: read": (None, None),
        "Sink: out": (None, None),
    }


def test_numbers_of_several_steps_belong_to_none_of_them(rest: RestHarness) -> None:
    """Two sources share what was read; of two sinks each has its own rows once it has ended."""
    joined = step(A, "joined", Sql(query="SELECT 1"), "read", "more")
    first = step(A, "first", Sink(format="csv", path="one"), "joined")
    second = step(A, "second", Sink(format="csv", path="two"), "joined")
    outputs = (StepOutput(step=StepName("first"), rows=3, bytes=30), StepOutput(step=StepName("second"), rows=1))

    running_now = job_of(READ, MORE, joined, first, second, executions=(ran(state=E.RUNNING, metrics=COUNTED),))
    assert set(numbers(rest, running_now).values()) == {(None, None)}
    ended = job_of(READ, MORE, joined, first, second, executions=(ran(metrics=COUNTED, outputs=outputs),))
    assert numbers(rest, ended) == {
        "Source: read": (None, None),
        "Source: more": (None, None),
        "joined": (None, None),
        "Sink: first": (None, 3),
        "Sink: second": (None, 1),
    }


def test_a_program_reads_and_writes_by_itself(rest: RestHarness) -> None:
    """All that its attempt did."""
    program = JobVertex(id=vertex_id(A, "main"), name=StepName("main"), operation=Program(file="main.py"))

    assert numbers(rest, job_of(program, executions=(ran(metrics=COUNTED),))) == {"Program: main": (10, 4)}


def test_a_query_that_reads_tables_by_itself_is_a_reader(rest: RestHarness) -> None:
    """A step without inputs has its rows from somewhere."""
    query = step(A, "read", Sql(query="SELECT * FROM db.t"))

    assert numbers(rest, job_of(query, OUT, executions=(ran(metrics=COUNTED),))) == {
        "read": (10, None),
        "Sink: out": (None, 4),
    }


def test_a_blocking_result_is_read_by_its_consumer(rest: RestHarness) -> None:
    """And written by the step that makes it."""
    counted = structs.replace(running(A).executions[2], metrics=COUNTED)
    job = structs.replace(running(A), executions=(*running(A).executions[:2], counted))

    assert numbers(rest, job) == {
        "Source: orders": (0, None),
        "clean": (None, 7),
        "priced": (10, None),
        "Sink: out": (None, 4),
        "Result: top": (None, None),
    }


def test_a_graph_that_cannot_be_planned_is_shown_without_its_regions(rest: RestHarness) -> None:
    """A quarantined job has a graph and no regions: nothing breaks, and no step can be looked at."""
    quarantined = structs.replace(running(A), regions=(), executions=(), status=JobStatus.FAILED, graph=graph(A))
    rest.dispatcher.put(quarantined)

    assert len(rest.get(f"/jobs/{A}")["plan"]["nodes"]) == 5
    assert rest.get(f"/jobs/{A}")["vertices"] == []
    rest.refused(404, "GET", at("clean"))


def test_the_threads_of_a_running_subtask_are_returned_in_flinks_form(rest: RestHarness) -> None:
    """The current attempt of its region is asked, and what it answers has the fields of Flink's thread dump."""
    rest.dispatcher.answer = ThreadsDumped(threads=(ThreadStack(name="MainThread", text='"MainThread" id=1\n'),))

    answer = rest.get(at("clean", "/subtasks/0/thread-dump"))

    assert answer == {"threadInfos": [{"threadName": "MainThread", "stringifiedThreadInfo": '"MainThread" id=1\n'}]}
    assert rest.dispatcher.queries == [DumpThreads(attempt=AttemptId(job_id=A, region=RegionId(0), attempt=1))]


def test_a_runner_that_does_not_answer_is_an_error_with_its_reason(rest: RestHarness) -> None:
    rest.dispatcher.fail_with = Conflict("attempt is FINISHED: only a running one answers")
    rest.refused(409, "GET", at("clean", "/subtasks/0/thread-dump"))
    rest.dispatcher.fail_with = Unavailable("the runner is busy")
    rest.refused(503, "GET", at("clean", "/subtasks/0/thread-dump"))
    rest.dispatcher.fail_with = None
    rest.refused(503, "GET", at("clean", "/subtasks/0/thread-dump"))  # answered, but not with threads

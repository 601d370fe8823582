"""The figures of streaming queries as metrics, by the ids that Flink's tools ask for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, execution, running, step
from tests.unit.rest.test_metrics import values
from tests.unit.rest.test_queries import SHOWN, S, served

from flintlock.model.jobgraph import JobGraph, JobType, vertex_id
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import Program, Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.streaming.streams import StreamQuery
from flintlock.rest.metrics.query_values import query_values
from flintlock.rest.vertices.translate import VertexView
from flintlock.rest.vertices.watermarks import NO_WATERMARK, active_queries, watermark_ms

E = ExecutionState
WATERMARK_MS = 1767225600000  # 2026-01-01T00:00:00.000Z


def program(*figures: QueryFigures) -> JobSnapshot:
    """A program whose attempt runs and has started these queries."""
    main = structs.replace(step(A, "main", Source(format="rate")), operation=Program(file="main.py"))
    graph = JobGraph(job_id=A, name="script", vertices=(main,))
    attempt = structs.replace(execution(0, 0, E.RUNNING, {E.RUNNING: T0}), queries=figures)
    return structs.replace(running(A), graph=graph, regions=regions_of(graph), executions=(attempt,))


def test_a_source_and_the_sink_of_a_query_have_flinks_metrics() -> None:
    """By Flink's names where Flink has one; the sink has all figures of the query."""
    rest = served(E.RUNNING)

    source = values(rest, f"/jobs/{S}/vertices/{vertex_id(S, 'events')}/metrics")
    sink = values(rest, f"/jobs/{S}/vertices/{vertex_id(S, 'files')}/subtasks/0/metrics")

    assert {name: source[f"0.{name}"] for name in ("numRecordsInPerSecond", "numRecordsOutPerSecond")} == {
        "numRecordsInPerSecond": "3",
        "numRecordsOutPerSecond": "2",
    }
    assert (source["0.pendingRecords"], source["0.currentOutputWatermark"]) == ("40", str(WATERMARK_MS))
    assert "0.currentInputWatermark" not in source
    assert (sink["currentInputWatermark"], sink["query.duration.addBatch"]) == (str(WATERMARK_MS), "1900")
    assert (sink["query.source.0.backlog"], sink["query.stateMemory"], sink["query.behindTime"]) == (
        "40",
        "1000",
        "72000",
    )
    assert rest.get(f"/jobs/{S}/vertices/{vertex_id(S, 'files')}/subtasks/metrics?get=query.lateRows&agg=max") == [
        {"id": "query.lateRows", "max": 2.0}
    ]


def test_the_rates_of_a_source_are_not_shown_where_two_are_read() -> None:
    """Spark does not say which step a source belongs to."""
    rest = RestHarness()
    graph = JobGraph(
        job_id=S,
        name="clicks",
        job_type=JobType.STREAMING,
        vertices=(
            step(S, "one", Source(format="rate", stream=True)),
            step(S, "two", Source(format="rate", stream=True)),
            structs.replace(
                step(S, "files", Sink(format="parquet", path="/a"), "one", "two"), query=StreamQuery(uid="files-v1")
            ),
        ),
    )
    attempt = structs.replace(execution(0, 0, E.RUNNING, {E.RUNNING: T0}), queries=(SHOWN,))
    rest.dispatcher.put(structs.replace(running(S), graph=graph, regions=regions_of(graph), executions=(attempt,)))

    found = values(rest, f"/jobs/{S}/vertices/{vertex_id(S, 'one')}/metrics")

    assert not any("PerSecond" in name for name in found)


def test_only_the_queries_of_its_own_region_are_converted_for_a_subtask() -> None:
    """A source has a subtask in each query that reads it: the metrics of a job would take quadratic time."""
    names = [f"files-{n}" for n in range(3)]
    sinks = (step(S, name, Sink(format="parquet", path=f"/{name}"), "events") for name in names)
    graph = JobGraph(
        job_id=S,
        name="clicks",
        job_type=JobType.STREAMING,
        vertices=(
            step(S, "events", Source(format="rate", stream=True)),
            *(structs.replace(sink, query=StreamQuery(uid=f"{sink.name}-v1")) for sink in sinks),
        ),
    )
    others: Any = "not a batch: converting it fails"
    shown = (structs.replace(SHOWN, batch=others), SHOWN, structs.replace(SHOWN, batch=others))
    executions = tuple(
        structs.replace(execution(region, 0, E.RUNNING, {E.RUNNING: T0}), queries=(figures,))
        for region, figures in enumerate(shown)
    )
    job = structs.replace(running(S), graph=graph, regions=regions_of(graph), executions=executions)

    view = VertexView(job=job, vertex=graph.vertices[0], now_ms=T0).subtasks[1]

    (query,) = active_queries(view)
    assert (query.region, query.uid) == (1, "files-1-v1")
    assert query_values(view)["pendingRecords"] == 40


def test_the_queries_of_a_program_are_told_apart_by_name() -> None:
    """Those of one name by the id of their run."""
    first, second = (structs.replace(SHOWN, name=name, run_id=name) for name in ("a", "b"))
    new = QueryFigures(name="before its first batch")
    twins = [structs.replace(SHOWN, name="c", run_id=run) for run in ("r1", "r2")]
    rest = RestHarness()
    rest.dispatcher.put(program(first, second, new, *twins))

    found = values(rest, f"/jobs/{A}/vertices/{vertex_id(A, 'main')}/subtasks/0/metrics")

    assert {name for name in found if name.endswith(".batch")} == {f"query.{n}.batch" for n in ("a", "b", "r1", "r2")}
    assert "currentInputWatermark" not in found


@pytest.mark.parametrize(("state", "shown"), [(E.RUNNING, True), (E.FAILED, False)])
def test_the_watermark_of_a_step_is_that_of_its_running_query(state: ExecutionState, *, shown: bool) -> None:
    """In Flink's form, for all steps but sources."""
    rest = served(state)
    expected = [{"id": "0.currentInputWatermark", "value": str(WATERMARK_MS)}] if shown else []

    assert rest.get(f"/jobs/{S}/vertices/{vertex_id(S, 'files')}/watermarks") == expected
    assert rest.get(f"/jobs/{S}/vertices/{vertex_id(S, 'events')}/watermarks") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:00.000Z", WATERMARK_MS),
        ("2026-01-01T00:00:00", WATERMARK_MS),
        ("1970-01-01T00:00:00.000Z", NO_WATERMARK),
        ("", None),
        ("soon", None),
    ],
)
def test_a_watermark_of_spark_is_a_time_or_none(text: str, expected: int | None) -> None:
    assert watermark_ms(text) == expected


def test_a_streaming_job_has_flinks_metrics_of_its_checkpoints() -> None:
    rest = served(E.RUNNING)

    found = values(rest, f"/jobs/{S}/metrics")

    assert {name: number for name, number in found.items() if "heckpoint" in name} == {
        "totalNumberOfCheckpoints": "0",
        "numberOfCompletedCheckpoints": "0",
        "numberOfInProgressCheckpoints": "0",
        "numberOfFailedCheckpoints": "0",
    }

"""The streaming queries of a job, with the figures of their latest batches."""

from __future__ import annotations

from msgspec import structs
from tests.unit.rest.rest_harness import T0, RestHarness, execution, running, step

from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState
from flintlock.model.streaming.query_figures import OperatorFigures, QueryFigures, SourceFigures
from flintlock.model.streaming.streams import StreamQuery

S = JobId("5" * 32)
E = ExecutionState
SHOWN = QueryFigures(
    name="files",
    query_id="11",
    run_id="22",
    batch=7,
    started_ms=T0 + 70_000,
    interval_ms=1000,
    input_rows=6,
    input_rate=3.0,
    processed_rate=2.0,
    duration_ms=2000,
    durations={"addBatch": 1900, "triggerExecution": 2000},
    watermark="2026-01-01T00:00:00.000Z",
    sources=(SourceFigures(description="rate", input_rows=6, input_rate=3.0, processed_rate=2.0, backlog=40),),
    operators=(OperatorFigures(name="dedupe", rows=9, updated_rows=1, memory=1000, late_rows=2),),
    behind_since_ms=T0,
)


def served(state: ExecutionState, figures: QueryFigures = SHOWN) -> RestHarness:
    """A job with one query, whose second attempt is in this state."""
    graph = JobGraph(
        job_id=S,
        name="clicks",
        job_type=JobType.STREAMING,
        vertices=(
            step(S, "events", Source(format="rate", stream=True)),
            structs.replace(
                step(S, "files", Sink(format="parquet", path="/a"), "events"), query=StreamQuery(uid="files-v1")
            ),
        ),
    )
    failed = execution(0, 0, E.FAILED, {E.RUNNING: T0, E.FAILED: T0 + 400})
    second = execution(0, 1, state, {E.RUNNING: T0 + 500})
    executions = (structs.replace(failed, queries=(SHOWN,)), structs.replace(second, queries=(figures,)))
    rest = RestHarness()
    rest.dispatcher.put(
        structs.replace(running(S), graph=graph, regions=regions_of(graph), executions=executions),
    )
    return rest


def test_a_query_says_since_when_it_is_idle_while_it_runs() -> None:
    idle = structs.replace(SHOWN, idle_since_ms=T0 + 80_000)
    assert served(E.RUNNING, idle).get(f"/jobs/{S}/queries")["queries"][0]["idle-since"] == T0 + 80_000
    assert served(E.FAILED, idle).get(f"/jobs/{S}/queries")["queries"][0]["idle-since"] == 0


def test_a_query_is_shown_with_the_figures_of_its_latest_batch() -> None:
    (query,) = served(E.RUNNING).get(f"/jobs/{S}/queries")["queries"]

    assert (query["name"], query["uid"], query["region"], query["attempt"]) == ("files", "files-v1", 0, 1)
    assert (query["batch"], query["started"], query["duration-ms"]) == (7, T0 + 70_000, 2000)
    assert (query["input-rows-per-second"], query["processed-rows-per-second"]) == (3.0, 2.0)
    assert query["durations"] == {"addBatch": 1900, "triggerExecution": 2000}
    assert (query["backlog"], query["watermark"]) == (40, "2026-01-01T00:00:00.000Z")
    assert (query["state-rows"], query["state-bytes"], query["late-rows"]) == (9, 1000, 2)
    assert query["sources"][0]["backlog"] == 40
    assert query["operators"][0] == {"name": "dedupe", "rows": 9, "updated-rows": 1, "memory": 1000, "late-rows": 2}


def test_a_query_that_falls_behind_for_long_is_marked_with_the_time() -> None:
    (query,) = served(E.RUNNING).get(f"/jobs/{S}/queries")["queries"]
    assert (query["active"], query["falls-behind"], query["behind-ms"]) == (True, True, 72_000)


def test_a_batch_that_runs_is_shown_and_what_it_is_behind_grows() -> None:
    running = structs.replace(SHOWN, running_since_ms=T0 + 80_000, running_ms=3_600_000)
    (query,) = served(E.RUNNING, running).get(f"/jobs/{S}/queries")["queries"]
    assert (query["running-since"], query["falls-behind"], query["behind-ms"]) == (T0 + 80_000, True, 3_680_000)
    (query,) = served(E.CANCELED, running).get(f"/jobs/{S}/queries")["queries"]
    assert (query["running-since"], query["falls-behind"]) == (0, False)


def test_the_query_of_an_attempt_that_has_ended_is_not_active() -> None:
    (query,) = served(E.CANCELED).get(f"/jobs/{S}/queries")["queries"]
    assert (query["active"], query["falls-behind"]) == (False, False)

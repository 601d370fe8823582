"""The queries of a program: found, followed, and stopped with it; and figures from what Spark reports."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from flintlock.model.operations import Program
from flintlock.model.streaming.query_figures import MAX_PARTS, QueryFigures
from flintlock.spark.region.streaming import program_queries
from flintlock.spark.region.streaming.program_queries import ProgramQueries, activity
from flintlock.spark.region.streaming.query_figures import backlog_of, with_progress


def progress(batch: int, **more: Any) -> dict[str, Any]:
    return {
        "id": "11",
        "runId": "22",
        "batchId": batch,
        "timestamp": "2026-01-01T00:00:01.500Z",
        "numInputRows": 6,
        "inputRowsPerSecond": 3.0,
        "processedRowsPerSecond": 60.0,
        "durationMs": {"triggerExecution": 100, "addBatch": 80, "queryPlanning": 5},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "stateOperators": [
            {"operatorName": "stateStoreSave", "numRowsTotal": 7, "numRowsUpdated": 2, "memoryUsedBytes": 1000,
             "numRowsDroppedByWatermark": 3}
        ],
        "sources": [
            {"description": "Kafka", "numInputRows": 6, "inputRowsPerSecond": 3.0, "processedRowsPerSecond": 60.0,
             "endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": {"t": {"0": 12, "1": 5, "2": 1}}}
        ],
        **more,
    }  # fmt: skip


class FakeQuery:
    """A query that runs until it is stopped."""

    def __init__(self, run_id: str, name: str | None = None) -> None:
        self.id = f"id-{run_id}"
        self.runId = run_id
        self.name = name
        self.isActive = True
        self.stops = 0
        self.batch = 0
        self.error: Exception | None = None
        self.busy = False

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "", "isDataAvailable": self.busy, "isTriggerActive": self.busy}

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - PySpark's name
        class Last:
            json = json_of(progress(self.batch))

        return Last

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False


def json_of(value: object) -> str:
    return json.dumps(value)


def test_a_batch_is_shown_with_its_rates_parts_backlog_watermark_and_state() -> None:
    shown = with_progress(QueryFigures(name="q"), progress(4))

    assert (shown.name, shown.query_id, shown.run_id, shown.batch) == ("q", "11", "22", 4)
    assert (shown.input_rows, shown.input_rate, shown.processed_rate) == (6, 3.0, 60.0)
    assert (shown.duration_ms, shown.durations["addBatch"]) == (100, 80)
    assert (shown.backlog, shown.watermark) == (3, "2026-01-01T00:00:00.000Z")
    assert (shown.state_rows, shown.state_bytes, shown.late_rows) == (7, 1000, 3)


def test_a_trigger_without_a_batch_and_an_earlier_batch_change_nothing() -> None:
    known = with_progress(QueryFigures(name="q"), progress(4))
    assert with_progress(known, progress(5, durationMs={"triggerExecution": 3})) is known
    assert with_progress(known, progress(4)) is known


def test_rates_that_are_no_numbers_are_none_and_parts_are_bounded() -> None:
    source = progress(0)["sources"][0]
    shown = with_progress(
        QueryFigures(name="q"),
        progress(0, inputRowsPerSecond=float("nan"), sources=[source | {"inputRowsPerSecond": "Infinity"}] * 30),
    )
    assert shown.input_rate == 0.0
    assert len(shown.sources) == MAX_PARTS


@pytest.mark.parametrize(
    ("end", "latest", "backlog"),
    [
        (5, 9, 4),
        ("5", "9", 4),
        ({"logOffset": 3}, None, None),
        (None, {"t": {"0": 4}}, 4),
        ("x", "y", None),
        ({"t": {"0": 9}}, {"t": {"0": 4}}, 0),
        (True, True, None),
    ],
)
def test_the_backlog_is_what_the_source_has_beyond_the_batch(end: object, latest: object, backlog: int | None) -> None:
    assert backlog_of(end, latest) == backlog


def test_queries_are_followed_once_each_and_reported_when_they_change() -> None:
    reports: list[tuple[QueryFigures, ...]] = []
    queries = ProgramQueries(reports.append)
    queries.stop(warn=True)  # nothing is there: no thread, no warning
    queries = ProgramQueries(reports.append)
    one, other = FakeQuery("a", "named"), FakeQuery("b")
    for query in (one, one, other):
        queries.add(query)

    queries.observe()
    queries.observe()
    assert [(figures.name, figures.batch) for figures in reports[-1]] == [("named", 0), ("query-2", 0)]
    seen = len(reports)
    queries.observe()
    assert len(reports) == seen, "nothing has changed"

    one.isActive, one.error = False, ValueError("no more\nat a.b")
    queries.observe()
    assert [(figures.active, figures.error) for figures in reports[-1]] == [(False, "no more"), (True, "")]
    queries.stop(warn=False)


def test_a_batch_of_a_program_is_shown_while_it_runs_and_without_a_message_at_every_look() -> None:
    """The interval of its trigger is not known: it is not late by its time."""
    reports: list[tuple[QueryFigures, ...]] = []
    now_s = [0.0]
    queries = ProgramQueries(reports.append, now_s=lambda: now_s[0])
    queries.stop(warn=True)
    query = FakeQuery("a", "named")
    query.busy = True
    queries.add(query)
    queries.observe()
    seen = len(reports)
    for second in range(100):
        now_s[0] = float(second)
        queries.observe()

    assert len(reports) == seen
    assert reports[-1][0].running_since_ms > 0
    query.isActive = False
    queries.observe()
    assert (reports[-1][0].active, reports[-1][0].running_since_ms) == (False, 0)
    queries.stop(warn=False)


def test_a_program_that_ends_stops_its_queries_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[tuple[QueryFigures, ...]] = []
    queries = ProgramQueries(reports.append)
    left, done = FakeQuery("a", "left"), FakeQuery("b", "done")
    done.isActive = False
    for query in (left, done):
        queries.add(query)

    queries.stop(warn=True)

    assert (left.stops, done.stops) == (1, 0)
    assert "the query 'left' was still running when the program ended" in capsys.readouterr().err
    assert [figures.active for figures in reports[-1]] == [False, False]
    queries.add(FakeQuery("c"))
    queries.observe()
    assert len(reports[-1]) == 2, "nothing is reported after the end"


def test_a_query_that_does_not_stop_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Stuck(FakeQuery):
        def stop(self) -> None:
            released.wait()

    monkeypatch.setattr(program_queries, "STOP_S", 0.05)
    queries = ProgramQueries(lambda _: None)
    queries.add(Stuck("a"))
    queries.stop(warn=False)
    released.set()


def test_a_lost_session_ends_its_queries_and_other_errors_do_not() -> None:
    class Silent(FakeQuery):
        @property
        def lastProgress(self) -> Any:  # noqa: N802 - PySpark's name
            raise self.error or RuntimeError("no answer")

    class SessionLost(Exception):
        def getCondition(self) -> str:  # noqa: N802 - PySpark's name
            return "INVALID_HANDLE.SESSION_CLOSED"

    reports: list[tuple[QueryFigures, ...]] = []
    queries = ProgramQueries(reports.append)
    query = Silent("a")
    queries.add(query)
    queries.observe()
    assert reports[-1][0].active
    query.error = SessionLost()
    queries.observe()
    assert not reports[-1][0].active
    queries.stop(warn=False)


def test_the_activity_of_a_program_counts_its_active_queries() -> None:
    program = Program(file="s.py")
    one = QueryFigures(name="q")
    assert activity(program, ()) == "running s.py"
    assert activity(program, (one,)) == "running s.py with 1 streaming query"
    assert activity(program, (one, one)) == "running s.py with 2 streaming queries"

"""Metrics of streaming queries: of those that run now, and of no others."""

from __future__ import annotations

from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.unit.jobmaster.job_harness import JOB, SMALL, JobHarness

from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.jobmaster.reporting.query_metrics import MAX_QUERIES
from flintlock.jobmaster.reporting.snapshot import active_queries
from flintlock.model.ids import JobId
from flintlock.model.streaming.query_figures import OperatorFigures, QueryFigures, SourceFigures
from flintlock.model.tasks import TaskMetrics, TaskProgress, TaskRunning

SHOWN = QueryFigures(
    name="files",
    batch=7,
    started_ms=100_000,
    input_rows=6,
    input_rate=3.0,
    processed_rate=2.0,
    duration_ms=2000,
    durations={"addBatch": 1900},
    watermark="1970-01-01T00:01:00.000Z",
    sources=(SourceFigures(description="rate", input_rows=6, input_rate=3.0, processed_rate=2.0, backlog=40),),
    operators=(OperatorFigures(name="dedupe", rows=9, memory=1000, late_rows=2),),
    behind_since_ms=30_000,
)
LABELS = {"job": JOB, "name": "clicks", "query": "files", "uid": "files-v1"}
UIDS = {"files": "files-v1"}


def test_each_figure_is_a_gauge_of_job_and_query() -> None:
    registry = CollectorRegistry()
    metrics = JobMasterMetrics(registry)
    metrics.queries.show(JOB, "clicks", lambda: [SHOWN], UIDS)

    found = {
        name: registry.get_sample_value(f"flintlock_query_{name}", LABELS)
        for name in ("batch", "input_rows_per_second", "processed_rows_per_second", "batch_seconds", "backlog",
                     "watermark_seconds", "state_rows", "state_bytes", "late_rows", "behind_seconds",
                     "batch_started_seconds", "batch_input_rows")
    }  # fmt: skip
    assert list(found.values()) == [7, 3, 2, 2, 40, 60, 9, 1000, 2, 72, 100, 6]
    assert registry.get_sample_value("flintlock_query_batch_part_seconds", {**LABELS, "part": "addBatch"}) == 1.9
    of_source = {
        name: registry.get_sample_value(f"flintlock_query_source_{name}", {**LABELS, "source": "0"})
        for name in ("input_rows", "input_rows_per_second", "processed_rows_per_second", "backlog")
    }
    assert list(of_source.values()) == [6, 3, 2, 40]
    assert registry.get_sample_value("flintlock_queries") == 1

    metrics.queries.forget(JOB)
    assert registry.get_sample_value("flintlock_query_batch", LABELS) is None


def test_what_is_not_known_has_no_series_and_one_series_exists_once() -> None:
    registry = CollectorRegistry()
    unknown = structs.replace(SHOWN, sources=(), watermark="", batch=8)
    JobMasterMetrics(registry).queries.show(JOB, "clicks", lambda: [SHOWN, unknown, QueryFigures(name="new")], UIDS)

    assert registry.get_sample_value("flintlock_query_batch", LABELS) == 8
    assert registry.get_sample_value("flintlock_query_backlog", LABELS) is None
    assert registry.get_sample_value("flintlock_query_watermark_seconds", LABELS) is None
    assert registry.get_sample_value("flintlock_query_batch", LABELS | {"query": "new"}) is None


def test_a_first_batch_that_hangs_is_shown_as_behind_and_nothing_else_of_it() -> None:
    registry = CollectorRegistry()
    hanging = QueryFigures(name="files", behind_since_ms=30_000, running_since_ms=30_000, running_ms=90_000)
    JobMasterMetrics(registry).queries.show(JOB, "clicks", lambda: [hanging], UIDS)

    assert registry.get_sample_value("flintlock_query_behind_seconds", LABELS) == 90
    assert registry.get_sample_value("flintlock_query_running_since_seconds", LABELS) == 30
    assert registry.get_sample_value("flintlock_query_batch", LABELS) is None
    assert registry.get_sample_value("flintlock_queries") == 1


def test_a_watermark_that_no_event_has_moved_has_no_series() -> None:
    """Spark's is the beginning of 1970 then: it would look like an event of that time."""
    registry = CollectorRegistry()
    first = structs.replace(SHOWN, watermark="1970-01-01T00:00:00.000Z")
    JobMasterMetrics(registry).queries.show(JOB, "clicks", lambda: [first], UIDS)

    assert registry.get_sample_value("flintlock_query_batch", LABELS) == 7
    assert registry.get_sample_value("flintlock_query_watermark_seconds", LABELS) is None


def test_the_number_of_series_has_a_limit() -> None:
    """The queries of the jobs that began first are shown; those of a program have no uid."""
    registry = CollectorRegistry()
    queries = JobMasterMetrics(registry).queries
    many = [structs.replace(SHOWN, name=f"q{number}") for number in range(MAX_QUERIES)]
    queries.show(JobId("b" * 32), "script", lambda: many)
    queries.show(JOB, "clicks", lambda: [SHOWN], UIDS)

    last = {"job": "b" * 32, "name": "script", "query": f"q{MAX_QUERIES - 1}", "uid": ""}
    assert registry.get_sample_value("flintlock_query_batch", last) == 7
    assert registry.get_sample_value("flintlock_query_batch", LABELS) is None
    assert registry.get_sample_value("flintlock_queries") == MAX_QUERIES + 1


def test_only_queries_of_running_attempts_are_active() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.run_region()
    harness.report(TaskRunning())
    ended = structs.replace(SHOWN, name="ended", active=False)
    harness.report(TaskProgress(metrics=TaskMetrics(), queries=(SHOWN, ended)))
    assert active_queries(harness.job) == [SHOWN]
    harness.fail()
    assert active_queries(harness.job) == []

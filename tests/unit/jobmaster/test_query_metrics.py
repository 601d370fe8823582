"""Metrics of streaming queries: of those that run now, and of no others."""

from __future__ import annotations

from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.unit.jobmaster.job_harness import JOB, SMALL, JobHarness

from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.jobmaster.reporting.snapshot import active_queries
from flintlock.model.streaming.query_figures import OperatorFigures, QueryFigures, SourceFigures
from flintlock.model.tasks import TaskMetrics, TaskProgress, TaskRunning

SHOWN = QueryFigures(
    name="files",
    batch=7,
    started_ms=100_000,
    input_rate=3.0,
    processed_rate=2.0,
    duration_ms=2000,
    durations={"addBatch": 1900},
    watermark="1970-01-01T00:01:00.000Z",
    sources=(SourceFigures(description="rate", input_rate=3.0, backlog=40),),
    operators=(OperatorFigures(name="dedupe", rows=9, memory=1000, late_rows=2),),
    behind_since_ms=30_000,
)
LABELS = {"job": JOB, "name": "clicks", "query": "files"}


def test_each_figure_is_a_gauge_of_job_and_query() -> None:
    registry = CollectorRegistry()
    metrics = JobMasterMetrics(registry)
    metrics.queries.show(JOB, "clicks", lambda: [SHOWN])

    found = {
        name: registry.get_sample_value(f"flintlock_query_{name}", LABELS)
        for name in ("batch", "input_rows_per_second", "processed_rows_per_second", "batch_seconds", "backlog",
                     "watermark_seconds", "state_rows", "state_bytes", "late_rows", "behind_seconds")
    }  # fmt: skip
    assert list(found.values()) == [7, 3, 2, 2, 40, 60, 9, 1000, 2, 72]
    assert registry.get_sample_value("flintlock_query_batch_part_seconds", {**LABELS, "part": "addBatch"}) == 1.9
    assert registry.get_sample_value("flintlock_query_source_backlog", {**LABELS, "source": "0"}) == 40

    metrics.queries.forget(JOB)
    assert registry.get_sample_value("flintlock_query_batch", LABELS) is None


def test_what_is_not_known_has_no_series_and_one_series_exists_once() -> None:
    registry = CollectorRegistry()
    unknown = structs.replace(SHOWN, sources=(), watermark="", batch=8)
    JobMasterMetrics(registry).queries.show(JOB, "clicks", lambda: [SHOWN, unknown, QueryFigures(name="new")])

    assert registry.get_sample_value("flintlock_query_batch", LABELS) == 8
    assert registry.get_sample_value("flintlock_query_backlog", LABELS) is None
    assert registry.get_sample_value("flintlock_query_watermark_seconds", LABELS) is None
    assert registry.get_sample_value("flintlock_query_batch", LABELS | {"query": "new"}) is None


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

"""Metrics of streaming queries, read from the JobMasters of this process for each scrape: nothing becomes stale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.model.ids import JobId
from flintlock.model.streaming.query_figures import QueryFigures

_LABELS: Final = ("job", "name", "query")
_FAMILIES: Final = (
    ("flintlock_query_batch", "Number of the latest batch."),
    ("flintlock_query_input_rows_per_second", "Rows that arrived."),
    ("flintlock_query_processed_rows_per_second", "Rows that were processed while the latest batch ran."),
    ("flintlock_query_batch_seconds", "Duration of the latest batch."),
    ("flintlock_query_backlog", "What waits in the sources that say so."),
    ("flintlock_query_watermark_seconds", "The watermark, as a Unix time."),
    ("flintlock_query_state_rows", "Rows of the state."),
    ("flintlock_query_state_bytes", "Memory of the state."),
    ("flintlock_query_late_rows", "Rows of the latest batch that came too late."),
    ("flintlock_query_behind_seconds", "For how long the query has been falling behind."),
)


class QueryMetrics(Collector):
    """The active queries of the jobs that this process leads, as they are when they are asked for."""

    def __init__(self) -> None:
        self._shown: Final[dict[JobId, tuple[str, Callable[[], Iterable[QueryFigures]]]]] = {}

    def show(self, job_id: JobId, name: str, queries: Callable[[], Iterable[QueryFigures]]) -> None:
        """Show the queries that this returns, until the job is forgotten."""
        self._shown[job_id] = (name, queries)

    def forget(self, job_id: JobId) -> None:
        """Show nothing of a job any more: it has ended, or another JobManager leads it."""
        self._shown.pop(job_id, None)

    def collect(self) -> Iterator[Metric]:
        """Return the families of all queries that have run a batch."""
        values = [GaugeMetricFamily(name, text, labels=_LABELS) for name, text in _FAMILIES]
        parts = GaugeMetricFamily(
            "flintlock_query_batch_part_seconds", "Parts of the latest batch's duration.", labels=(*_LABELS, "part")
        )
        arrived = GaugeMetricFamily(
            "flintlock_query_source_input_rows_per_second", "Rows that arrived.", labels=(*_LABELS, "source")
        )
        waiting = GaugeMetricFamily(
            "flintlock_query_source_backlog", "What waits in a source that says so.", labels=(*_LABELS, "source")
        )
        for labels, query in self._active():
            for family, value in zip(values, _values_of(query), strict=True):
                if value is not None:
                    family.add_metric(labels, value)
            for part, ms in query.durations.items():
                parts.add_metric([*labels, part], ms / 1000)
            for number, source in enumerate(query.sources):
                arrived.add_metric([*labels, str(number)], source.input_rate)
                if source.backlog is not None:
                    waiting.add_metric([*labels, str(number)], source.backlog)
        yield from (*values, parts, arrived, waiting)

    def _active(self) -> Iterator[tuple[list[str], QueryFigures]]:
        for job_id, (name, queries) in list(self._shown.items()):
            named = {query.name: query for query in queries() if query.batch >= 0}
            for query in named.values():  # of queries of the same name the latest: a series exists once
                yield [job_id, name, query.name], query


def _values_of(query: QueryFigures) -> Iterable[float | None]:
    """Return the values of a query in the order of `_FAMILIES`; None where it has none."""
    return (
        query.batch,
        query.input_rate,
        query.processed_rate,
        query.duration_ms / 1000,
        query.backlog,
        _timestamp(query.watermark),
        query.state_rows,
        query.state_bytes,
        query.late_rows,
        query.behind_ms / 1000,
    )


def _timestamp(watermark: str) -> float | None:
    try:
        return datetime.fromisoformat(watermark).timestamp()
    except ValueError:
        return None

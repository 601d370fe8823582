"""Metrics of streaming queries, read from the JobMasters of this process for each scrape: nothing becomes stale.

The number of series has a limit. The queries of the jobs that were started first are shown, so that no series comes and
goes with later jobs; `flintlock_queries` counts all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.model.ids import JobId
from flintlock.model.streaming.query_figures import QueryFigures

MAX_QUERIES: Final = 200
"""The queries of one scrape: each has some twenty series, and four for each of its sources."""

MAX_DURATIONS: Final = 20
"""The parts of a batch's duration that are shown; Spark has less."""

_LABELS: Final = ("job", "name", "query", "uid")
_FAMILIES: Final = (
    ("flintlock_query_batch", "Number of the latest batch."),
    ("flintlock_query_batch_started_seconds", "When the latest batch began, as a Unix time."),
    ("flintlock_query_batch_input_rows", "Rows of the latest batch."),
    ("flintlock_query_input_rows_per_second", "Rows that arrived."),
    ("flintlock_query_processed_rows_per_second", "Rows that were processed while the latest batch ran."),
    ("flintlock_query_batch_seconds", "Duration of the latest batch."),
    ("flintlock_query_backlog", "What waits in the sources that say so."),
    ("flintlock_query_watermark_seconds", "The watermark, as a Unix time."),
    ("flintlock_query_state_rows", "Rows of the state."),
    ("flintlock_query_state_bytes", "Memory of the state."),
    ("flintlock_query_late_rows", "Rows of the latest batch that came too late."),
    ("flintlock_query_behind_seconds", "For how long the query has been falling behind."),
    ("flintlock_query_running_since_seconds", "Since when a batch runs that is not committed yet, as a Unix time."),
)


_SOURCE_FAMILIES: Final = (
    ("input_rows", "Rows of the latest batch that came from a source."),
    ("input_rows_per_second", "Rows that arrived."),
    ("processed_rows_per_second", "Rows that were processed while the latest batch ran."),
    ("backlog", "What waits in a source that says so."),
)


class _Shown(NamedTuple):
    """A job whose queries are shown."""

    name: str
    queries: Callable[[], Iterable[QueryFigures]]
    uids: Mapping[str, str]


class QueryMetrics(Collector):
    """The active queries of the jobs that this process leads, as they are when they are asked for."""

    def __init__(self) -> None:
        self._shown: Final[dict[JobId, _Shown]] = {}

    def show(
        self,
        job_id: JobId,
        name: str,
        queries: Callable[[], Iterable[QueryFigures]],
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Show the queries that this returns, until the job is forgotten. `uids`: of a graph, by name of the query."""
        self._shown[job_id] = _Shown(name, queries, uids)

    def forget(self, job_id: JobId) -> None:
        """Show nothing of a job any more: it has ended, or another JobManager leads it."""
        self._shown.pop(job_id, None)

    def collect(self) -> Iterator[Metric]:
        """Return the families of all queries that have begun a batch."""
        values = [GaugeMetricFamily(name, text, labels=_LABELS) for name, text in _FAMILIES]
        parts = GaugeMetricFamily(
            "flintlock_query_batch_part_seconds", "Parts of the latest batch's duration.", labels=(*_LABELS, "part")
        )
        of_sources = [
            GaugeMetricFamily(f"flintlock_query_source_{name}", text, labels=(*_LABELS, "source"))
            for name, text in _SOURCE_FAMILIES
        ]
        active = [*self._active()]
        for labels, query in active[:MAX_QUERIES]:
            for family, value in zip(values, _values_of(query), strict=True):
                if value is not None:
                    family.add_metric(labels, value)
            for part, ms in sorted(query.durations.items())[:MAX_DURATIONS]:
                parts.add_metric([*labels, part], ms / 1000)
            for number, source in enumerate(query.sources):
                figures = (source.input_rows, source.input_rate, source.processed_rate, source.backlog)
                for family, value in zip(of_sources, figures, strict=True):
                    if value is not None:
                        family.add_metric([*labels, str(number)], value)
        count = GaugeMetricFamily(
            "flintlock_queries", "Streaming queries that run and have begun a batch.", value=len(active)
        )
        yield from (count, *values, parts, *of_sources)

    def _active(self) -> Iterator[tuple[list[str], QueryFigures]]:
        for job_id, job in list(self._shown.items()):
            named = {query.name: query for query in job.queries() if query.batch >= 0 or query.running_since_ms}
            for query in named.values():  # of queries of the same name the latest: a series exists once
                yield [job_id, job.name, query.name, job.uids.get(query.name, "")], query


def _values_of(query: QueryFigures) -> Iterable[float | None]:
    """Return the values of a query in the order of `_FAMILIES`; None where it has none."""
    behind_s = query.behind_ms / 1000
    running_since_s = query.running_since_ms / 1000 if query.running_since_ms else None
    if query.batch < 0:  # the first one runs
        return (*[None] * (len(_FAMILIES) - 2), behind_s, running_since_s)
    return (
        query.batch,
        query.started_ms / 1000,
        query.input_rows,
        query.input_rate,
        query.processed_rate,
        query.duration_ms / 1000,
        query.backlog,
        _timestamp(query.watermark),
        query.state_rows,
        query.state_bytes,
        query.late_rows,
        behind_s,
        running_since_s,
    )


def _timestamp(watermark: str) -> float | None:
    """Return a watermark as a Unix time; None if there is none: Spark's before the first event is 1970."""
    try:
        return datetime.fromisoformat(watermark).timestamp() or None
    except ValueError:
        return None

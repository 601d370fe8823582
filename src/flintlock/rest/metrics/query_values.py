"""The figures of the streaming queries that a step is part of, by id, for Flink's tools. Pure.

Of queries that run now, by their latest batches; Prometheus has them as gauges (`jobmaster.reporting.query_metrics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from flintlock.api.queries import QueryInfo, QuerySource
from flintlock.rest.vertices.translate import SubtaskView
from flintlock.rest.vertices.watermarks import (
    INPUT_WATERMARK,
    active_queries,
    input_watermark_ms,
    is_streaming_source,
    runs_a_query,
    watermark_ms,
)

#: These are known of the first batch before it is committed.
_RUNNING: Final[dict[str, Callable[[QueryInfo], float | None]]] = {
    "behindTime": lambda query: query.behind_ms,
    "runningSince": lambda query: query.running_since_ms or None,
}
#: Times and durations are in milliseconds, as Flink's are, memory is in bytes.
_FIGURES: Final[dict[str, Callable[[QueryInfo], float | None]]] = {
    "batch": lambda query: query.batch,
    "batchStarted": lambda query: query.started_ms,
    "batchDuration": lambda query: query.duration_ms,
    "inputRows": lambda query: query.input_rows,
    "inputRowsPerSecond": lambda query: query.input_rate,
    "processedRowsPerSecond": lambda query: query.processed_rate,
    "backlog": lambda query: query.backlog,
    "watermark": lambda query: watermark_ms(query.watermark),
    "stateRows": lambda query: query.state_rows,
    "stateMemory": lambda query: query.state_bytes,
    "lateRows": lambda query: query.late_rows,
    **_RUNNING,
}
_SOURCE_FIGURES: Final[dict[str, Callable[[QuerySource], float | None]]] = {
    "inputRows": lambda source: source.input_rows,
    "inputRowsPerSecond": lambda source: source.input_rate,
    "processedRowsPerSecond": lambda source: source.processed_rate,
    "backlog": lambda source: source.backlog,
}


def query_values(view: SubtaskView) -> dict[str, float]:
    """Return what is known of the queries that a step is part of, by Flink's names where Flink has one.

    A source has its rates and what waits in it, if all sources of the query are this step. The output of a region, or
    a program, has all figures of its query, or queries.
    """
    active = active_queries(view)
    queries = [query for query in active if query.batch >= 0 or query.running_since_ms]
    values: dict[str, float] = {}
    at = input_watermark_ms(view, active)
    if at is not None:
        values[INPUT_WATERMARK] = at
    if not runs_a_query(view):  # a program
        names = Counter(query.name for query in queries)
        for query in queries:
            own = query.name if names[query.name] == 1 else query.run_id
            values |= _of_query(query, f"query.{own.replace(',', '_')}")
        return values
    for query in queries:  # one
        if is_streaming_source(view.vertex):
            values |= _of_source(view, query)
        if view.vertex.name in view.region.outputs:
            values |= _of_query(query, "query")
    return values


def _of_source(view: SubtaskView, query: QueryInfo) -> dict[str, float]:
    if sum(is_streaming_source(view.job.graph.vertex(name)) for name in view.region.steps) != 1:
        return {}  # Spark does not say which step one of its sources belongs to
    values: dict[str, float | None] = {
        "numRecordsInPerSecond": sum(source.input_rate for source in query.sources),
        "numRecordsOutPerSecond": sum(source.processed_rate for source in query.sources),
        "pendingRecords": query.backlog,
        "currentOutputWatermark": watermark_ms(query.watermark),
    }
    return {name: value for name, value in values.items() if value is not None}


def _of_query(query: QueryInfo, prefix: str) -> dict[str, float]:
    """Return all figures of a query."""
    known = _FIGURES if query.batch >= 0 else _RUNNING
    found: dict[str, float | None] = {f"{prefix}.{name}": of(query) for name, of in known.items()}
    found |= {f"{prefix}.duration.{part}": ms for part, ms in query.durations.items()}
    for number, source in enumerate(query.sources):
        found |= {f"{prefix}.source.{number}.{name}": of(source) for name, of in _SOURCE_FIGURES.items()}
    return {name: value for name, value in found.items() if value is not None}

"""The watermarks of steps: those that Spark reports of the query that a step is planned into. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from flintlock.api.queries import QueryInfo
from flintlock.model.jobgraph import JobVertex
from flintlock.model.operations import Source
from flintlock.rest.jobs.queries import queries_of
from flintlock.rest.vertices.translate import SubtaskView

INPUT_WATERMARK: Final = "currentInputWatermark"
"""Flink's metric of it."""

NO_WATERMARK: Final = -(1 << 63)
"""Flink's value, in milliseconds, of a watermark that nothing has moved yet. Spark's is the beginning of 1970."""


def active_queries(view: SubtaskView) -> tuple[QueryInfo, ...]:
    """Return the queries that run in the region of a step now, by their latest batches."""
    return tuple(query for query in queries_of(view.job, view.region) if query.active)


def watermark_ms(text: str) -> int | None:
    """Return a watermark as Spark writes it, in milliseconds since 1970; None if the query has none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000) or NO_WATERMARK


def is_streaming_source(step: JobVertex) -> bool:
    """Return whether the step is a source of its query: a watermark comes out of it, and into all other steps."""
    return isinstance(step.operation, Source) and step.operation.stream


def runs_a_query(view: SubtaskView) -> bool:
    """Return whether the step is planned into a query of its own region: not so the queries that a program starts."""
    return any(view.job.graph.vertex(name).query is not None for name in view.region.outputs)


def input_watermark_ms(view: SubtaskView, active: Iterable[QueryInfo]) -> int | None:
    """Return the watermark with which a step of a streaming graph works, of its active queries; None where none is."""
    if is_streaming_source(view.vertex) or not runs_a_query(view):
        return None
    found = (watermark_ms(query.watermark) for query in active)
    return next((at for at in found if at is not None), None)

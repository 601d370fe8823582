"""From the progress that Spark reports of a streaming query to what is shown of it. Reads the JSON form."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

from msgspec import structs

from flintlock.model.checking.problems import abbreviated
from flintlock.model.streaming.query_figures import (
    MAX_PARTS,
    MAX_TEXT,
    OperatorFigures,
    QueryFigures,
    SourceFigures,
    since_behind,
    with_running,
    without_data,
)


def with_progress(known: QueryFigures, progress: Mapping[str, Any]) -> QueryFigures:
    """Return the figures of a query after this progress; the same object if it is not of a later batch.

    Of a trigger without a batch, nothing is shown. Raises KeyError, TypeError or ValueError for an unknown form.
    """
    durations = _mapping(progress.get("durationMs"))
    if "addBatch" not in durations or int(progress["batchId"]) <= known.batch:
        return known
    sources = tuple(map(_source, _mappings(progress.get("sources"))))
    latest = QueryFigures(
        name=known.name,
        query_id=str(progress.get("id", known.query_id)),
        run_id=str(progress.get("runId", known.run_id)),
        batch=int(progress["batchId"]),
        started_ms=int(datetime.fromisoformat(str(progress["timestamp"])).timestamp() * 1000),
        interval_ms=known.interval_ms,
        input_rows=int(progress.get("numInputRows") or sum(source.input_rows for source in sources)),
        input_rate=_rate(progress.get("inputRowsPerSecond")) or sum(source.input_rate for source in sources),
        processed_rate=_rate(progress.get("processedRowsPerSecond"))
        or sum(source.processed_rate for source in sources),
        duration_ms=int(durations.get("triggerExecution", 0)),
        durations={str(part): int(ms) for part, ms in durations.items()},
        watermark=str(_mapping(progress.get("eventTime")).get("watermark", "")),
        sources=sources,
        operators=tuple(map(_operator, _mappings(progress.get("stateOperators")))),
    )
    return structs.replace(latest, behind_since_ms=since_behind(known if known.batch >= 0 else None, latest))


class QueryObserver:
    """Looks at one query again and again; knows since when it has seen the batch run that runs now, or none."""

    def __init__(
        self,
        *,
        now_s: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._now_s: Final = now_s
        self._clock_ms: Final = clock_ms
        self._after = -1  # the batch after which the one that runs was begun
        self._since_ms = 0  # 0: none runs
        self._since_s = 0.0  # the same by the clock that is not set
        self._quiet: tuple[int, float] | None = None  # the two times since which the sources have had no rows

    def observe(self, known: QueryFigures, query: Any) -> tuple[QueryFigures, Any]:
        """Return the figures of a query as it is now, and Spark's progress of its latest batch; None before the first.

        The figures are the same object if there is nothing to report. Raises what the calls to Spark raise.
        """
        status: Any = query.status  # asked first: a batch that ends meanwhile does not lend its time to the next one
        last: Any = query.lastProgress
        figures = known
        if last is not None:
            with suppress(KeyError, TypeError, ValueError):  # figures in a form that is not known fail no query
                figures = with_progress(known, json.loads(last.json))
        if not status["isDataAvailable"]:
            self._since_ms = 0
            if self._quiet is None:
                self._quiet = self._clock_ms(), self._now_s()
            quiet_ms = round((self._now_s() - self._quiet[1]) * 1000)
            return without_data(figures, self._quiet[0], quiet_ms), last
        self._quiet = None
        if not status["isTriggerActive"]:
            self._since_ms = 0
        elif not self._since_ms or self._after != figures.batch:
            self._after, self._since_ms, self._since_s = figures.batch, self._clock_ms(), self._now_s()
        running_ms = round((self._now_s() - self._since_s) * 1000) if self._since_ms else 0
        return with_running(figures, self._since_ms, running_ms), last


def _source(source: Mapping[str, Any]) -> SourceFigures:
    return SourceFigures(
        description=abbreviated(str(source.get("description", "")), MAX_TEXT),
        input_rows=int(source.get("numInputRows") or 0),
        input_rate=_rate(source.get("inputRowsPerSecond")),
        processed_rate=_rate(source.get("processedRowsPerSecond")),
        backlog=backlog_of(source.get("endOffset"), source.get("latestOffset")),
    )


def _operator(operator: Mapping[str, Any]) -> OperatorFigures:
    return OperatorFigures(
        name=abbreviated(str(operator.get("operatorName", "")), MAX_TEXT),
        rows=int(operator.get("numRowsTotal") or 0),
        updated_rows=int(operator.get("numRowsUpdated") or 0),
        memory=int(operator.get("memoryUsedBytes") or 0),
        late_rows=int(operator.get("numRowsDroppedByWatermark") or 0),
    )


def backlog_of(end: object, latest: object) -> int | None:
    """Return how far the end of a batch is behind the latest offset of its source; None if they are no numbers.

    Numbers may be nested, as Kafka's are: by topic and partition. A number that the batch has not begun with counts
    from 0.
    """
    ends, latests = dict(_numbers(_parsed(end))), dict(_numbers(_parsed(latest)))
    if not latests or (end is not None and not ends):
        return None
    return sum(max(0, value - ends.get(place, 0)) for place, value in latests.items())


def _parsed(offset: object) -> object:
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


def _numbers(offset: object, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the numbers of an offset, each with its place in it."""
    if isinstance(offset, Mapping):
        for key, value in cast("Mapping[str, object]", offset).items():
            yield from _numbers(value, (*place, str(key)))
    elif isinstance(offset, int) and not isinstance(offset, bool):
        yield place, offset


def _rate(value: object) -> float:
    """Return a rate as a number: Spark writes NaN and Infinity for batches that took no time."""
    rate = float(value) if isinstance(value, int | float) else 0.0
    return rate if math.isfinite(rate) else 0.0


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _mappings(values: object) -> list[Mapping[str, Any]]:
    return [_mapping(one) for one in cast("list[object]", values)[:MAX_PARTS]] if isinstance(values, list) else []

"""From the progress that Spark reports of a streaming query to figures. Imports no PySpark: it reads the JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec import structs

from flintlock.model.checking.problems import abbreviated
from flintlock.model.streaming.checkpoints import MAX_BATCHES, MAX_OFFSET, BatchFigures, QueryProgress


def figures_of(progress: Mapping[str, Any]) -> BatchFigures | None:
    """Return the figures of a batch; None of a trigger that ran none."""
    durations = _mapping(progress.get("durationMs"))
    if "addBatch" not in durations:
        return None
    operators = [_mapping(operator) for operator in progress.get("stateOperators") or ()]
    sources = [_mapping(source) for source in progress.get("sources") or ()]
    return BatchFigures(
        batch=int(progress["batchId"]),
        started_ms=int(datetime.fromisoformat(str(progress["timestamp"])).timestamp() * 1000),
        duration_ms=int(durations.get("triggerExecution", 0)),
        input_rows=int(progress.get("numInputRows") or sum(int(source.get("numInputRows", 0)) for source in sources)),
        state_rows=sum(int(operator.get("numRowsTotal", 0)) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators),
        file_bytes=_metric(operators, "rocksdbSstFileSize"),
        written_bytes=_metric(operators, "rocksdbBytesCopied"),
        offsets=tuple(_text(source.get("endOffset")) for source in sources),
        watermark=str(_mapping(progress.get("eventTime")).get("watermark", "")),
    )


def with_batch(known: QueryProgress, batch: BatchFigures | None) -> QueryProgress:
    """Return the progress with one more batch, if it is a new one."""
    if batch is None or (known.batches and batch.batch <= known.batches[-1].batch):
        return known
    earlier = (structs.replace(one, offsets=()) for one in known.batches)
    return structs.replace(known, batches=(*earlier, batch)[-MAX_BATCHES:])


def _metric(operators: Iterable[Mapping[str, Any]], name: str) -> int:
    """Return the sum of a metric that only some state stores have."""
    return sum(int(_mapping(operator.get("customMetrics")).get(name, 0)) for operator in operators)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _text(offset: object) -> str:
    return abbreviated(offset if isinstance(offset, str) else msgspec.json.encode(offset).decode(), MAX_OFFSET)

"""Starts the query of a streaming region: with its output mode, its trigger, its checkpoint and its sink."""

from __future__ import annotations

from typing import Any

from flintlock.model.jobgraph import JobVertex
from flintlock.model.operations import ForeachBatch, Sink
from flintlock.model.streaming.streams import StreamQuery, TriggerKind
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError


def start_query(frame: Any, vertex: JobVertex, checkpoint: str, function: Any = None, *, once: bool = False) -> Any:
    """Start the query of a sink in its checkpoint, or only for the batch that is planned there (`once`).

    `function` is that for batches, where the sink is one. Raises what Spark raises, TaskError.
    """
    query, operation = vertex.query or StreamQuery(), vertex.operation
    writer: Any = frame.writeStream.queryName(str(vertex.name)).outputMode(query.output_mode.value)
    writer = writer.option("checkpointLocation", checkpoint)
    match query.trigger.kind:
        case _ if once:
            writer = writer.trigger(once=True)
        case TriggerKind.AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        case TriggerKind.REAL_TIME:
            writer = writer.trigger(realTime=query.trigger.interval)
        case TriggerKind.PROCESSING_TIME if query.trigger.interval:
            writer = writer.trigger(processingTime=query.trigger.interval)
        case TriggerKind.PROCESSING_TIME:
            pass
    match operation:
        case ForeachBatch():
            return writer.foreachBatch(function).start()
        case Sink():
            return _started(writer, operation)
        case _:
            raise TaskError(FailureKind.INTERNAL, f"a {type(operation).__name__} is not a query", vertex.name)


def start_comparison(frame: Any, vertex: JobVertex, checkpoint: str) -> Any:
    """Start the query of a sink for the batch that is planned in a checkpoint, without its sink: no row is kept."""
    writer: Any = frame.writeStream.outputMode((vertex.query or StreamQuery()).output_mode.value).format("noop")
    return writer.option("checkpointLocation", checkpoint).trigger(once=True).start()


def _started(writer: Any, sink: Sink) -> object:
    writer = writer.options(**sink.options)
    if sink.format is not None:
        writer = writer.format(sink.format)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if sink.table is not None:
        return writer.toTable(sink.table)
    return writer.start(*([sink.path] if sink.path is not None else []))

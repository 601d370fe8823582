"""Checks of a streaming job: which steps it may have, and what each of its sinks needs to be restarted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.jobgraph import Exchange, JobGraph, JobType, JobVertex
from flintlock.model.operations import Result, SaveMode, Sink, Source
from flintlock.model.operations.kind import is_file_format
from flintlock.model.regions import regions_of
from flintlock.model.streaming.streams import OutputMode, StreamQuery, TriggerKind

#: Formats whose output is for looking at: their queries need no uid, because nothing is lost with their state.
UNNAMED_FORMATS: Final = frozenset({"console", "noop"})
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_INTERVAL: Final = re.compile(
    r"\s*(interval\s+)?(\d+(\.\d+)?\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)
_OWN_OPTION: Final = "checkpointlocation"
#: Formats that Spark cannot write a stream to, or whose rows would not survive: what to do instead.
_REFUSED: Final = {
    "memory": "keeps its rows in the memory of the Spark driver, which other jobs share, and loses them at the first"
    " restart: write to files, try out with 'console', or use foreachBatch",
    "jdbc": "cannot be the sink of a stream: write each batch in a function (foreachBatch)",
}


def streaming_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield what is wrong with the streaming parts of a graph that is free of cycles and dangling inputs."""
    if graph.job_type is JobType.BATCH:
        for vertex in graph.vertices:
            yield from _batch_problems(vertex)
        return
    if not any(_streams(vertex) for vertex in graph.vertices):
        yield Problem(field="type", message="the job is STREAMING, but no source of it has 'stream: true'")
        return
    uids: dict[str, str] = {}
    for vertex in graph.vertices:
        yield from _step_problems(vertex)
        if vertex.query is None:
            continue
        yield from _query_problems(vertex, vertex.query)
        first = uids.setdefault(vertex.uid.lower(), vertex.name)
        if first != vertex.name:
            message = f"{vertex.uid!r} is the uid of step {first!r} already: each query has a state of its own"
            yield Problem(step=vertex.name, field="uid", message=message)
    for region in regions_of(graph):
        sink = region.outputs[0]
        if graph.vertex(sink).query is not None and not any(_streams(graph.vertex(name)) for name in region.steps):
            message = "reads from no streaming source: move it into a batch job"
            yield Problem(step=sink, field="inputs", message=message)


def _streams(vertex: JobVertex) -> bool:
    return isinstance(vertex.operation, Source) and vertex.operation.stream


def _batch_problems(vertex: JobVertex) -> Iterator[Problem]:
    """Yield the keys that only streaming jobs have."""
    if _streams(vertex):
        yield Problem(step=vertex.name, field="source", message="streams, but the job's type is BATCH")
    if vertex.operation.streams_only:
        message = "only a streaming job has batches: none of this job's sources has 'stream: true'"
        yield Problem(step=vertex.name, field=vertex.operation.kind, message=message)
    elif vertex.query is not None:
        message = "uid, outputMode and trigger are for streaming jobs: none of this job's sources has 'stream: true'"
        yield Problem(step=vertex.name, message=message)
    if vertex.watermark is not None:
        message = "only a streaming job has watermarks: none of this job's sources has 'stream: true'"
        yield Problem(step=vertex.name, field="watermark", message=message)


def _step_problems(vertex: JobVertex) -> Iterator[Problem]:
    """Yield what a step of a streaming job cannot be or have."""
    if isinstance(vertex.operation, Result):
        message = "only a batch job has results: a stream has no end. Write it with a sink"
        yield Problem(step=vertex.name, field="result", message=message)
    if vertex.exchange is Exchange.BLOCKING:
        message = "only a batch job has blocking exchanges: a stream is never complete"
        yield Problem(step=vertex.name, field="exchange", message=message)
    if vertex.cache:
        yield Problem(step=vertex.name, field="cache", message="the rows of a stream cannot be cached")
    if vertex.has_output and vertex.query is not None:
        message = "uid, outputMode and trigger belong to a sink: each sink is one query"
        yield Problem(step=vertex.name, message=message)
    if vertex.watermark is not None:
        if not vertex.has_output:
            message = "a sink has no watermark: declare it at the source, or at the step that has the column"
            yield Problem(step=vertex.name, field="watermark", message=message)
        if not vertex.watermark.column.strip():
            yield Problem(step=vertex.name, field="watermark", message="the column is empty")
        if not _INTERVAL.fullmatch(vertex.watermark.delay):
            yield Problem(step=vertex.name, field="watermark", message=_not_an_interval(vertex.watermark.delay))


def _query_problems(vertex: JobVertex, query: StreamQuery) -> Iterator[Problem]:
    step, sink = vertex.name, vertex.operation
    name = (sink.format or "").lower() if isinstance(sink, Sink) else ""
    if not query.uid and not vertex.has_output and name not in UNNAMED_FORMATS:
        message = (
            "needs a uid, such as 'uid: files-v1': offsets and state are stored under it, and found again after a"
            " restart, an upgrade or in a savepoint, even if the step is renamed"
        )
        yield Problem(step=step, field="uid", message=message)
    elif query.uid and not _UID.fullmatch(query.uid):
        message = (
            f"{abbreviated(query.uid)!r} cannot be the name of a directory everywhere: use at most 128 letters (a-z),"
            " digits, '.', '_' and '-', beginning with a letter or digit"
        )
        yield Problem(step=step, field="uid", message=message)
    interval = query.trigger.interval
    if query.trigger.kind is not TriggerKind.AVAILABLE_NOW and interval and not _INTERVAL.fullmatch(interval):
        yield Problem(step=step, field="trigger", message=_not_an_interval(interval))
    if query.trigger.kind is TriggerKind.REAL_TIME and query.output_mode is not OutputMode.UPDATE:
        yield Problem(step=step, field="trigger", message="Spark runs realTime with the output mode 'update' only")
    if isinstance(sink, Sink):
        yield from _sink_problems(vertex, sink, query, name)


def _sink_problems(vertex: JobVertex, sink: Sink, query: StreamQuery, name: str) -> Iterator[Problem]:
    step = vertex.name
    if name in _REFUSED:
        yield Problem(step=step, field="sink", message=f"the format {name!r} {_REFUSED[name]}")
    if sink.mode is not SaveMode.ERROR_IF_EXISTS:
        message = f"a stream has an output mode, not the save mode {sink.mode.value!r}: set outputMode"
        yield Problem(step=step, field="sink", message=message)
    if is_file_format(name) and query.output_mode is not OutputMode.APPEND:
        message = (
            f"files are only added to, so the output mode {query.output_mode.value!r} is not possible: use 'append'"
            " (an aggregation then needs a watermark), or foreachBatch"
        )
        yield Problem(step=step, field="outputMode", message=message)
    if any(key.lower() == _OWN_OPTION for key in sink.options):
        message = "checkpointLocation is chosen by Flintlock: it belongs to the job and the sink's uid"
        yield Problem(step=step, field="sink", message=message)


def _not_an_interval(text: str) -> str:
    return f"{abbreviated(text)!r} is not an interval, such as '10 seconds' or '1 minute 30 seconds'"

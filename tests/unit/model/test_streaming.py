"""Streaming job graphs: what is accepted, what is refused and with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.model.graphs import JOB

from flintlock.model.checking.graphcheck import problems_of
from flintlock.model.checking.jobspec import draft_graph, read_spec
from flintlock.model.files.staging import staged_sinks
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import Guarantee
from flintlock.model.regions import regions_of
from flintlock.model.streaming.streams import OutputMode, Trigger, TriggerKind, Watermark

EVENTS = {
    "source": {"format": "json", "path": "/in", "schema": "ts TIMESTAMP, k STRING", "stream": True},
    "watermark": {"column": "ts", "delay": "10 minutes"},
}
COUNTS = {"sql": "SELECT k, count(*) n FROM events GROUP BY k", "inputs": ["events"]}
FILES = {"sink": {"format": "parquet", "path": "/out"}, "inputs": ["counts"], "uid": "files-v1"}
UPSERT = {"foreachBatch": "lib.sinks:upsert", "inputs": ["counts"], "uid": "upsert-v1", "outputMode": "update"}


def drafted(steps: dict[str, Any], **job: Any) -> tuple[JobGraph, list[str]]:
    spec, problems = read_spec({"name": "clicks", "steps": steps, **job})
    assert spec is not None, problems
    graph, found = draft_graph(spec, JOB, {})
    return graph, [str(problem) for problem in (*found, *problems_of(graph))]


def of(**steps: Any) -> JobGraph:
    graph, problems = drafted({"events": EVENTS, "counts": COUNTS, **steps})
    assert not problems
    return graph


def only(steps: dict[str, Any], **job: Any) -> str:
    (problem,) = drafted(steps, **job)[1]
    return problem


def sink_problem(**changes: Any) -> str:
    return only({"events": EVENTS, "counts": COUNTS, "files": {**FILES, **changes}})


def test_a_job_with_a_streaming_source_is_a_streaming_job() -> None:
    """The type may be left out; each sink is a query with its uid, output mode and trigger."""
    graph = of(files={**FILES, "trigger": {"processingTime": "10 seconds"}}, upsert=UPSERT)

    files, upsert = graph.vertex("files").query, graph.vertex("upsert").query
    assert graph.job_type is JobType.STREAMING
    assert graph.vertex("events").watermark == Watermark(column="ts", delay="10 minutes")
    assert files is not None
    assert (files.uid, files.output_mode, files.trigger.interval) == ("files-v1", OutputMode.APPEND, "10 seconds")
    assert upsert is not None
    assert (upsert.uid, upsert.output_mode, upsert.trigger) == ("upsert-v1", OutputMode.UPDATE, Trigger())


def test_each_sink_is_a_region_of_its_own() -> None:
    """Steps that both need are in both: each query is restarted alone."""
    regions = regions_of(of(files=FILES, upsert=UPSERT))

    assert [region.steps for region in regions] == [("events", "counts", "files"), ("events", "counts", "upsert")]


def test_files_of_a_stream_are_not_staged() -> None:
    """Spark's sink log makes them exactly once; Flintlock publishes nothing for them."""
    graph = of(files=FILES, upsert=UPSERT)

    assert graph.vertex("files").guarantee is Guarantee.SINK_LOG
    assert graph.vertex("upsert").guarantee is Guarantee.BATCH_ID
    assert [staged_sinks(graph, region) for region in regions_of(graph)] == [(), ()]


def test_a_stored_streaming_graph_reads_back_equal() -> None:
    """It is persisted before it is acknowledged."""
    graph = of(files={**FILES, "trigger": {"availableNow": True}}, upsert=UPSERT)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(graph), type=JobGraph) == graph


@pytest.mark.parametrize(
    ("trigger", "kind", "interval", "ends"),
    [
        ({"processingTime": "1 minute 30 seconds"}, TriggerKind.PROCESSING_TIME, "1 minute 30 seconds", False),
        ({"availableNow": True}, TriggerKind.AVAILABLE_NOW, "", True),
        ({"realTime": "5 minutes"}, TriggerKind.REAL_TIME, "5 minutes", False),
    ],
)
def test_the_triggers_are_sparks(trigger: dict[str, Any], kind: TriggerKind, interval: str, ends: bool) -> None:
    """Only `availableNow` lets a query end by itself."""
    query = of(upsert={**UPSERT, "trigger": trigger}).vertex("upsert").query

    assert query is not None
    assert (query.trigger.kind, query.trigger.interval, query.ends) == (kind, interval, ends)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uid": None}, "step 'files', field 'uid': needs a uid, such as 'uid: files-v1': offsets and state are"),
        ({"uid": ""}, "the uid is empty"),
        ({"uid": "../x"}, "step 'files', field 'uid': '../x' cannot be the name of a directory everywhere"),
        ({"outputMode": "complete"}, "field 'outputMode': files are only added to, so the output mode 'complete'"),
        ({"trigger": {"processingTime": "soon"}}, "field 'trigger': 'soon' is not an interval, such as '10 seconds'"),
        ({"trigger": {}}, "field 'trigger': needs exactly one of processingTime, availableNow, realTime"),
        ({"trigger": {"realTime": "1 minute", "availableNow": True}}, "needs exactly one of"),
        ({"trigger": {"availableNow": False}}, "leave the trigger out for a query without an end"),
        ({"trigger": {"realTime": "1 minute"}}, "Spark runs realTime with the output mode 'update' only"),
        ({"watermark": {"column": "ts", "delay": "1 day"}}, "field 'watermark': a sink has no watermark"),
        ({"sink": {"format": "parquet", "path": "/out", "mode": "overwrite"}}, "not the save mode 'overwrite'"),
        ({"sink": {"format": "memory"}}, "the format 'memory' keeps its rows in the memory of the Spark driver"),
        ({"sink": {"format": "jdbc"}}, "cannot be the sink of a stream: write each batch in a function"),
        (
            {"sink": {"format": "parquet", "path": "/out", "options": {"checkpointLocation": "/c"}}},
            "checkpointLocation is chosen by Flintlock",
        ),
    ],
)
def test_each_mistake_in_a_query_is_explained(changes: dict[str, Any], message: str) -> None:
    """What a user reads says what to do instead."""
    problems = drafted({"events": EVENTS, "counts": COUNTS, "files": {**FILES, **changes}})[1]

    assert any(message in problem for problem in problems), problems


def test_two_queries_never_share_a_uid() -> None:
    """They would share a checkpoint directory, and one of them would die; also where a file system folds case."""
    steps = {"events": EVENTS, "counts": COUNTS, "files": FILES, "upsert": {**UPSERT, "uid": "FILES-v1"}}

    assert only(steps) == (
        "step 'upsert', field 'uid': 'FILES-v1' is the uid of step 'files' already: each query has a state of its own"
    )


@pytest.mark.parametrize("form", ["console", "noop"])
def test_a_sink_for_looking_at_needs_no_uid(form: str) -> None:
    """Its name is its uid: nothing is lost with its state."""
    graph = of(look={"sink": {"format": form}, "inputs": ["counts"], "outputMode": "complete"})

    assert graph.vertex("look").uid == "look"


def test_a_name_that_is_the_uid_of_another_query_is_refused() -> None:
    """The uid of a query without one is its name."""
    steps = {"events": EVENTS, "counts": COUNTS, "files": {**FILES, "uid": "look"}}

    assert "is the uid of step 'files' already" in only({**steps, "look": {"sink": {"format": "console"}, "inputs": ["counts"]}})  # fmt: skip # noqa: E501


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "json", "path": "/in", "stream": True}, "a streaming source of json files needs a schema"),
        (
            {"format": "text", "path": ["/in", "/more"], "stream": True},
            "a streaming source reads one path, not 2: use a pattern, or several sources",
        ),
    ],
)
def test_a_streaming_source_says_what_spark_needs(source: dict[str, Any], message: str) -> None:
    """Found before anything runs, not by Spark."""
    assert message in only({"events": {"source": source}, "counts": COUNTS, "files": FILES})


@pytest.mark.parametrize("source", [{"format": "rate"}, {"format": "socket"}, {"format": "kafka"}, {"table": "t"}])
def test_any_source_of_spark_may_stream(source: dict[str, Any]) -> None:
    """Also those of Python and of connectors: Spark knows its formats."""
    assert not drafted({"events": {"source": {**source, "stream": True}}, "counts": COUNTS, "files": FILES})[1]


def test_steps_that_only_batch_jobs_have_are_refused() -> None:
    """Results, blocking exchanges and caches need an end."""
    graph, problems = drafted(
        {
            "events": EVENTS,
            "counts": {**COUNTS, "exchange": "blocking", "cache": True},
            "files": FILES,
            "top": {"result": {}, "inputs": ["counts"]},
        }
    )

    assert graph.job_type is JobType.STREAMING
    assert problems == [
        "step 'counts', field 'exchange': only a batch job has blocking exchanges: a stream is never complete",
        "step 'counts', field 'cache': the rows of a stream cannot be cached",
        "step 'top', field 'result': only a batch job has results: a stream has no end. Write it with a sink",
    ]


def test_keys_of_a_query_at_another_step_are_refused() -> None:
    """A uid at a step in between would name nothing."""
    steps = {"events": EVENTS, "counts": {**COUNTS, "uid": "counts-v1"}, "files": FILES}

    assert only(steps) == "step 'counts': uid, outputMode and trigger belong to a sink: each sink is one query"


def test_a_sink_without_a_streaming_source_is_refused() -> None:
    """Spark could not start it as a query."""
    static = {"source": {"format": "parquet", "path": "/static"}}
    other = {"sink": {"format": "json", "path": "/other"}, "inputs": ["names"], "uid": "other"}
    steps = {"events": EVENTS, "counts": COUNTS, "files": FILES, "names": static, "other": other}

    assert only(steps) == "step 'other', field 'inputs': reads from no streaming source: move it into a batch job"


def test_a_stream_may_be_joined_with_rows_that_do_not_stream() -> None:
    """One streaming source is enough."""
    names = {"source": {"format": "parquet", "path": "/static"}}

    of(names=names, counts={**COUNTS, "inputs": ["events", "names"]}, files=FILES)


def test_type_and_sources_have_to_agree() -> None:
    """A type that is given is not changed silently."""
    batch = {"orders": {"source": {"format": "json", "path": "/in"}}, "out": {**FILES, "inputs": ["orders"]}}
    plain = {**batch, "out": {"sink": FILES["sink"], "inputs": ["orders"]}}

    assert "step 'events', field 'source': streams, but the job's type is BATCH" in drafted(
        {"events": {"source": EVENTS["source"]}, "counts": COUNTS, "files": {**FILES, "uid": None}}, type="BATCH"
    )[1]  # fmt: skip
    assert "the job is STREAMING, but no source of it has 'stream: true'" in only(plain, type="STREAMING")
    assert "uid, outputMode and trigger are for streaming jobs" in only(batch)
    assert not drafted(plain)[1]


def test_keys_of_streaming_jobs_are_refused_in_batch_jobs() -> None:
    """They would have no effect."""
    orders = {"source": {"format": "json", "path": "/in"}, "watermark": {"column": "ts", "delay": "1 day"}}
    each = {"foreachBatch": "lib:upsert", "inputs": ["orders"]}

    problems = drafted({"orders": orders, "each": each})[1]

    assert "step 'orders', field 'watermark': only a streaming job has watermarks" in problems[0]
    assert "step 'each', field 'foreachBatch': only a streaming job has batches" in problems[1]


def test_the_description_of_a_query_says_when_and_what_it_writes() -> None:
    """`flintlock info` prints it."""
    files = {**FILES, "sink": {"format": "parquet", "path": "/out", "partitionBy": ["k"]}}
    graph = of(
        files={**files, "trigger": {"processingTime": "10 seconds"}},
        upsert={**UPSERT, "trigger": {"realTime": "5 minutes"}},
        once={"sink": {"table": "t"}, "inputs": ["counts"], "uid": "once", "trigger": {"availableNow": True}},
    )

    assert [vertex.description for vertex in graph.vertices] == [
        "streaming source: json /in, watermark ts, 10 minutes late",
        "sql: SELECT k, count(*) n FROM events GROUP BY k",
        "sink: parquet /out, partitioned by k, append, every 10 seconds",
        "foreachBatch: lib.sinks:upsert, update, in real time, a checkpoint every 5 minutes",
        "sink: table t, append, once, all that is available",
    ]
    assert "without a pause" in of(files=FILES).vertex("files").description

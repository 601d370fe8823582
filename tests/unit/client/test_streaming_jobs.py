"""Streaming jobs in Python and YAML: the same graph from both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flintlock.cli.jobs.info import plan_document
from flintlock.client.authoring.job import Job
from flintlock.client.authoring.yaml_form import json_schema, read_yaml_text
from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.operations import ForeachBatch, Source
from flintlock.model.streaming.streams import OutputMode, TriggerKind, Watermark

HERE = os.path.relpath(__file__)

CLICKS = """
version: 1
name: clicks
type: STREAMING
steps:
  events: {source: {format: json, path: /in, schema: "ts TIMESTAMP, k STRING", stream: true},
           watermark: {column: ts, delay: 10 minutes}}
  counts: {sql: "SELECT window(ts, '1 minute') w, k, count(*) n FROM events GROUP BY 1, 2", inputs: [events]}
  files:  {sink: {format: parquet, path: /out}, inputs: [counts], uid: files-v1,
           outputMode: append, trigger: {processingTime: 10 seconds}}
"""


def clicks() -> Job:
    job = Job("clicks")
    events = job.source(
        "events",
        format="json",
        path="/in",
        schema="ts TIMESTAMP, k STRING",
        stream=True,
        watermark=("ts", "10 minutes"),
    )
    query = "SELECT window(ts, '1 minute') w, k, count(*) n FROM events GROUP BY 1, 2"
    counts = job.sql("counts", query, inputs=[events])
    trigger = {"processingTime": "10 seconds"}
    job.sink("files", counts, format="parquet", path="/out", uid="files-v1", output_mode="append", trigger=trigger)
    return job


def steps_of(graph: JobGraph) -> Any:
    return structs.replace(graph, document=b"").vertices


def test_python_and_yaml_make_the_same_graph() -> None:
    """The type is found by the sources, or given."""
    written, read = clicks().package().graph, read_yaml_text(Path("job.yaml"), CLICKS.encode()).package().graph

    assert steps_of(written) == steps_of(read)
    assert written.job_type is read.job_type is JobType.STREAMING


def test_a_function_takes_each_batch() -> None:
    """It is pickled as other functions are, and can still be called."""
    job = clicks()

    @job.foreach_batch("upsert", "counts", uid="upsert-v1", output_mode="update", trigger={"availableNow": True})
    def upsert(batch: Any, batch_id: int) -> int:
        assert batch
        return batch_id

    graph = job.package().graph
    vertex = graph.vertex("upsert")
    assert isinstance(vertex.operation, ForeachBatch)
    assert vertex.operation.pickle in {artifact.name for artifact in graph.artifacts}
    assert vertex.query is not None
    assert (vertex.query.output_mode, vertex.query.trigger.kind) == (OutputMode.UPDATE, TriggerKind.AVAILABLE_NOW)
    assert graph.client is not None
    assert upsert("rows", 7) == 7


def test_the_function_of_a_batch_has_to_take_batch_and_id() -> None:
    """The error names the user's line."""
    job = clicks()

    with pytest.raises(Invalid, match=r"\(batch.*\) -> 'None' cannot be called with a batch and its id") as caught:

        @job.foreach_batch("upsert", "counts", uid="upsert-v1")
        def upsert(batch: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            del batch

    assert f"{HERE}:" in caught.value.public
    with pytest.raises(Invalid, match="neither async nor yield"):

        @job.foreach_batch("later", "counts", uid="later-v1")
        async def later(batch: Any, batch_id: int) -> None:  # pyright: ignore[reportUnusedFunction]
            del batch, batch_id


def test_a_query_without_a_uid_is_refused_at_its_line() -> None:
    """Not when the job is submitted."""
    job = Job("j")
    job.source("events", format="rate", stream=True)

    with pytest.raises(Invalid, match=r"test_streaming_jobs.py:\d+: step 'out', field 'uid': needs a uid"):
        job.sink("out", "events", format="parquet", path="/out")


@pytest.mark.parametrize("watermark", ["ts", ("ts",), ("ts", "1 day", "x")])
def test_a_watermark_is_a_pair(watermark: Any) -> None:
    """Spark's method takes a column and a delay."""
    with pytest.raises(Invalid, match="field 'watermark': is a column and a delay, such as"):
        Job("j").source("events", format="rate", stream=True, watermark=watermark)


def test_a_watermark_may_be_at_any_step_with_rows() -> None:
    """A column of event times is often computed."""
    job = Job("j")
    job.source("lines", format="socket", stream=True)
    job.sql("parsed", "SELECT to_timestamp(value) ts FROM lines", inputs=["lines"], watermark=("ts", "1 minute"))

    @job.step(inputs=["parsed"], watermark=("ts", "2 minutes"))
    def late(parsed: Any) -> Any:
        return parsed

    job.sink("out", late, format="console")
    graph = job.package().graph

    assert [vertex.watermark for vertex in graph.vertices] == [
        None,
        Watermark(column="ts", delay="1 minute"),
        Watermark(column="ts", delay="2 minutes"),
        None,
    ]
    assert isinstance(graph.vertex("lines").operation, Source)


def test_wrong_keys_of_a_trigger_are_reported_with_the_nearest() -> None:
    """In YAML with the line, in Python with the argument."""
    with pytest.raises(
        Invalid, match=r"job.yaml:10:\d+: step 'files', field 'trigger.procesingTime': unknown key; did"
    ):
        read_yaml_text(Path("job.yaml"), CLICKS.replace("processingTime", "procesingTime").encode())
    with pytest.raises(Invalid, match=r"field 'trigger.once': unknown key; known are processingTime, availableNow"):
        clicks().sink("more", "counts", format="console", trigger={"once": True})
    with pytest.raises(Invalid, match=r"field 'output_mode': 'appnd' is not one of append, update, complete; did you"):
        clicks().sink("more", "counts", format="console", output_mode="appnd")


def test_the_plan_shows_what_makes_a_sink_a_query() -> None:
    """`flintlock info --json` has uid, output mode, trigger and guarantee."""
    (region,) = plan_document(clicks().package().graph)["regions"]
    sink = region["steps"][-1]

    assert (sink["uid"], sink["outputMode"], sink["trigger"]) == ("files-v1", "append", "every 10 seconds")
    assert sink["guarantee"] == "exactly once (Spark's sink log)"
    assert region["steps"][0]["watermark"] == Watermark(column="ts", delay="10 minutes")


def test_the_schema_of_the_yaml_form_has_the_keys_of_streaming_jobs() -> None:
    """Editors complete them."""
    step = json_schema()["$defs"]["StepSpec"]

    assert {"foreachBatch", "watermark", "uid", "outputMode", "trigger"} <= set(step["properties"])
    assert {"required": ["foreachBatch"]} in step["oneOf"]

"""What a sink's rows are written with."""

from __future__ import annotations

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobVertex, vertex_id
from flintlock.model.operations import SaveMode, Sink
from flintlock.spark.region.batch import writer_options

JOB = JobId("ab" * 16)


def options(sink: Sink, name: str = "out") -> dict[str, str]:
    vertex = JobVertex(id=vertex_id(JOB, name), name=StepName(name), operation=sink, inputs=(StepName("a"),))
    return writer_options(vertex, sink, JOB)


def test_delta_gets_the_same_transaction_for_every_attempt() -> None:
    """A second attempt at a committed append is skipped by Delta; other steps have transactions of their own."""
    sink = Sink(format="delta", path="out", mode=SaveMode.APPEND, options={"mergeSchema": "true"})

    assert options(sink) == {
        "txnAppId": f"flintlock-{JOB}-out",
        "txnVersion": "1",
        "mergeSchema": "true",
    }
    assert options(sink, "other")["txnAppId"] != options(sink)["txnAppId"]


def test_a_transaction_set_by_the_user_is_unchanged() -> None:
    sink = Sink(format="delta", path="out", options={"txnAppId": "mine", "txnVersion": "7"})

    assert options(sink) == {"txnAppId": "mine", "txnVersion": "7"}


def test_other_formats_get_no_transaction() -> None:
    """Staged files are overwritten by the publication, not by Spark."""
    assert options(Sink(format="iceberg", table="t", options={"a": "b"})) == {"a": "b"}
    assert options(Sink(format="parquet", path="out", options={"partitionOverwriteMode": "dynamic", "a": "b"})) == {
        "a": "b"
    }

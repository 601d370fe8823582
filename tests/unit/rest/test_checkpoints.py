"""The checkpoints of streaming jobs: committed batches in Flink's form."""

from __future__ import annotations

from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, execution, running, step

from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState
from flintlock.model.streaming.checkpoints import BatchFigures, QueryProgress
from flintlock.model.streaming.streams import StreamQuery

S = JobId("5" * 32)
E = ExecutionState


def batch(number: int, at_ms: int, duration_ms: int = 100, rows: int = 5) -> BatchFigures:
    return BatchFigures(
        batch=number,
        started_ms=at_ms,
        duration_ms=duration_ms,
        input_rows=rows,
        state_rows=3,
        state_bytes=1000 + number,
        offsets=("7",),
        watermark="2026-01-01T00:00:00.000Z",
    )


def streaming_job() -> JobSnapshot:
    """Two queries: the first has failed after batch 4 and continued, the second has committed one batch."""
    files, more = Sink(format="parquet", path="/a"), Sink(format="json", path="/b")
    graph = JobGraph(
        job_id=S,
        name="clicks",
        job_type=JobType.STREAMING,
        vertices=(
            step(S, "events", Source(format="rate", stream=True)),
            structs.replace(step(S, "files", files, "events"), query=StreamQuery(uid="files-v1")),
            structs.replace(step(S, "more", more, "events"), query=StreamQuery(uid="more-v1")),
        ),
    )
    failed = execution(0, 0, E.FAILED, {E.RUNNING: T0, E.FAILED: T0 + 400})
    second = execution(0, 1, E.RUNNING, {E.RUNNING: T0 + 500})
    other = execution(1, 0, E.RUNNING, {E.RUNNING: T0})
    path, other_path = f"/c/{S}/files-v1", f"/c/{S}/more-v1"
    before = QueryProgress(checkpoint=path, started_ms=T0, batches=tuple(batch(n, T0 + 10 * n) for n in range(5)))
    after = QueryProgress(checkpoint=path, restored=4, started_ms=T0 + 500, batches=(batch(5, T0 + 600, 300),))
    only = QueryProgress(checkpoint=other_path, started_ms=T0, batches=(batch(0, T0),))
    executions = (
        structs.replace(failed, query=before),
        structs.replace(second, query=after),
        structs.replace(other, query=only),
    )
    return structs.replace(running(S), graph=graph, regions=regions_of(graph), executions=executions)


def test_committed_batches_are_completed_checkpoints() -> None:
    """Of all attempts; each has an id that no other checkpoint of the job has."""
    rest = RestHarness()
    rest.dispatcher.put(streaming_job())

    found = rest.get(f"/jobs/{S}/checkpoints")

    assert found["counts"] == {"restored": 1, "total": 7, "in_progress": 0, "completed": 7, "failed": 0}
    assert [(one["uid"], one["batch"], one["id"]) for one in found["history"]] == [
        ("files-v1", 5, 11), ("files-v1", 4, 9), ("files-v1", 3, 7), ("files-v1", 2, 5), ("files-v1", 1, 3),
        ("more-v1", 0, 2), ("files-v1", 0, 1),
    ]  # fmt: skip


def test_the_latest_checkpoint_has_sparks_figures() -> None:
    """Duration, state and rows of the batch, and where it is."""
    rest = RestHarness()
    rest.dispatcher.put(streaming_job())

    found = rest.get(f"/jobs/{S}/checkpoints")
    latest = found["latest"]["completed"]

    assert (latest["trigger_timestamp"], latest["latest_ack_timestamp"]) == (T0 + 600, T0 + 900)
    assert (latest["state_size"], latest["state-rows"], latest["input-rows"]) == (1005, 3, 5)
    assert (latest["external_path"], latest["offsets"]) == (f"/c/{S}/files-v1", ["7"])
    durations = found["summary"]["end_to_end_duration"]
    assert (durations["min"], durations["max"], durations["avg"], durations["p50"]) == (100, 300, 128, 100.0)


def test_a_restart_is_a_restore_of_the_last_committed_batch() -> None:
    """As Flink shows it."""
    rest = RestHarness()
    rest.dispatcher.put(streaming_job())

    assert rest.get(f"/jobs/{S}/checkpoints")["latest"]["restored"] == {
        "id": 9,
        "restore_timestamp": T0 + 500,
        "is_savepoint": False,
        "external_path": f"/c/{S}/files-v1",
    }


def test_a_batch_job_has_no_checkpoints() -> None:
    """And is no error."""
    rest = RestHarness()
    rest.dispatcher.put(running(A))

    found = rest.get(f"/jobs/{A}/checkpoints")

    assert found["counts"]["total"] == 0
    assert found["history"] == []
    assert found["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}

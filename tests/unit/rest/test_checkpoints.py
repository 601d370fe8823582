"""The checkpoints of streaming jobs: committed batches in Flink's form."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, execution, running, step

from flintlock.model.commands import JobOperation, JobOperations, OperationCommand, StopJob, TriggerSavepoint
from flintlock.model.ids import JobId, RegionId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState
from flintlock.model.streaming.checkpoints import BatchFigures, QueryProgress
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.streaming.streams import StreamQuery
from flintlock.model.tasks import Failure, FailureKind
from flintlock.rest.jobs.checkpoints import checkpoints_of

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

    assert found["counts"] == {"restored": 1, "total": 8, "in_progress": 0, "completed": 7, "failed": 1}
    assert [(one["uid"], one["batch"], one["id"]) for one in found["history"]] == [
        ("files-v1", 5, 11), ("files-v1", 4, 9), ("files-v1", 3, 7), ("files-v1", 2, 5), ("files-v1", 1, 3),
        ("more-v1", 0, 2), ("files-v1", 0, 1),
    ]  # fmt: skip


def test_batches_fail_on_after_attempts_are_no_longer_remembered() -> None:
    """Only the first and the latest attempts are; a count that grows is what an alert is about."""
    rest = RestHarness()
    job = structs.replace(streaming_job(), attempts_omitted={RegionId(0): 7})
    rest.dispatcher.put(job)

    counts = rest.get(f"/jobs/{S}/checkpoints")["counts"]

    assert counts == {"restored": 1, "total": 15, "in_progress": 0, "completed": 7, "failed": 8}
    shown = rest.get(f"/jobs/{S}/metrics?get=numberOfFailedCheckpoints")
    assert shown == [{"id": "numberOfFailedCheckpoints", "value": "8"}]
    batches = structs.replace(running(A), attempts_omitted={RegionId(0): 7})
    assert checkpoints_of(batches).counts.failed == 0, "of a batch job"


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


def test_the_first_restore_of_a_job_that_begins_from_a_savepoint_is_that_of_the_savepoint() -> None:
    """Later ones are those of its own checkpoints."""
    job, saved = streaming_job(), "/savepoints/savepoint-1"
    first, second, other = job.executions
    assert first.query is not None
    restored = structs.replace(first, query=structs.replace(first.query, restored=2, batches=()))
    graph = structs.replace(job.graph, config={"execution.state-recovery.path": saved})
    rest = RestHarness()

    rest.dispatcher.put(structs.replace(job, graph=graph, executions=(restored, other)))
    at_first = rest.get(f"/jobs/{S}/checkpoints")["latest"]["restored"]
    rest.dispatcher.put(structs.replace(job, graph=graph, executions=(restored, second, other)))
    at_last = rest.get(f"/jobs/{S}/checkpoints")["latest"]["restored"]

    assert (at_first["is_savepoint"], at_first["external_path"], at_first["id"]) == (True, saved, 5)
    assert (at_last["is_savepoint"], at_last["external_path"]) == (False, f"/c/{S}/files-v1")


def test_the_batches_of_the_savepoint_that_a_job_began_from_are_not_its_own() -> None:
    """Its ids go on from there; what it has completed begins at 0, as in Flink."""
    job = streaming_job()
    first, second, other = job.executions
    assert first.query is not None
    restored = structs.replace(first, query=structs.replace(first.query, restored=2, batches=()))
    graph = structs.replace(job.graph, config={"execution.state-recovery.path": "/savepoints/savepoint-1"})
    rest = RestHarness()

    rest.dispatcher.put(structs.replace(job, graph=graph, executions=(restored, other)))
    at_first = rest.get(f"/jobs/{S}/checkpoints")["counts"]
    rest.dispatcher.put(structs.replace(job, graph=graph, executions=(restored, second, other)))
    at_last = rest.get(f"/jobs/{S}/checkpoints")

    assert (at_first["completed"], at_first["total"]) == (1, 2), "that of the other query, which was not saved"
    assert at_last["counts"]["completed"] == 4, "batches 3 to 5 of the query that was restored after batch 2"
    assert at_last["history"][0]["id"] == 11


def test_what_an_attempt_had_begun_when_it_failed_is_a_failed_checkpoint() -> None:
    """The next attempt repeats it."""
    job = streaming_job()
    failed, *others = job.executions
    failure = Failure(kind=FailureKind.RUNNER_LOST, message="the runner has ended")
    rest = RestHarness()
    rest.dispatcher.put(structs.replace(job, executions=(structs.replace(failed, failure=failure), *others)))

    found = rest.get(f"/jobs/{S}/checkpoints")["latest"]["failed"]

    assert (found["className"], found["status"], found["uid"], found["batch"]) == ("failed", "FAILED", "files-v1", 5)
    assert (found["failure_timestamp"], found["failure_message"]) == (T0 + 400, "the runner has ended")


@pytest.mark.parametrize(("state", "running"), [(E.RUNNING, 1), (E.FAILED, 0), (E.FINISHED, 0)])
def test_a_batch_that_runs_is_a_checkpoint_in_progress(state: ExecutionState, running: int) -> None:
    """What an attempt has reported last counts as long as it is there."""
    job = streaming_job()
    only = job.executions[2]
    assert only.query is not None
    queries = (QueryFigures(name="files", running_since_ms=T0 + 900),)
    begun = structs.replace(only, state=state, timestamps={state: T0}, queries=queries)
    rest = RestHarness()
    rest.dispatcher.put(structs.replace(job, executions=(begun,)))

    counts = rest.get(f"/jobs/{S}/checkpoints")["counts"]

    assert (counts["in_progress"], counts["completed"]) == (running, 1)
    assert counts["total"] == 1 + running + (state is E.FAILED)


def test_the_latest_savepoint_is_the_last_one_that_was_made() -> None:
    """A failed one, one in progress and a rescale are none. What its size is, only its manifest says."""

    def operation(number: int, command: OperationCommand, ended_ms: int, location: str) -> JobOperation:
        made = JobOperation(trigger_id=TriggerId(f"{number:032x}"), command=command, started_ms=T0 + 100 * number)
        return made if ended_ms < 0 else made.completed(None, T0 + ended_ms, location)

    rest = RestHarness()
    rest.dispatcher.put(streaming_job())
    save, stop = TriggerSavepoint(job_id=S), StopJob(job_id=S)
    rest.dispatcher.changes[S] = JobOperations(
        job_id=S,
        operations=(
            operation(1, save, 950, "/s/savepoint-1"),
            operation(2, stop, 300, "/s/savepoint-2"),
            operation(3, save, 990, ""),
            operation(4, save, -1, ""),
        ),
    )

    found = rest.get(f"/jobs/{S}/checkpoints")["latest"]["savepoint"]

    assert (found["external_path"], found["is_savepoint"]) == ("/s/savepoint-1", True)
    assert (found["checkpoint_type"], found["id"]) == ("SAVEPOINT", 11)
    assert (found["trigger_timestamp"], found["latest_ack_timestamp"]) == (T0 + 100, T0 + 950)
    assert found["end_to_end_duration"] == 850


def test_a_checkpoint_has_the_size_of_its_files_where_the_state_store_says_it() -> None:
    """And what was written of them; otherwise its memory."""
    job = streaming_job()
    only = job.executions[2]
    assert only.query is not None
    stored = structs.replace(batch(1, T0), file_bytes=5000, written_bytes=300)
    query = structs.replace(only.query, batches=(batch(0, T0), stored))
    rest = RestHarness()
    rest.dispatcher.put(structs.replace(job, executions=(structs.replace(only, query=query),)))

    history = rest.get(f"/jobs/{S}/checkpoints")["history"]

    assert [(one["state_size"], one["checkpointed_size"]) for one in history] == [(5000, 300), (1000, 0)]


def test_a_batch_job_has_no_checkpoints() -> None:
    """And is no error."""
    rest = RestHarness()
    rest.dispatcher.put(running(A))

    found = rest.get(f"/jobs/{A}/checkpoints")

    assert found["counts"]["total"] == 0
    assert found["history"] == []
    assert found["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}

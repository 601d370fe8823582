"""Of two streaming jobs that may run, one has a file sink: Spark drops the rows of the later one without an error."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import CODE, A, B, C, DispatcherHarness, outcome_of, settle, until
from tests.unit.dispatcher.test_savepoints import streaming
from tests.unit.dispatcher.upgrade_harness import BACK, running_of, stopping

from flintlock.dispatcher.sink_writers import check_not_written
from flintlock.model.errors import Conflict, Unavailable
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Artifact, JobGraph, JobType, JobVertex, vertex_id
from flintlock.model.jobs import JobQuery, JobSubmission, Submitted
from flintlock.model.operations import SaveMode, Sink, Source
from flintlock.model.streaming.streams import StreamQuery
from flintlock.testing.virtual_time import virtual_time

RESTORE = {"execution.state-recovery.path": "/s/one"}
REWIND = {"execution.state-recovery.rewind-sinks": "true"}
UPGRADE = {"execution.upgrade-of": str(A)}


def writing(job_id: JobId, path: str, config: dict[str, str] | None = None) -> JobGraph:
    """Return a job with one query into a file sink."""
    events = JobVertex(id=vertex_id(job_id, "in"), name=StepName("in"), operation=Source(format="rate", stream=True))
    out = JobVertex(
        id=vertex_id(job_id, "out"),
        name=StepName("out"),
        operation=Sink(format="parquet", path=path),
        inputs=(StepName("in"),),
        query=StreamQuery(uid="out-v1"),
    )
    return JobGraph(
        job_id=job_id,
        name="job",
        job_type=JobType.STREAMING,
        vertices=(events, out),
        config=config or {},
    )


@pytest.mark.parametrize("path", ["/out", "/out/", "file:/out", "file:///out", "/x/../out"])
def test_a_file_sink_of_another_streaming_job_is_refused_however_its_path_is_written(path: str) -> None:
    with pytest.raises(Conflict, match=rf"job {A} writes to /out: .* Stop that job first, or choose another path"):
        check_not_written(writing(B, path), [writing(A, "/out")])


def test_other_paths_and_the_job_itself_and_the_one_whose_place_it_takes_are_no_other_writers() -> None:
    check_not_written(writing(B, "/out/b"), [writing(A, "/out")])
    check_not_written(writing(A, "/out"), [writing(A, "/out")])
    check_not_written(writing(B, "/out", UPGRADE), [writing(A, "/out")])
    with pytest.raises(Conflict, match=f"job {C} writes to /out"):
        check_not_written(writing(B, "/out", UPGRADE), [writing(A, "/out"), writing(C, "/out")])


def test_what_a_batch_job_writes_counts_only_where_the_sink_is_taken_back() -> None:
    graph = writing(A, "/out")
    out = structs.replace(
        graph.vertices[1], query=None, operation=Sink(format="csv", path="/out", mode=SaveMode.APPEND)
    )
    batch = structs.replace(graph, job_type=JobType.BATCH, vertices=(out,))
    check_not_written(writing(B, "/out"), [batch])
    with pytest.raises(Conflict, match=f"job {A} writes to /out: stop it before the sink is taken back"):
        check_not_written(writing(B, "/out", REWIND), [batch])


@virtual_time
async def test_of_two_jobs_that_are_submitted_together_one_gets_the_sink() -> None:
    """Both would begin with batch 0, on an empty path."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        first = clients.create_task(outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(A, "/out")))))
        second = clients.create_task(outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(B, "/out")))))

        assert await first == Submitted(job_id=A)
        assert isinstance(await second, Conflict)
        assert list(harness.cluster.graphs) == [A]


@virtual_time
async def test_a_job_is_not_restored_beside_the_one_that_was_saved_until_that_has_ended() -> None:
    """It would repeat the batch that the idle job plans next, with other files."""
    harness = DispatcherHarness()
    again = JobSubmission(graph=writing(B, "/out", RESTORE))
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        assert isinstance(await outcome_of(dispatcher.submit_job(again)), Conflict)
        runner.finish()
        await until(lambda: A not in dispatcher.jobs or dispatcher.jobs[A].ended)

        assert await dispatcher.submit_job(again) == Submitted(job_id=B)


@virtual_time
async def test_a_job_of_an_earlier_leader_has_its_sink_from_the_beginning_of_the_term() -> None:
    """Also while jobs are being registered, when it may not be known yet."""
    harness = DispatcherHarness()
    again = JobSubmission(graph=writing(B, "/out"))
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(JobSubmission(graph=writing(A, "/out")))
    async with harness.leading() as dispatcher:
        dispatcher.recovered.clear()
        assert isinstance(await outcome_of(dispatcher.submit_job(again)), Unavailable)
        dispatcher.recovered.set()

        assert isinstance(await outcome_of(dispatcher.submit_job(again)), Conflict)


@virtual_time
async def test_an_upgrade_and_the_way_back_from_it_keep_the_sink_of_the_job() -> None:
    """The failed job is still being recorded as it is followed by the former graph; others are refused all along."""
    harness = DispatcherHarness()
    other = JobSubmission(graph=writing(C, "/out"))
    async with harness.leading() as dispatcher:
        runner = await stopping(harness, dispatcher)
        assert isinstance(await outcome_of(dispatcher.submit_job(other)), Conflict)
        runner.finish()
        failed = await running_of(harness, B)
        assert isinstance(await outcome_of(dispatcher.submit_job(other)), Conflict)
        failed.fail("the state does not fit")
        await running_of(harness, BACK)
        await until(lambda: B not in dispatcher.jobs)

        assert isinstance(await outcome_of(dispatcher.submit_job(other)), Conflict)


@virtual_time
async def test_a_quarantined_job_is_not_put_back_beside_another_writer_of_its_sink() -> None:
    harness = DispatcherHarness()
    graph = structs.replace(writing(A, "/out"), artifacts=(Artifact(name="code.zip", blob=CODE),))
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(JobSubmission(graph=graph))
    harness.blobs.missing.add(CODE)
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(JobSubmission(graph=writing(B, "/out")))
        other = await running_of(harness, B)
        harness.blobs.missing.clear()
        with pytest.raises(Conflict, match=f"job {B} writes to /out"):
            await dispatcher.retry_quarantined(JobQuery(job_id=A))
        assert len((await dispatcher.quarantined_jobs()).jobs) == 1
        other.finish()
        await until(lambda: B not in dispatcher.jobs)
        held = harness.faults.hold("graphs.restore")
        async with asyncio.TaskGroup() as clients:
            put_back = clients.create_task(dispatcher.retry_quarantined(JobQuery(job_id=A)))
            await settle()
            between = await outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(C, "/out"))))
            held.set()
            await put_back

        assert isinstance(between, Conflict), "the sink is kept for the job before it is registered"
        assert isinstance(await outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(C, "/out")))), Conflict)

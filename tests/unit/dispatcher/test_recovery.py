"""Recovery: FLINK_BEHAVIOURS T7, T8, L6, L8."""

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.stage import (
    CODE,
    A,
    B,
    C,
    Stage,
    empty,
    graph,
    outcome_of,
    record,
    rows,
    settle,
    status,
    submission,
    until,
)

from flintlock.dispatcher.endpoint import dispatching
from flintlock.dispatcher.recovery import WIDTH, RecoveredJob, Recovery, recover
from flintlock.ha import payloads
from flintlock.ha.leader_gate import PATIENCE_S
from flintlock.model.causes import CauseId, caused_by
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, DuplicateJob, Incompatible, InvariantBroken, Unavailable
from flintlock.model.ids import JobId, RegionId
from flintlock.model.jobs import AwaitJob, JobQuery, JobResult, StoredJob, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.memory_ha import ResultEntry
from flintlock.testing.virtual_time import now_ms, virtual_time


async def ended_dirty(stage: Stage) -> None:
    """Leave a FINISHED job A whose cleanup was not begun, with its graph still there."""
    stage.faults.failing |= {"graphs.remove:before": OSError("busy"), "progress.remove:before": OSError("busy")}
    stage.blobs.fail_with = OSError("busy")
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(submission(blobs=[CODE]))
        await settle()
        stage.runner().finish(rows(), scratch=("work",))
        await until(lambda: A in stage.cluster.results)
        await settle()
    stage.faults.failing.clear()
    stage.blobs.fail_with = None
    assert stage.cluster.results[A].dirty
    assert A in stage.cluster.graphs
    stage.job_masters.made.clear()
    stage.resource_manager.removed.clear()


@virtual_time
async def test_job_submitted_before_a_change_of_leader_is_recovered_with_its_progress() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
        await stage.ha.stores(stage.cluster.token).progress.record(record(A))
    async with stage.leading() as dispatcher:
        await settle()

        assert await status(dispatcher) is JobStatus.RUNNING
        assert len(stage.job_masters.made) == 2
        assert [entry.region for entry in stage.runner().progress] == [RegionId(0)]
        assert stage.runner().job.submitted_ms == stage.job_masters.made[0].job.submitted_ms


@virtual_time
async def test_the_cause_of_a_submission_is_stored_with_the_job() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        with caused_by(CauseId("order-17")):
            await stage.submitted(dispatcher)
        assert stage.runner().cause == "order-17"
    async with stage.leading() as dispatcher:
        await settle()
        assert stage.runner().job.cause == "order-17"


@virtual_time
async def test_dirty_job_is_cleaned_up_and_never_run_again() -> None:
    stage = Stage()
    await ended_dirty(stage)
    async with stage.leading() as dispatcher:
        assert await status(dispatcher) is JobStatus.FINISHED
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=60))).status is JobStatus.FINISHED
        with pytest.raises(Conflict, match="FINISHED"):
            await dispatcher.command(CancelJob(job_id=A))
        await empty(dispatcher)

        assert stage.job_masters.made == []
        assert stage.cluster.graphs == {}
        assert not stage.cluster.results[A].dirty
        assert [message.directories for message in stage.resource_manager.removed] == [("work",)]
        assert [line.status for line in (await dispatcher.list_jobs()).jobs] == [JobStatus.FINISHED]


@virtual_time
async def test_dirty_results_are_read_before_graphs() -> None:
    stage = Stage()
    await ended_dirty(stage)
    before = len(stage.faults.seen)

    recovery = await recover(stage.stores(), stage.blobs, now_ms)

    seen = stage.faults.seen[before:]
    assert seen.index("results.dirty:after") < seen.index("graphs.ids:before")
    assert recovery.jobs == ()
    assert [result.job_id for result in recovery.dirty] == [A]
    assert "graphs.recover:before" not in seen


@virtual_time
async def test_dirty_result_without_a_graph_is_cleaned_up() -> None:
    stage = Stage()
    await ended_dirty(stage)
    stage.cluster.graphs.clear()
    async with stage.leading() as dispatcher:
        await empty(dispatcher)

        assert not stage.cluster.results[A].dirty


@virtual_time
async def test_dirty_job_without_an_archive_is_shown_as_its_result_says_and_stays_listed() -> None:
    stage = Stage()
    await ended_dirty(stage)
    stage.cluster.ended.clear()
    async with stage.leading() as dispatcher:
        assert [line.status for line in (await dispatcher.list_jobs()).jobs] == [JobStatus.FINISHED]
        assert (await dispatcher.job(JobQuery(job_id=A))).graph.name == "job"
        await empty(dispatcher)
    async with stage.leading() as dispatcher:
        assert [line.status for line in (await dispatcher.list_jobs()).jobs] == [JobStatus.FINISHED]


@virtual_time
async def test_several_jobs_and_dirty_results_are_told_apart() -> None:
    stage = Stage()
    await ended_dirty(stage)
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, B)
        await stage.submitted(dispatcher, C)
    stage.job_masters.made.clear()
    async with stage.leading() as dispatcher:
        await settle()

        assert sorted(runner.job.graph.job_id for runner in stage.job_masters.made) == [B, C]
        assert {line.job_id: line.status for line in (await dispatcher.list_jobs()).jobs} == {
            A: JobStatus.FINISHED,
            B: JobStatus.RUNNING,
            C: JobStatus.RUNNING,
        }


@virtual_time
async def test_recovery_with_several_graphs_and_their_dirty_results_runs_none_of_them() -> None:
    stage = Stage()
    stage.faults.failing["graphs.remove:before"] = OSError("busy")
    async with stage.leading() as dispatcher:
        for job_id in (A, B, C):
            (await stage.submitted(dispatcher, job_id)).finish()
        await until(lambda: len(stage.cluster.results) == 3)
    stage.faults.failing.clear()
    stage.job_masters.made.clear()
    assert stage.cluster.graphs.keys() == {A, B, C}
    async with stage.leading() as dispatcher:
        await empty(dispatcher)

        assert stage.job_masters.made == []
        assert stage.cluster.graphs == {}
        assert not any(entry.dirty for entry in stage.cluster.results.values())


@virtual_time
async def test_concurrent_recovery_and_submission_make_one_job_of_one_id() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, key="k"))
    async with stage.leading() as dispatcher:  # nothing recovered has had its turn yet
        answers = await asyncio.gather(
            outcome_of(dispatcher.submit_job(submission(A))),
            outcome_of(dispatcher.submit_job(submission(A, key="k"))),
            outcome_of(dispatcher.submit_job(submission(B))),
        )
        await settle()

        assert isinstance(answers[0], DuplicateJob)
        assert answers[1:] == [Submitted(job_id=A, existing=True), Submitted(job_id=B)]
        latest = [runner.job.graph.job_id for runner in stage.job_masters.made if not runner.suspended]
        assert sorted(latest) == [A, B]


@virtual_time
async def test_graph_removed_by_somebody_else_leaves_what_else_is_stored_alone() -> None:
    """Only a leader changes graphs, so nobody listens for this: the job runs on, and ends as it does."""
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
        await stage.submitted(dispatcher, B)
        await stage.ha.stores(stage.cluster.token).progress.record(record(A))
        graph_of_b = stage.cluster.graphs[B]
        del stage.cluster.graphs[A]
        await asyncio.sleep(60)
        assert stage.cluster.graphs == {B: graph_of_b}
        assert stage.cluster.progress.keys() == {A}

        stage.runner(A).finish()
        await until(lambda: A in stage.cluster.results and not stage.cluster.results[A].dirty)

        assert stage.cluster.graphs == {B: graph_of_b}
        assert stage.cluster.progress == {}
        assert await status(dispatcher, B) is JobStatus.RUNNING


@virtual_time
async def test_recovery_reads_many_jobs_at_once_and_keeps_their_order() -> None:
    stage = Stage()
    job_ids = [JobId(f"{number:032x}") for number in range(3 * WIDTH)]
    async with stage.leading() as dispatcher:
        for job_id in job_ids:
            await dispatcher.submit_job(submission(job_id))
    reading = stage.faults.hold("graphs.recover:before")
    async with asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(recover(stage.stores(), stage.blobs, now_ms))
        await settle()
        assert stage.faults.seen.count("graphs.recover:before") == WIDTH
        reading.set()
        recovery = await recovering

    assert [job.stored.graph.job_id for job in recovery.jobs] == job_ids
    assert stage.faults.seen.count("graphs.recover:before") == len(job_ids)
    assert "results.get:before" not in stage.faults.seen, "what has no result is not asked for one"
    assert "progress.read:before" not in stage.faults.seen


@virtual_time
async def test_graph_handed_over_together_with_its_dirty_result_is_a_programming_error() -> None:
    stage = Stage()
    both = Recovery(
        jobs=(RecoveredJob(stored=StoredJob(graph=graph(), submitted_ms=0)),),
        dirty=(JobResult(job_id=A, name="job", status=JobStatus.FINISHED, start_ms=0, end_ms=1),),
    )
    with pytest.RaisesGroup(pytest.RaisesExc(InvariantBroken, match=A)):
        async with dispatching(stage.services, stage.term(stage.stores()), both):
            pass
    assert stage.job_masters.made == []


@virtual_time
async def test_graph_left_behind_by_a_clean_job_is_removed_and_not_run() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
        left = dict(stage.cluster.graphs)
        stage.runner().finish()
        await empty(dispatcher)
    stage.cluster.graphs.update(left)
    async with stage.leading() as dispatcher:
        await settle()

        assert len(stage.job_masters.made) == 1
        assert stage.cluster.graphs == {}
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_unreadable_graph_is_set_aside_and_shown_as_failed_while_the_others_recover() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
        await stage.submitted(dispatcher, B)
    stage.cluster.graphs[A] = b"\xc1 not a graph"
    for _ in range(2):  # the second leader finds it quarantined already
        async with stage.leading() as dispatcher:
            await settle()

            assert await status(dispatcher, A) is JobStatus.FAILED
            failure = (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure
            assert "cannot be read" in failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert stage.cluster.quarantined.keys() == {A}
            assert stage.cluster.quarantined[A][1] == b"\xc1 not a graph"
            with pytest.raises(DuplicateJob):
                await dispatcher.submit_job(submission(A))


@virtual_time
async def test_job_whose_artifact_is_gone_or_damaged_is_set_aside_while_the_others_recover() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await stage.submitted(dispatcher, B)
    stage.blobs.missing.add(CODE)
    for _ in range(2):
        async with stage.leading() as dispatcher:
            await settle()

            assert await status(dispatcher, A) is JobStatus.FAILED
            failure = (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure
            assert "its artifact 'lib0.zip' cannot be had" in failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert stage.cluster.quarantined.keys() == {A}


@virtual_time
async def test_job_that_has_run_is_adopted_though_its_artifact_is_gone() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
        await stage.ha.stores(stage.cluster.token).progress.record(record(A))
    stage.blobs.missing.add(CODE)
    async with stage.leading() as dispatcher:
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_recovered_job_that_cannot_be_initialised_is_failed_and_kept_aside_while_the_others_run() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
        await stage.submitted(dispatcher, B)
    graph_of_a = stage.cluster.graphs[A]
    stage.job_masters.fail_for[A] = ValueError("no plan for this")
    for _ in range(3):  # never a crash loop: the next leaders find it ended
        async with stage.leading() as dispatcher:
            await until(lambda: A in stage.cluster.results and not stage.cluster.results[A].dirty)

            assert await status(dispatcher, A) is JobStatus.FAILED
            assert "no plan for this" in (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert stage.cluster.quarantined == {A: ("no plan for this", graph_of_a)}
            assert stage.cluster.graphs.keys() == {B}


@virtual_time
async def test_newer_version_of_a_record_ends_the_older_reader_and_sets_nothing_aside() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
        await stage.submitted(dispatcher, B)
    body = b"of the future"
    stage.cluster.graphs[A] = b"\x02" + payloads.checksum(2, body).to_bytes(4, "big") + body
    with pytest.raises(Incompatible, match="newer Flintlock"):
        async with stage.leading():
            pass
    assert stage.cluster.quarantined == {}
    assert stage.cluster.graphs.keys() == {A, B}


@virtual_time
async def test_unreadable_progress_sets_its_job_aside() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
    stage.cluster.progress[A] = {RegionId(0): b"\xc1"}
    async with stage.leading() as dispatcher:
        job = await dispatcher.job(JobQuery(job_id=A))

        assert job.status is JobStatus.FAILED
        assert job.graph.name == "job"
        assert stage.cluster.quarantined.keys() == {A}
        assert len(stage.job_masters.made) == 1


@virtual_time
async def test_graph_stored_under_another_id_is_set_aside() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
    stage.cluster.graphs[B] = stage.cluster.graphs[A]
    async with stage.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert await status(dispatcher, B) is JobStatus.FAILED


@virtual_time
async def test_job_whose_result_cannot_be_read_has_ended_as_its_archive_says_and_is_not_run() -> None:
    stage = Stage()
    await ended_dirty(stage)
    entry = stage.cluster.results[A]
    stage.cluster.results[A] = ResultEntry(dirty=True, end_ms=entry.end_ms, payload=b"\xc1")
    async with stage.leading() as dispatcher:
        await settle()

        assert await status(dispatcher) is JobStatus.FINISHED
        assert stage.job_masters.made == []
        assert stage.cluster.quarantined.keys() == {A}


@virtual_time
async def test_store_that_cannot_be_listed_is_fatal() -> None:
    for listing in ("results.dirty:before", "graphs.ids:before", "ended.summaries:before"):
        stage = Stage()
        stage.faults.failing[listing] = OSError("no such database")
        with pytest.raises(OSError, match="no such database"):
            async with stage.leading():
                pass


@virtual_time
async def test_store_that_is_unavailable_is_asked_again_for_a_while_and_sets_nothing_aside() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
    stage.faults.failing_once["graphs.recover:before"] = Unavailable("connection lost")
    async with stage.leading() as dispatcher:
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING
    stage.faults.failing["graphs.recover:before"] = Unavailable("not mounted")
    before_s = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="not mounted"):
        async with stage.leading():
            pass
    assert PATIENCE_S <= asyncio.get_running_loop().time() - before_s < 2 * PATIENCE_S
    assert stage.cluster.graphs.keys() == {A}
    assert stage.cluster.quarantined == {}


@virtual_time
async def test_only_recovered_jobs_keep_their_blobs() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
    stage.blobs.references[B] = (CODE,)
    async with stage.leading():
        assert stage.blobs.references == {A: (CODE,)}


@virtual_time
async def test_blobs_of_a_dirty_job_are_released_after_its_graph_is_gone() -> None:
    stage = Stage()
    await ended_dirty(stage)
    stage.faults.failing["graphs.remove:before"] = OSError("busy")
    async with stage.leading() as dispatcher:
        await asyncio.sleep(5)
        assert stage.blobs.references == {A: (CODE,)}

        stage.faults.failing.clear()
        await empty(dispatcher)

        assert stage.blobs.references == {}


@virtual_time
async def test_blobs_that_cannot_be_removed_stop_nobody() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
    stage.blobs.fail_with = OSError("busy")
    async with stage.leading() as dispatcher:
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_id_that_awaits_recovery_cannot_be_submitted() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
    async with stage.leading() as dispatcher:
        answers = await asyncio.gather(
            outcome_of(dispatcher.submit_job(submission(A))), outcome_of(dispatcher.submit_job(submission(B)))
        )

        assert isinstance(answers[0], DuplicateJob)
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert await status(dispatcher, B) is JobStatus.RUNNING


@virtual_time
async def test_cancel_of_a_recovered_job_that_has_no_jobmaster_yet_is_queued() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
    async with stage.leading() as dispatcher:
        await dispatcher.command(CancelJob(job_id=A))

        assert len(stage.job_masters.made) == 1
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))).status is JobStatus.CANCELED


@virtual_time
async def test_stored_graph_that_this_version_cannot_plan_is_a_failed_job() -> None:
    stage = Stage()
    stores = stage.stores()
    looped = structs.replace(
        graph(), vertices=(structs.replace(graph().vertices[0], inputs=("top",)), graph().vertices[1])
    )
    await stores.graphs.put(StoredJob(graph=looped, submitted_ms=0))
    stage.job_masters.fail_with = ValueError("the steps form a cycle")
    async with stage.leading() as dispatcher:
        job = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))

        assert job.status is JobStatus.FAILED
        assert job.regions == ()

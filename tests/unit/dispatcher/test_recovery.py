"""Recovery: FLINK_BEHAVIOURS T7, T8, L6, L8."""

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
    C,
    DispatcherHarness,
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
from flintlock.dispatcher.retention.retention_clock import RetentionClock
from flintlock.ha import payloads
from flintlock.ha.leader_gate import PATIENCE_S
from flintlock.model.causes import CauseId, caused_by
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, DuplicateJob, Fenced, Incompatible, InvariantBroken, Unavailable
from flintlock.model.ids import JobId, RegionId
from flintlock.model.jobs import AwaitJob, JobQuery, JobResult, StoredJob, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.memory_ha import ResultEntry
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time


async def ended_dirty(harness: DispatcherHarness) -> None:
    """Leave a FINISHED job A whose cleanup was not begun, with its graph still there."""
    harness.faults.failing |= {"graphs.remove:before": OSError("busy"), "progress.remove:before": OSError("busy")}
    harness.blobs.fail_with = OSError("busy")
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(blobs=[CODE]))
        await settle()
        harness.runner().finish(rows(), scratch=("work",))
        await until(lambda: A in harness.cluster.results)
        await settle()
    harness.faults.failing.clear()
    harness.blobs.fail_with = None
    assert harness.cluster.results[A].dirty
    assert A in harness.cluster.graphs
    harness.job_masters.made.clear()
    harness.resource_manager.removed.clear()


@virtual_time
async def test_job_submitted_before_a_change_of_leader_is_recovered_with_its_progress() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await harness.ha.stores(harness.cluster.token).progress.record(record(A))
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher) is JobStatus.RUNNING
        assert len(harness.job_masters.made) == 2
        assert [entry.region for entry in harness.runner().progress] == [RegionId(0)]
        assert harness.runner().job.submitted_ms == harness.job_masters.made[0].job.submitted_ms


@virtual_time
async def test_the_cause_of_a_submission_is_stored_with_the_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        with caused_by(CauseId("order-17")):
            await harness.submitted(dispatcher)
        assert harness.runner().cause == "order-17"
    async with harness.leading() as dispatcher:
        await settle()
        assert harness.runner().job.cause == "order-17"


@virtual_time
async def test_dirty_job_is_cleaned_up_and_never_run_again() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    async with harness.leading() as dispatcher:
        assert await status(dispatcher) is JobStatus.FINISHED
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=60))).status is JobStatus.FINISHED
        with pytest.raises(Conflict, match="FINISHED"):
            await dispatcher.command(CancelJob(job_id=A))
        await empty(dispatcher)

        assert harness.job_masters.made == []
        assert harness.cluster.graphs == {}
        assert not harness.cluster.results[A].dirty
        assert [message.directories for message in harness.resource_manager.removed] == [("work",)]
        assert [line.status for line in (await all_jobs(dispatcher))] == [JobStatus.FINISHED]


@virtual_time
async def test_dirty_results_are_read_before_graphs() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    before = len(harness.faults.seen)

    recovery = await recover(harness.stores(), harness.services)

    seen = harness.faults.seen[before:]
    assert seen.index("results.dirty:after") < seen.index("graphs.ids:before")
    assert recovery.jobs == ()
    assert [result.job_id for result in recovery.dirty] == [A]
    assert "graphs.recover:before" not in seen


@virtual_time
async def test_dirty_result_without_a_graph_is_cleaned_up() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    harness.cluster.graphs.clear()
    async with harness.leading() as dispatcher:
        await empty(dispatcher)

        assert not harness.cluster.results[A].dirty


@virtual_time
async def test_dirty_job_without_an_archive_is_shown_as_its_result_says_and_stays_listed() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    harness.cluster.ended.clear()
    async with harness.leading() as dispatcher:
        assert [line.status for line in (await all_jobs(dispatcher))] == [JobStatus.FINISHED]
        assert (await dispatcher.job(JobQuery(job_id=A))).graph.name == "job"
        await empty(dispatcher)
    async with harness.leading() as dispatcher:
        assert [line.status for line in (await all_jobs(dispatcher))] == [JobStatus.FINISHED]


@virtual_time
async def test_several_jobs_and_dirty_results_are_distinguished() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, B)
        await harness.submitted(dispatcher, C)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        await settle()

        assert sorted(runner.job.graph.job_id for runner in harness.job_masters.made) == [B, C]
        assert {line.job_id: line.status for line in (await all_jobs(dispatcher))} == {
            A: JobStatus.FINISHED,
            B: JobStatus.RUNNING,
            C: JobStatus.RUNNING,
        }


@virtual_time
async def test_recovery_with_several_graphs_and_their_dirty_results_runs_none_of_them() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["graphs.remove:before"] = OSError("busy")
    async with harness.leading() as dispatcher:
        for job_id in (A, B, C):
            (await harness.submitted(dispatcher, job_id)).finish()
        await until(lambda: len(harness.cluster.results) == 3)
    harness.faults.failing.clear()
    harness.job_masters.made.clear()
    assert harness.cluster.graphs.keys() == {A, B, C}
    async with harness.leading() as dispatcher:
        await empty(dispatcher)

        assert harness.job_masters.made == []
        assert harness.cluster.graphs == {}
        assert not any(entry.dirty for entry in harness.cluster.results.values())


@virtual_time
async def test_concurrent_recovery_and_submission_make_one_job_of_one_id() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, key="k"))
    async with harness.leading() as dispatcher:  # nothing recovered has had its turn yet
        answers = await asyncio.gather(
            outcome_of(dispatcher.submit_job(submission(A))),
            outcome_of(dispatcher.submit_job(submission(A, key="k"))),
            outcome_of(dispatcher.submit_job(submission(B))),
        )
        await settle()

        assert isinstance(answers[0], DuplicateJob)
        assert answers[1:] == [Submitted(job_id=A, existing=True), Submitted(job_id=B)]
        latest = [runner.job.graph.job_id for runner in harness.job_masters.made if not runner.suspended]
        assert sorted(latest) == [A, B]


@virtual_time
async def test_job_whose_graph_was_removed_by_another_process_runs_to_its_end() -> None:
    """Only a leader changes graphs, so the Dispatcher does not watch for this: the job runs to its end."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
        await harness.ha.stores(harness.cluster.token).progress.record(record(A))
        graph_of_b = harness.cluster.graphs[B]
        del harness.cluster.graphs[A]
        await asyncio.sleep(60)
        assert harness.cluster.graphs == {B: graph_of_b}
        assert harness.cluster.progress.keys() == {A}

        harness.runner(A).finish()
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)

        assert harness.cluster.graphs == {B: graph_of_b}
        assert harness.cluster.progress == {}
        assert await status(dispatcher, B) is JobStatus.RUNNING


@virtual_time
async def test_recovery_reads_many_jobs_at_once_and_keeps_their_order() -> None:
    harness = DispatcherHarness()
    job_ids = [JobId(f"{number:032x}") for number in range(3 * WIDTH)]
    async with harness.leading() as dispatcher:
        for job_id in job_ids:
            await dispatcher.submit_job(submission(job_id))
    reading = harness.faults.hold("graphs.recover:before")
    async with asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(recover(harness.stores(), harness.services))
        await settle()
        assert harness.faults.seen.count("graphs.recover:before") == WIDTH
        reading.set()
        recovery = await recovering

    assert [job.stored.graph.job_id for job in recovery.jobs] == job_ids
    assert harness.faults.seen.count("graphs.recover:before") == len(job_ids)
    assert "results.get:before" not in harness.faults.seen, "no result is read for a job without one"
    assert "progress.read:before" not in harness.faults.seen


@virtual_time
async def test_graph_recovered_together_with_its_dirty_result_is_a_programming_error() -> None:
    harness = DispatcherHarness()
    both = Recovery(
        jobs=(RecoveredJob(stored=StoredJob(graph=graph(), submitted_ms=0)),),
        dirty=(JobResult(job_id=A, name="job", status=JobStatus.FINISHED, start_ms=0, end_ms=1),),
        retention_clock=RetentionClock(0, harness.services.clock_ms, harness.services.boot_time_s),
    )
    with pytest.RaisesGroup(pytest.RaisesExc(InvariantBroken, match=A)):
        async with dispatching(harness.services, harness.term(harness.stores()), both):
            pass
    assert harness.job_masters.made == []


@virtual_time
async def test_graph_left_behind_by_a_clean_job_is_removed_and_not_run() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        left = dict(harness.cluster.graphs)
        harness.runner().finish()
        await empty(dispatcher)
    harness.cluster.graphs.update(left)
    async with harness.leading() as dispatcher:
        await settle()

        assert len(harness.job_masters.made) == 1
        assert harness.cluster.graphs == {}
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_unreadable_graph_is_quarantined_and_shown_as_failed_while_the_others_recover() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    harness.cluster.graphs[A] = b"\xc1 not a graph"
    for _ in range(2):  # the second leader finds it quarantined already
        async with harness.leading() as dispatcher:
            await settle()

            assert await status(dispatcher, A) is JobStatus.FAILED
            failure = (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure
            assert "cannot be read" in failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert harness.cluster.quarantined.keys() == {A}
            assert harness.cluster.quarantined[A][1] == b"\xc1 not a graph"
            with pytest.raises(DuplicateJob):
                await dispatcher.submit_job(submission(A))


@virtual_time
async def test_recovery_that_is_fenced_leaves_its_task_uncancelled() -> None:
    """A process that takes itself for cancelled would end with the term, instead of contending for the next one."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.cluster.graphs[A] = b"\xc1 not a graph"
    harness.faults.failing["ended.put:before"] = Fenced("a newer leader leads")

    with pytest.raises(Fenced):
        await recover(harness.stores(), harness.services)

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@virtual_time
async def test_job_is_quarantined_only_once_its_archive_says_so() -> None:
    """While the store accepts no archive, nothing but the graph knows of the job."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.cluster.graphs[A] = b"\xc1 not a graph"
    harness.faults.failing["ended.put:before"] = Unavailable("the disk is full")
    asyncio.get_running_loop().call_later(300.0, harness.faults.failing.clear)

    async with harness.leading() as dispatcher:
        assert asyncio.get_running_loop().time() >= 300.0
        assert harness.cluster.quarantined.keys() == {A}
        assert await status(dispatcher) is JobStatus.FAILED
    async with harness.leading() as dispatcher:
        assert await status(dispatcher) is JobStatus.FAILED
        assert [line.job_id for line in await all_jobs(dispatcher)] == [A]


@virtual_time
async def test_job_whose_artifact_is_missing_or_damaged_is_quarantined_while_the_others_recover() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await harness.submitted(dispatcher, B)
    harness.blobs.missing.add(CODE)
    for _ in range(2):
        async with harness.leading() as dispatcher:
            await settle()

            assert await status(dispatcher, A) is JobStatus.FAILED
            failure = (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure
            assert "its artifact 'lib0.zip' cannot be had" in failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert harness.cluster.quarantined.keys() == {A}


@virtual_time
async def test_blobs_that_do_not_answer_keep_no_job_without_a_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        for job_id in (A, B):
            await dispatcher.submit_job(submission(job_id, blobs=[CODE]))
    harness.blobs.unreadable = Unavailable("the files of blobs cannot be written or read now")
    async with asyncio.timeout(3 * PATIENCE_S), harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert await status(dispatcher, B) is JobStatus.RUNNING
        assert not harness.cluster.quarantined


@virtual_time
async def test_job_that_has_run_is_adopted_even_if_its_artifact_is_missing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
        await harness.ha.stores(harness.cluster.token).progress.record(record(A))
    harness.blobs.missing.add(CODE)
    async with harness.leading() as dispatcher:
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_recovered_job_that_cannot_be_initialised_is_failed_and_quarantined_while_the_others_run() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    graph_of_a = harness.cluster.graphs[A]
    harness.job_masters.fail_for[A] = ValueError("no plan for this")
    for _ in range(3):  # never a crash loop: the next leaders find it ended
        async with harness.leading() as dispatcher:
            await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)

            assert await status(dispatcher, A) is JobStatus.FAILED
            assert "no plan for this" in (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure.message
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert harness.cluster.quarantined == {A: ("no plan for this", graph_of_a)}
            assert harness.cluster.graphs.keys() == {B}


@virtual_time
async def test_newer_version_of_a_record_is_fatal_to_the_older_reader_and_quarantines_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    body = b"of the future"
    harness.cluster.graphs[A] = b"\x02" + payloads.checksum(2, body).to_bytes(4, "big") + body
    with pytest.raises(Incompatible, match="newer Flintlock"):
        async with harness.leading():
            pass
    assert harness.cluster.quarantined == {}
    assert harness.cluster.graphs.keys() == {A, B}


@virtual_time
async def test_job_with_unreadable_progress_is_quarantined() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.cluster.progress[A] = {RegionId(0): b"\xc1"}
    async with harness.leading() as dispatcher:
        job = await dispatcher.job(JobQuery(job_id=A))

        assert job.status is JobStatus.FAILED
        assert job.graph.name == "job"
        assert harness.cluster.quarantined.keys() == {A}
        assert len(harness.job_masters.made) == 1


@virtual_time
async def test_graph_stored_under_another_id_is_quarantined() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
    harness.cluster.graphs[B] = harness.cluster.graphs[A]
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert await status(dispatcher, B) is JobStatus.FAILED


@virtual_time
async def test_job_whose_result_cannot_be_read_has_ended_as_its_archive_says_and_is_not_run() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    entry = harness.cluster.results[A]
    harness.cluster.results[A] = ResultEntry(dirty=True, end_ms=entry.end_ms, payload=b"\xc1")
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher) is JobStatus.FINISHED
        assert harness.job_masters.made == []
        assert harness.cluster.quarantined.keys() == {A}


@virtual_time
async def test_store_that_cannot_be_listed_is_fatal() -> None:
    for listing in ("results.dirty:before", "graphs.ids:before", "progress.ids:before"):
        harness = DispatcherHarness()
        harness.faults.failing[listing] = OSError("no such database")
        with pytest.raises(OSError, match="no such database"):
            async with harness.leading():
                pass


@virtual_time
async def test_unavailable_store_is_retried_for_a_while_and_quarantines_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.faults.failing_once["graphs.recover:before"] = Unavailable("connection lost")
    async with harness.leading() as dispatcher:
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING
    harness.faults.failing["graphs.recover:before"] = Unavailable("not mounted")
    before_s = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="not mounted"):
        async with harness.leading():
            pass
    assert PATIENCE_S <= asyncio.get_running_loop().time() - before_s < 2 * PATIENCE_S
    assert harness.cluster.graphs.keys() == {A}
    assert harness.cluster.quarantined == {}


@virtual_time
async def test_leader_does_not_continue_a_job_while_its_operations_cannot_be_had() -> None:
    """A cancel that a former leader has acknowledged may be among them."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.obeys = False
        await dispatcher.command(CancelJob(job_id=A))
    harness.faults.failing["operations.read:after"] = Unavailable("no answer")
    with pytest.raises(Unavailable):
        async with harness.leading():
            pass
    del harness.faults.failing["operations.read:after"]
    async with harness.leading():
        await settle()
        assert harness.runner().cancels == 1


@virtual_time
async def test_only_recovered_jobs_keep_their_blobs() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
    harness.blobs.references[B] = (CODE,)
    async with harness.leading():
        assert harness.blobs.references == {A: (CODE,)}


@virtual_time
async def test_blobs_of_a_dirty_job_are_released_after_its_graph_is_gone() -> None:
    harness = DispatcherHarness()
    await ended_dirty(harness)
    harness.faults.failing["graphs.remove:before"] = OSError("busy")
    async with harness.leading() as dispatcher:
        await asyncio.sleep(5)
        assert harness.blobs.references == {A: (CODE,)}

        harness.faults.failing.clear()
        await empty(dispatcher)

        assert harness.blobs.references == {}


@virtual_time
async def test_failure_to_remove_blobs_does_not_prevent_recovery() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.blobs.fail_with = OSError("busy")
    async with harness.leading() as dispatcher:
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_id_that_awaits_recovery_cannot_be_submitted() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    async with harness.leading() as dispatcher:
        answers = await asyncio.gather(
            outcome_of(dispatcher.submit_job(submission(A))), outcome_of(dispatcher.submit_job(submission(B)))
        )

        assert isinstance(answers[0], DuplicateJob)
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert await status(dispatcher, B) is JobStatus.RUNNING


@virtual_time
async def test_cancel_of_a_recovered_job_that_has_no_jobmaster_yet_is_to_be_repeated() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    async with harness.leading() as dispatcher:
        assert len(harness.job_masters.made) == 1
        with pytest.raises(Unavailable, match="ask again"):
            await dispatcher.command(CancelJob(job_id=A))
        await settle()
        await dispatcher.command(CancelJob(job_id=A))
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))).status is JobStatus.CANCELED


@virtual_time
async def test_stored_graph_that_this_version_cannot_plan_is_a_failed_job() -> None:
    harness = DispatcherHarness()
    stores = harness.stores()
    looped = structs.replace(
        graph(), vertices=(structs.replace(graph().vertices[0], inputs=("top",)), graph().vertices[1])
    )
    await stores.graphs.put(StoredJob(graph=looped, submitted_ms=0))
    harness.job_masters.fail_with = ValueError("the steps form a cycle")
    async with harness.leading() as dispatcher:
        job = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))

        assert job.status is JobStatus.FAILED
        assert job.regions == ()


@virtual_time
async def test_job_that_leaders_were_lost_on_again_and_again_is_quarantined() -> None:
    """It would block this leader too; the other jobs go on."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    harness.lost_leaders = {A: 2, B: 1}
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.FAILED
        assert await status(dispatcher, B) is JobStatus.RUNNING
        assert [runner.job.graph.job_id for runner in harness.job_masters.made] == [B]
        assert harness.cluster.quarantined.keys() == {A}
        assert harness.lost_leaders == {B: 1}, "a user who retries the job begins without its past"
        failure = (await dispatcher.job(JobQuery(job_id=A))).exceptions[0].failure
        assert failure.message == (
            "the job was quarantined because it blocks or ends the JobManager that leads: 2 leaders were lost, each by"
            " an internal error of this job, or while it worked on this job for more than 3 s without a pause"
        )


@pytest.mark.parametrize("initialised", [True, False])
@virtual_time
async def test_job_whose_internal_errors_end_one_leader_after_the_other_is_quarantined(initialised: bool) -> None:
    """An invariant that is broken ends the term; the third leader leaves the job alone, and runs the others."""
    harness, broken = DispatcherHarness(), InvariantBroken("region 0 runs before its inputs are available")
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    if not initialised:
        harness.job_masters.fail_for[A] = broken
    for lost in (1, 2):
        harness.job_masters.made.clear()
        with pytest.RaisesGroup(InvariantBroken, flatten_subgroups=True):
            async with harness.leading():
                if initialised:
                    await until(lambda: len(harness.job_masters.made) == 2)
                    harness.runner(A).crash(broken)
                await asyncio.sleep(10)
        assert harness.lost_leaders == {A: lost}
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.FAILED
        assert A in harness.cluster.quarantined
        assert await status(dispatcher, B) is JobStatus.RUNNING


@virtual_time
async def test_an_internal_error_that_cannot_be_recorded_ends_the_term_all_the_same() -> None:
    harness = DispatcherHarness()
    with pytest.RaisesGroup(InvariantBroken, flatten_subgroups=True):
        async with harness.leading() as dispatcher:
            runner = await harness.submitted(dispatcher, A)
            harness.lost_leaders = OSError("stale file handle")
            runner.crash(InvariantBroken("a bug"))
            await asyncio.sleep(10)


@virtual_time
async def test_leader_that_cannot_read_what_blocked_others_quarantines_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
    harness.lost_leaders = OSError("stale file handle")
    async with harness.leading() as dispatcher:
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING

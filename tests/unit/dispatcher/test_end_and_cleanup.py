"""End and cleanup: FLINK_BEHAVIOURS T1, T2, T4-T6."""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
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

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import (
    AwaitJob,
    ExceptionEntry,
    JobHistory,
    JobQuery,
    JobSnapshot,
    ResultQuery,
    Submitted,
)
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind, RemoveFiles
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time


@pytest.mark.parametrize("ending", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED])
def test_ended_job_is_archived_then_dirty_then_cleaned_then_clean(ending: JobStatus) -> None:
    @virtual_time
    async def scenario() -> None:
        harness = DispatcherHarness()
        async with harness.leading() as dispatcher:
            await dispatcher.submit_job(submission(blobs=[CODE]))
            await until(lambda: harness.job_masters.made != [])
            await settle()
            runner, before = harness.runner(), len(harness.faults.seen)
            if ending is JobStatus.FINISHED:
                runner.finish()
            elif ending is JobStatus.FAILED:
                runner.fail("no")
            else:
                runner.cancel()
            await empty(dispatcher)

            writes = harness.faults.writes(since=before)
            assert writes[:2] == ["ended.put", "results.create_dirty"]
            assert sorted(writes[2:-1]) == ["graphs.remove", "progress.remove"]
            assert writes[-1] == "results.mark_clean"
            assert harness.cluster.graphs == {}
            assert harness.blobs.references == {}
            assert not harness.cluster.results[A].dirty
            assert await status(dispatcher) is ending

    scenario()


@virtual_time
async def test_scratch_of_an_ended_job_is_removed_by_a_task_manager() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work/a", "out/.staging"))
        await empty(dispatcher)

        assert harness.resource_manager.removed == [RemoveFiles(job_id=A, directories=("work/a", "out/.staging"))]


@virtual_time
async def test_each_resource_is_retried_by_itself_with_growing_waits() -> None:
    harness = DispatcherHarness()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work",))
        await asyncio.sleep(1)
        assert harness.cluster.graphs == {}, "the others do not wait for the one that fails"
        await asyncio.sleep(48 * 3600)
        assert harness.cluster.results[A].dirty

        at_s = harness.resource_manager.removals_s
        waits = [round(later - earlier) for earlier, later in itertools.pairwise(at_s)]
        assert waits[:13] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600]
        assert set(waits[12:]) == {3600}

        harness.resource_manager.fail_with = None
        await asyncio.sleep(3600)
        dispatcher.assert_empty()
        assert not harness.cluster.results[A].dirty


@virtual_time
async def test_the_log_says_why_a_job_failed_once_and_nothing_of_one_that_was_cancelled() -> None:
    harness = DispatcherHarness()
    with capture_logs() as logs:
        async with harness.leading() as dispatcher:
            (await harness.submitted(dispatcher)).fail("no such column: x\nand more")
            await empty(dispatcher)
            (await harness.submitted(dispatcher, B)).cancel()
            await empty(dispatcher)

    assert [line for line in logs if line["log_level"] not in {"debug", "info"}] == [
        {
            "event": "job-failed",
            "log_level": "error",
            "job_id": A,
            "name": graph(A).name,
            "kind": "user code",
            "message": "ValueError: no such column: x",
        }
    ]


@virtual_time
async def test_what_cannot_be_removed_until_the_retention_is_over_is_given_up_and_named() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "2 d"})
    harness.resource_manager.fail_with = Unavailable("no such file system")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("s3b://bucket/.flintlock-a",))
        await asyncio.sleep(47 * 3600)
        assert harness.cluster.results[A].dirty
        with capture_logs() as logs:
            await asyncio.sleep(2 * 3600)
        dispatcher.assert_empty()
        (given_up,) = [line for line in logs if line["event"] == "job-cleanup-given-up"]
        assert given_up["directories"] == ["s3b://bucket/.flintlock-a"]
        assert "no such file system" in given_up["reason"]
        await asyncio.sleep(24 * 3600)
        assert A not in harness.cluster.results, "it is forgotten as every other job"
        tries = len(harness.resource_manager.removals_s)
        await asyncio.sleep(48 * 3600)
        assert len(harness.resource_manager.removals_s) == tries, "nothing is retried any more"


@virtual_time
async def test_a_cleanup_that_begins_after_the_retention_waits_for_taskmanagers_to_register() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "1 h"})
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work",))
        await settle()
    await asyncio.sleep(24 * 3600)  # no JobManager runs
    async with harness.leading() as dispatcher:
        await asyncio.sleep(60)
        assert harness.cluster.results[A].dirty
        harness.resource_manager.fail_with = None
        await asyncio.sleep(120)
        dispatcher.assert_empty()
        assert harness.resource_manager.removed == [RemoveFiles(job_id=A, directories=("work",))]


@virtual_time
async def test_waits_of_cleanup_are_configured() -> None:
    harness = DispatcherHarness(
        config={
            "cleanup-strategy.exponential-delay.initial-backoff": "10 s",
            "cleanup-strategy.exponential-delay.max-backoff": "15 s",
        }
    )
    harness.faults.failing["graphs.remove:before"] = OSError("busy")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await asyncio.sleep(41)

        assert harness.faults.seen.count("graphs.remove:before") == 4  # at 0, 10, 25 and 40 s


@virtual_time
async def test_job_that_cannot_be_archived_is_shown_all_the_same_and_is_not_cleaned_up_before_it_is() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["ended.put:before"] = OSError("disk full")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await harness.ha.stores(harness.cluster.token).progress.record(record(A, results=(rows(),)))
        runner.finish(rows())
        await asyncio.sleep(60)

        assert harness.cluster.ended == {}
        assert harness.cluster.results[A].dirty
        assert (A in harness.cluster.graphs, A in harness.cluster.progress) == (True, True)
        assert [line.status for line in (await all_jobs(dispatcher))] == [JobStatus.FINISHED]
        assert await status(dispatcher) is JobStatus.FINISHED
        assert await dispatcher.result(ResultQuery(job_id=A, name="top")) == rows()

        harness.faults.failing.clear()
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty
        assert (A in harness.cluster.graphs, A in harness.cluster.progress) == (False, False)
        assert await dispatcher.result(ResultQuery(job_id=A, name="top")) == rows()


@virtual_time
async def test_next_leader_archives_from_the_progress_what_its_predecessor_could_not() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["ended.put:before"] = OSError("disk full")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await harness.ha.stores(harness.cluster.token).progress.record(record(A, results=(rows(),)))
        runner.finish(rows())
        await asyncio.sleep(60)
    harness.faults.failing.clear()

    async with harness.leading() as dispatcher:
        assert await status(dispatcher) is JobStatus.FINISHED
        await empty(dispatcher)
        shown = await dispatcher.job(JobQuery(job_id=A))
        assert (shown.status, shown.graph, shown.result_names) == (JobStatus.FINISHED, graph(A), ("top",))
        assert [execution.state for execution in shown.executions] == [ExecutionState.FINISHED]
        assert await dispatcher.result(ResultQuery(job_id=A, name="top")) == rows()
        assert A not in harness.cluster.progress


@virtual_time
async def test_next_leader_archives_why_a_job_failed() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["ended.put:before"] = OSError("disk full")
    failure = Failure(kind=FailureKind.USER_CODE, message="before")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        entry = ExceptionEntry(failure=failure, timestamp_ms=1)
        progress = harness.ha.stores(harness.cluster.token).progress
        await progress.record_history(JobHistory(job_id=A, exceptions=(entry,)))
        runner.fail("no")
        await asyncio.sleep(60)
    harness.faults.failing.clear()

    async with harness.leading() as dispatcher:
        await empty(dispatcher)
        shown = await dispatcher.job(JobQuery(job_id=A))
        assert shown.status is JobStatus.FAILED
        assert [entry.failure.message for entry in shown.exceptions] == ["before", "no"]


@virtual_time
async def test_result_says_why_a_job_failed_where_neither_its_archive_nor_its_history_does() -> None:
    """As of a job that reached its timeout on a full disk, before an attempt of it had failed."""
    harness = DispatcherHarness()
    harness.faults.failing["ended.put:before"] = OSError("disk full")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).fail("no")
        await asyncio.sleep(60)
        failed = await dispatcher.job(JobQuery(job_id=A))
    harness.faults.failing.clear()

    async with harness.leading() as dispatcher:
        at_once = (await dispatcher.job(JobQuery(job_id=A))).exceptions
        await empty(dispatcher)
        archived = (await dispatcher.job(JobQuery(job_id=A))).exceptions
    assert failed.exceptions
    assert [entry.failure.message for entry in at_once] == [failed.exceptions[-1].failure.message]
    assert archived == at_once


@virtual_time
async def test_failure_to_write_the_dirty_result_is_fatal() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["results.create_dirty:before"] = OSError("disk full")
    waiting: list[asyncio.Task[JobSnapshot | Exception]] = []
    async with asyncio.TaskGroup() as clients:
        with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="disk full")):
            async with harness.leading() as dispatcher:
                (await harness.submitted(dispatcher, B)).stops_in_s = 5.0
                runner = await harness.submitted(dispatcher)
                waiting += [
                    clients.create_task(outcome_of(dispatcher.await_job(AwaitJob(job_id=job_id, wait_s=3600))))
                    for job_id in (A, B)
                ]
                await settle()
                runner.finish()
                await asyncio.sleep(3600)
        for client in waiting:
            assert isinstance(await client, Unavailable)
        assert asyncio.get_running_loop().time() < 60
    assert harness.runner(B).suspended
    assert harness.cluster.graphs.keys() == {A, B}
    harness.faults.failing.clear()
    async with harness.leading() as dispatcher:
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_submissions_around_a_fatal_error_are_stored_or_answered_with_unavailable() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["results.create_dirty:before"] = OSError("disk full")
    answers: dict[JobId, Submitted | Exception] = {}

    async def submit_every_turn(dispatcher: Dispatcher) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(60):
                job_id = JobId(f"{number:032x}")

                async def submit(job_id: JobId) -> None:
                    answers[job_id] = await outcome_of(dispatcher.submit_job(submission(job_id)))

                tasks.create_task(submit(job_id))
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as clients:
        with pytest.RaisesGroup(OSError):
            async with harness.leading() as dispatcher:
                runner = await harness.submitted(dispatcher)
                clients.create_task(submit_every_turn(dispatcher))
                for _ in range(10):
                    await asyncio.sleep(0)
                runner.finish()
                await asyncio.sleep(3600)

    acknowledged = {job_id for job_id, answer in answers.items() if isinstance(answer, Submitted)}
    assert acknowledged <= harness.cluster.graphs.keys()
    assert acknowledged
    assert len(acknowledged) < len(answers) == 60
    assert {type(answer) for job_id, answer in answers.items() if job_id not in acknowledged} == {Unavailable}


@virtual_time
async def test_failure_to_mark_clean_is_not_fatal_and_the_next_leader_cleans_again() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["results.mark_clean:before"] = OSError("disk full")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
        assert harness.cluster.results[A].dirty
        assert await status(dispatcher) is JobStatus.FINISHED
    harness.faults.failing.clear()
    async with harness.leading() as dispatcher:
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty
        assert len(harness.job_masters.made) == 1


@virtual_time
async def test_suspended_job_has_no_archive_and_no_result_and_keeps_its_graph() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(blobs=[CODE]))
        await settle()
        before = len(harness.faults.seen)

    assert harness.runner().suspended
    assert harness.faults.writes(since=before) == []
    assert harness.cluster.graphs.keys() == {A}
    assert harness.cluster.ended == {}
    assert harness.cluster.results == {}
    assert harness.blobs.references == {A: (CODE,)}


@virtual_time
async def test_job_that_finishes_while_the_dispatcher_stops_is_left_to_the_next_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.finish()
    assert harness.cluster.results == {}
    async with harness.leading() as dispatcher:
        await settle()
        harness.runner().finish()
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty


@virtual_time
async def test_stopping_in_the_middle_of_the_cleanup_leaves_the_dirty_result_for_the_next_leader() -> None:
    harness = DispatcherHarness()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work",))
        await asyncio.sleep(5)
    assert harness.cluster.results[A].dirty
    harness.resource_manager.fail_with = None
    async with harness.leading() as dispatcher:
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty
        assert [message.directories for message in harness.resource_manager.removed] == [("work",)]


@virtual_time
async def test_dispatcher_stop_waits_for_its_jobmasters() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.stops_in_s = 7.0
        before_s = asyncio.get_running_loop().time()

    assert runner.suspended
    assert asyncio.get_running_loop().time() - before_s == pytest.approx(7)


@virtual_time
async def test_crashed_jobmaster_leaves_no_directories_behind() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await harness.ha.stores(harness.cluster.token).progress.record(
            record(A, staging=("out/.staging",), materialised=f"work/{A}/rows/0")
        )
        runner.crash(RuntimeError("a bug"))
        await empty(dispatcher)

        assert [message.directories for message in harness.resource_manager.removed] == [("out/.staging", f"work/{A}")]


@virtual_time
async def test_ended_jobs_are_forgotten_when_their_retention_is_over() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await asyncio.sleep(300)
        await harness.submitted(dispatcher, B)
        await asyncio.sleep(240)
        assert {line.job_id for line in (await all_jobs(dispatcher))} == {A, B}

        await asyncio.sleep(180)

        assert {line.job_id for line in (await all_jobs(dispatcher))} == {B}
        assert harness.cluster.results == {}
        await dispatcher.submit_job(submission(A))
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_failure_to_expire_is_only_logged() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 s"})
    harness.faults.failing["ended.expire:before"] = OSError("busy")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await asyncio.sleep(60)
        assert len(await all_jobs(dispatcher)) == 1

        harness.faults.failing.clear()
        await asyncio.sleep(60)

        assert await all_jobs(dispatcher) == ()


@virtual_time
async def test_uploads_that_no_job_refers_to_expire_and_a_failure_of_that_is_only_logged() -> None:
    harness = DispatcherHarness(config={"blob.upload-retention": "600 s"})
    async with harness.leading():
        await asyncio.sleep(61)
        assert harness.blobs.expired_after_s == [600.0]
        assert harness.blobs.ended_expired_after_s == [7 * 86400.0], "as long as ended jobs are stored"

        harness.blobs.fail_with = OSError("busy")
        await asyncio.sleep(60)
        harness.blobs.fail_with = None
        await asyncio.sleep(60)

        assert harness.blobs.expired_after_s == [600.0] * 3

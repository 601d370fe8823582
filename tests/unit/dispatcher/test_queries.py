"""Queries: listing, details, waiting for the end, results."""

import asyncio

import pytest
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    B,
    C,
    DispatcherHarness,
    Faults,
    empty,
    outcome_of,
    rows,
    settle,
    status,
    submission,
    until,
)

from flintlock.dispatcher.retention import ended
from flintlock.dispatcher.snapshots import initial_snapshot
from flintlock.model.commands import CancelJob, CommandAccepted, PingTask
from flintlock.model.errors import Conflict, NotFound, Unavailable
from flintlock.model.ids import AttemptId, Epoch, FencingToken, JobId, RegionId
from flintlock.model.jobs import AwaitJob, JobQuery, ResultQuery, StoredJob
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryStores
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time

TOP = ResultQuery(job_id=A, name="top")


@virtual_time
async def test_listing_is_newest_start_first_then_by_id() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, B)
        await asyncio.sleep(1)
        await asyncio.gather(dispatcher.submit_job(submission(C)), dispatcher.submit_job(submission(A)))

        assert [line.job_id for line in (await all_jobs(dispatcher))] == [A, C, B]


@virtual_time
async def test_counts_are_the_same_object_until_something_changes() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        first = await dispatcher.job_counts()
        await asyncio.sleep(100)
        assert await dispatcher.job_counts() is first

        runner.move(JobStatus.RESTARTING)
        second = await dispatcher.job_counts()

        assert second is not first
        assert second.by_status[JobStatus.RESTARTING] == 1
        assert await dispatcher.job_counts() is second


@virtual_time
async def test_running_job_wins_over_an_archived_one_of_its_id() -> None:
    """The leader died between archive and result: the job is run on, and shown so."""
    harness = DispatcherHarness()
    harness.faults.hold("results.create_dirty:before")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await until(lambda: A in harness.cluster.ended)
    harness.faults.held.clear()
    async with harness.leading() as dispatcher:
        await settle()

        assert [(line.job_id, line.status) for line in (await all_jobs(dispatcher))] == [(A, JobStatus.RUNNING)]
        assert await status(dispatcher) is JobStatus.RUNNING
        harness.runner().finish()
        await empty(dispatcher)
        assert [line.status for line in (await all_jobs(dispatcher))] == [JobStatus.FINISHED]


@virtual_time
async def test_jobmaster_that_does_not_answer_is_listed_as_it_was_last_known_and_marked() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        (known,) = await all_jobs(dispatcher)
        runner.move(JobStatus.RESTARTING)
        runner.answers_with = RuntimeError("stuck")

        (line,) = await all_jobs(dispatcher)

        assert (line.status, line.stale) == (known.status, True)
        with pytest.raises(Unavailable):
            await dispatcher.job(JobQuery(job_id=A))
        runner.answers_with = None
        runner.move(JobStatus.RUNNING)
        assert not (await all_jobs(dispatcher))[0].stale


@virtual_time
async def test_no_terminal_status_is_shown_before_it_is_durable() -> None:
    harness = DispatcherHarness()
    durable = harness.faults.hold("results.create_dirty:after")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        runner = await harness.submitted(dispatcher)
        assert (await all_jobs(dispatcher))[0].status is JobStatus.RUNNING
        runner.finish(rows())
        details = tasks.create_task(dispatcher.job(JobQuery(job_id=A)))
        waiting = tasks.create_task(dispatcher.await_job(AwaitJob(job_id=A, wait_s=3600)))
        result = tasks.create_task(dispatcher.result(TOP))
        await asyncio.sleep(60)

        assert (await all_jobs(dispatcher))[0].status is JobStatus.RUNNING
        assert not any(task.done() for task in (details, waiting, result))
        durable.set()
        assert (await details).status is JobStatus.FINISHED
        assert (await waiting).status is JobStatus.FINISHED
        assert await result == rows()
        assert (await all_jobs(dispatcher))[0].status is JobStatus.FINISHED


@virtual_time
async def test_waiting_ends_with_the_durable_result_and_not_with_the_cleanup() -> None:
    harness = DispatcherHarness()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        runner = await harness.submitted(dispatcher)
        clients = [tasks.create_task(dispatcher.await_job(AwaitJob(job_id=A, wait_s=3600))) for _ in range(3)]
        await asyncio.sleep(60)
        runner.finish(scratch=("work",))

        for client in clients:
            assert (await client).status is JobStatus.FINISHED
        assert harness.cluster.results[A].dirty


@virtual_time
async def test_waiting_gives_the_job_as_it_is_when_the_wait_is_over() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        before_s = asyncio.get_running_loop().time()

        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=30))).status is JobStatus.RUNNING

        assert asyncio.get_running_loop().time() - before_s == pytest.approx(30)


@virtual_time
async def test_waiting_client_is_answered_when_leadership_is_lost() -> None:
    harness = DispatcherHarness()
    async with asyncio.TaskGroup() as tasks:
        async with harness.leading() as dispatcher:
            await harness.submitted(dispatcher)
            waiting = tasks.create_task(outcome_of(dispatcher.await_job(AwaitJob(job_id=A, wait_s=3600))))
            await settle()
        before_s = asyncio.get_running_loop().time()
        assert isinstance(await waiting, Unavailable)
        assert asyncio.get_running_loop().time() == before_s


@virtual_time
async def test_unknown_job_is_not_found() -> None:
    async with DispatcherHarness().leading() as dispatcher:
        for call in (
            dispatcher.job(JobQuery(job_id=A)),
            dispatcher.await_job(AwaitJob(job_id=A, wait_s=30)),
            dispatcher.result(TOP),
        ):
            with pytest.raises(NotFound, match=A):
                await call


@virtual_time
async def test_result_of_a_finished_job_is_kept_across_failovers() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(rows())
        await empty(dispatcher)
        assert await dispatcher.result(TOP) == rows()
    async with harness.leading() as dispatcher:
        assert await dispatcher.result(TOP) == rows()
        with pytest.raises(NotFound, match="it has top"):
            await dispatcher.result(ResultQuery(job_id=A, name="tip"))


@virtual_time
async def test_result_of_a_job_that_has_not_finished_is_a_conflict_that_names_its_state() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        with pytest.raises(Conflict, match="RUNNING"):
            await dispatcher.result(TOP)
        runner.fail("no")
        await empty(dispatcher)
        with pytest.raises(Conflict, match="FAILED"):
            await dispatcher.result(TOP)


@virtual_time
async def test_details_of_an_ended_job_come_from_memory_first_and_then_from_the_store() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).fail("a division by zero")
        await empty(dispatcher)
        recent = await dispatcher.job(JobQuery(job_id=A))
        assert "ended.get:after" not in harness.faults.seen
    async with harness.leading() as dispatcher:
        stored = await dispatcher.job(JobQuery(job_id=A))
        assert stored == recent
        assert await dispatcher.job(JobQuery(job_id=A)) is stored
        assert harness.faults.seen.count("ended.get:after") == 1


@virtual_time
async def test_only_a_few_ended_jobs_are_cached_in_memory() -> None:
    harness = DispatcherHarness()
    count = ended.RECENT * 2
    async with harness.leading() as dispatcher:
        for number in range(count):
            (await harness.submitted(dispatcher, JobId(f"{number:032x}"))).finish()
        await empty(dispatcher)
        assert len(await all_jobs(dispatcher)) == count

        assert await status(dispatcher, JobId(f"{count - 1:032x}")) is JobStatus.FINISHED
        assert "ended.get:after" not in harness.faults.seen
        assert await status(dispatcher, JobId(f"{0:032x}")) is JobStatus.FINISHED
        assert "ended.get:after" in harness.faults.seen


@virtual_time
async def test_ended_job_whose_archive_cannot_be_read_is_shown_from_its_result() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
    harness.cluster.ended.clear()
    async with harness.leading() as dispatcher:
        assert await status(dispatcher) is JobStatus.FINISHED
        with pytest.raises(Conflict, match="FINISHED"):
            await dispatcher.command(CancelJob(job_id=A))


@virtual_time
async def test_query_of_a_task_is_answered_by_the_job_master_of_its_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        ping = PingTask(attempt=AttemptId(job_id=A, region=RegionId(0), attempt=0))
        assert isinstance(await outcome_of(dispatcher.query_task(ping)), NotFound)
        runner = await harness.submitted(dispatcher)

        assert await dispatcher.query_task(ping) == CommandAccepted()
        assert runner.queries == [ping]

        runner.finish()
        await empty(dispatcher)
        refusal = await outcome_of(dispatcher.query_task(ping))
        assert isinstance(refusal, Conflict)
        assert "FINISHED: none of its attempts runs" in refusal.public


@virtual_time
async def test_a_job_that_ends_while_its_archive_is_read_is_known_with_its_history() -> None:
    """What was read is older, or is the bare result: it must not displace the snapshot of the end."""
    steps = Faults()
    jobs = ended.EndedJobs(MemoryStores(MemoryCluster(), FencingToken(epoch=Epoch(1), session="s"), steps))
    snapshot = initial_snapshot(StoredJob(graph=submission(A).graph, submitted_ms=3))
    read = steps.hold("ended.get:after")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(jobs.get(A), name="reading")
        await settle()
        jobs.remember(snapshot)
        read.set()

    assert reading.result() is snapshot
    assert await jobs.get(A) is snapshot

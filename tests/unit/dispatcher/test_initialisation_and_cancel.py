"""Initialisation and cancel: FLINK_BEHAVIOURS S6, S7, T3."""

import asyncio

import pytest
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    DispatcherHarness,
    empty,
    outcome_of,
    rows,
    settle,
    status,
    submission,
    until,
)

from flintlock.model.commands import CancelJob, RescaleJob, TriggerOperation
from flintlock.model.errors import Conflict, JobFailed, NotFound, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.jobs import AwaitJob, JobQuery
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time

QUERY = JobQuery(job_id=A)


@virtual_time
async def test_job_without_a_jobmaster_shows_initializing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())

        assert harness.job_masters.made == []
        (line,) = await all_jobs(dispatcher)
        assert line.status is JobStatus.INITIALIZING
        assert line.tasks.total == 2
        assert (await dispatcher.await_job(AwaitJob(job_id=A))).status is JobStatus.INITIALIZING


@virtual_time
async def test_cancel_while_initialising_is_queued() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())
        assert harness.job_masters.made == []
        await dispatcher.command(CancelJob(job_id=A))
        ended = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=10))
        assert ended.status is JobStatus.CANCELED
        assert JobStatus.RUNNING not in ended.timestamps
        assert harness.runner().cancels == 1


@virtual_time
async def test_cancel_reaches_the_jobmaster_and_returns_before_the_job_has_ended() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.obeys = False

        await dispatcher.command(CancelJob(job_id=A))
        await dispatcher.command(CancelJob(job_id=A))

        assert runner.cancels == 2
        assert await status(dispatcher) is JobStatus.CANCELLING
        runner.end(JobStatus.CANCELED)
        await empty(dispatcher)
        assert await status(dispatcher) is JobStatus.CANCELED


@virtual_time
async def test_cancel_of_a_canceled_job_is_acknowledged() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.command(CancelJob(job_id=A))
        await empty(dispatcher)

        await dispatcher.command(CancelJob(job_id=A))
    async with harness.leading() as dispatcher:
        await dispatcher.command(CancelJob(job_id=A))


@pytest.mark.parametrize("ending", [JobStatus.FINISHED, JobStatus.FAILED])
def test_cancel_of_another_terminal_job_is_a_conflict(ending: JobStatus) -> None:
    @virtual_time
    async def scenario() -> None:
        harness = DispatcherHarness()
        async with harness.leading() as dispatcher:
            runner = await harness.submitted(dispatcher)
            if ending is JobStatus.FINISHED:
                runner.finish()
            else:
                runner.fail("no")
            await empty(dispatcher)

            with pytest.raises(Conflict, match=ending):
                await dispatcher.command(CancelJob(job_id=A))

    scenario()


@virtual_time
async def test_cancel_of_an_unknown_job_is_not_found() -> None:
    async with DispatcherHarness().leading() as dispatcher:
        with pytest.raises(NotFound, match=A):
            await dispatcher.command(CancelJob(job_id=A))


@virtual_time
async def test_job_that_is_publishing_cannot_be_cancelled() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.publishing = True

        with pytest.raises(Conflict, match="publishing"):
            await dispatcher.command(CancelJob(job_id=A))


@virtual_time
async def test_job_in_its_cleanup_phase_cannot_be_cancelled() -> None:
    harness = DispatcherHarness()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work",))
        await until(lambda: A in harness.cluster.results)
        await settle()

        with pytest.raises(Conflict, match="FINISHED"):
            await dispatcher.command(CancelJob(job_id=A))

        assert harness.runner().cancels == 0


@virtual_time
async def test_cancel_of_a_job_whose_end_is_not_durable_waits_and_is_then_a_conflict() -> None:
    harness = DispatcherHarness()
    durable = harness.faults.hold("results.create_dirty:before")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        (await harness.submitted(dispatcher)).finish()
        cancel = tasks.create_task(outcome_of(dispatcher.command(CancelJob(job_id=A))))
        await settle()
        assert not cancel.done()

        durable.set()

        answer = await cancel
        assert isinstance(answer, Conflict)
        assert "FINISHED" in answer.public
        assert harness.runner().cancels == 0


@virtual_time
async def test_initialisation_failure_fails_the_job_with_its_cause() -> None:
    harness = DispatcherHarness()
    harness.job_masters.fail_with = JobFailed("a setting that contradicts itself")
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())
        job = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=10))

        assert job.status is JobStatus.FAILED
        assert job.exceptions[0].failure.message == "a setting that contradicts itself"
        assert "JobFailed" in job.exceptions[0].failure.stack_trace
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty
        assert harness.cluster.graphs == {}
        assert (await all_jobs(dispatcher))[0].status is JobStatus.FAILED


@virtual_time
async def test_initialisation_failure_of_a_recovered_job_fails_it_and_no_other() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.job_masters.fail_with = ValueError("cannot be initialised any more")
    async with harness.leading() as dispatcher:
        job = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=10))

        assert job.status is JobStatus.FAILED
        assert job.exceptions[0].failure.message == "cannot be initialised any more"


@virtual_time
async def test_jobmaster_that_ends_by_an_error_fails_its_own_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).crash(RuntimeError("a bug"))
        job = await dispatcher.await_job(AwaitJob(job_id=A, wait_s=10))

        assert job.status is JobStatus.FAILED
        assert job.exceptions[0].failure.exception == "RuntimeError"


@virtual_time
async def test_queued_cancel_that_the_jobmaster_refuses_lets_the_job_run() -> None:
    def refuse(runner: FakeJobMasterRunner) -> None:
        runner.publishing = True

    harness = DispatcherHarness()
    harness.job_masters.prepare = refuse
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())
        await dispatcher.command(CancelJob(job_id=A))
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING
        harness.runner().finish(rows())
        await empty(dispatcher)
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_recovered_job_accepts_a_cancel_only_once_its_jobmaster_can_refuse_it() -> None:
    def refuse(runner: FakeJobMasterRunner) -> None:
        runner.publishing = True

    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    harness.job_masters.prepare = refuse
    async with harness.leading() as dispatcher:
        with pytest.raises(Unavailable, match="is being initialised"):
            await dispatcher.command(CancelJob(job_id=A))
        await settle()
        with pytest.raises(Conflict):
            await dispatcher.command(CancelJob(job_id=A))


@virtual_time
async def test_acknowledged_cancel_is_carried_out_by_the_next_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).obeys = False
        await dispatcher.command(CancelJob(job_id=A))
    async with harness.leading() as dispatcher:
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))).status is JobStatus.CANCELED
        assert harness.runner().cancels == 1


@virtual_time
async def test_cancel_costs_one_durable_write_however_often_it_is_sent() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.obeys = False
        harness.faults.seen.clear()

        for _ in range(3):
            await dispatcher.command(CancelJob(job_id=A))

        assert [step for step in harness.faults.seen if step.endswith(":after")] == ["operations.put:after"]
        await dispatcher.command(CancelJob(job_id=A, force=True))
        assert harness.faults.seen.count("operations.put:after") == 2, "that it was forced is recorded, too"


@virtual_time
async def test_refused_cancel_is_not_recorded() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).publishing = True
        with pytest.raises(Conflict):
            await dispatcher.command(CancelJob(job_id=A))
        assert harness.cluster.operations == {}


@virtual_time
async def test_cancel_that_cannot_be_stored_is_carried_out_but_not_acknowledged() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        runner.obeys = False
        harness.faults.failing["operations.put:before"] = Unavailable("the disk is full")
        with pytest.raises(Unavailable, match="is being cancelled, but that could not be stored: the disk is full"):
            await dispatcher.command(CancelJob(job_id=A))
        assert runner.cancels == 1
        del harness.faults.failing["operations.put:before"]
        await dispatcher.command(CancelJob(job_id=A))
        assert A in harness.cluster.operations


@virtual_time
async def test_operations_that_are_recorded_later_keep_the_cancel() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).obeys = False
        await dispatcher.command(CancelJob(job_id=A))
        trigger = TriggerOperation(trigger_id=TriggerId("t"), command=RescaleJob(job_id=A, parallelism=2))
        await dispatcher.trigger(trigger)
        await settle()
    async with harness.leading() as dispatcher:
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))).status is JobStatus.CANCELED

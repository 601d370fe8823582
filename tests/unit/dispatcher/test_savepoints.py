"""Savepoints as operations: recorded before they are made, made once, and found again by the next leader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    DispatcherHarness,
    empty,
    outcome_of,
    settle,
    status,
    submission,
    until,
)

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import (
    DrainTask,
    JobOperation,
    OperationQuery,
    OperationStatus,
    RescaleJob,
    StopJob,
    TriggerOperation,
    TriggerSavepoint,
)
from flintlock.model.errors import Invalid, Refused, Unavailable
from flintlock.model.ids import AttemptId, InstanceId, RegionId, StepName, TaskManagerId, TriggerId
from flintlock.model.jobgraph import JobType, JobVertex, vertex_id
from flintlock.model.jobs import ExecutionInfo, JobSubmission
from flintlock.model.operations import Sink, Source
from flintlock.model.slots import ResourceOverview, TaskManagerInfo
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.streams import StreamQuery
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import virtual_time

TRIGGER = TriggerId("1" * 32)
SAVE = TriggerOperation(trigger_id=TRIGGER, command=TriggerSavepoint(job_id=A, target_directory="/s"))
LOCATION = f"/s/{A[:6]}-{TRIGGER}"


async def operation(dispatcher: Dispatcher) -> JobOperation:
    return await dispatcher.operation(OperationQuery(job_id=A, trigger_id=TRIGGER))


async def completed(dispatcher: Dispatcher) -> JobOperation:
    """Wait for the outcome, as a client does."""
    for _ in range(1000):
        found = await operation(dispatcher)
        if found.status is OperationStatus.COMPLETED:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the operation never completed")


@virtual_time
async def test_a_savepoint_is_triggered_and_its_place_is_the_outcome() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        harness.savepoints.proceed.clear()
        assert (await dispatcher.trigger(SAVE)).status is OperationStatus.IN_PROGRESS
        await settle()
        assert (await operation(dispatcher)).status is OperationStatus.IN_PROGRESS
        harness.savepoints.proceed.set()

        outcome = await completed(dispatcher)

        assert (outcome.failure, outcome.location) == (None, LOCATION)
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_a_trigger_that_is_sent_again_makes_no_second_savepoint() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.trigger(SAVE)
        await completed(dispatcher)

        assert (await dispatcher.trigger(SAVE)).location == LOCATION
        assert harness.savepoints.asked == 1


@virtual_time
async def test_the_next_leader_completes_a_savepoint_that_was_being_made() -> None:
    """And a client that triggers again, because it got no answer, is answered by it."""
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.trigger(SAVE)
        await until(lambda: harness.savepoints.asked == 1)
    harness.savepoints.proceed.set()
    async with harness.leading() as dispatcher:
        assert (await dispatcher.trigger(SAVE)).trigger_id == TRIGGER
        assert (await completed(dispatcher)).location == LOCATION
        assert harness.savepoints.made == [(TRIGGER, LOCATION)]


@virtual_time
async def test_a_savepoint_that_cannot_be_made_is_a_failed_operation_and_the_job_goes_on() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        harness.savepoints.fail_with = Unavailable("the disk is full")
        await dispatcher.trigger(SAVE)

        outcome = await completed(dispatcher)

        assert outcome.failure is not None
        assert (outcome.failure.message, outcome.location) == ("the disk is full", "")
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_an_error_that_nobody_expects_is_the_outcome_and_ends_no_leader() -> None:
    """The operation is durable: each leader that resumes it would end."""
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    harness.savepoints.fail_with = RuntimeError("Symlink loop")
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.trigger(SAVE)
        await until(lambda: harness.savepoints.asked == 1)
    harness.savepoints.proceed.set()
    async with harness.leading() as dispatcher:
        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "RuntimeError('Symlink loop')" in failure.message
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_a_rescale_that_ends_by_an_error_that_nobody_expects_ends_no_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        harness.runner().command_fails_with = RuntimeError("a bug")
        await dispatcher.trigger(TriggerOperation(trigger_id=TRIGGER, command=RescaleJob(job_id=A, parallelism=3)))
        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "RuntimeError('a bug')" in failure.message


@virtual_time
async def test_the_cleanup_of_an_ended_job_waits_for_its_savepoint() -> None:
    """It removes the checkpoints, of which the savepoint is being made."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        harness.savepoints.proceed.clear()
        await dispatcher.trigger(SAVE)
        await until(lambda: harness.savepoints.asked == 1)
        runner.finish()
        await settle()

        assert A in dispatcher.jobs, "it is not cleaned up"
        harness.savepoints.proceed.set()
        assert (await completed(dispatcher)).location == LOCATION
        await empty(dispatcher)


# Jobs that begin from a savepoint


def restoring() -> JobSubmission:
    made = submission(A)
    return structs.replace(made, graph=structs.replace(made.graph, config={"execution.state-recovery.path": "/s/one"}))


@virtual_time
async def test_a_job_is_restored_before_it_gets_its_job_master() -> None:
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(restoring())
        await settle()
        assert harness.job_masters.made == []
        harness.savepoints.proceed.set()
        await until(lambda: bool(harness.job_masters.made))

        assert harness.savepoints.restored == [A]


@virtual_time
async def test_a_job_that_cannot_be_restored_is_refused_and_not_stored() -> None:
    harness = DispatcherHarness()
    harness.savepoints.refuse_with = Invalid("the sink is ahead")
    async with harness.leading() as dispatcher:
        assert isinstance(await outcome_of(dispatcher.submit_job(restoring())), Invalid)

        assert not harness.cluster.graphs
        assert not dispatcher.jobs


@virtual_time
async def test_the_next_leader_restores_a_job_whose_leader_died_before() -> None:
    """And not once more under the leader after that."""
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(restoring())
        await settle()
    harness.savepoints.proceed.set()
    for _ in range(2):
        async with harness.leading():
            await until(lambda: bool(harness.job_masters.made))

    assert harness.savepoints.restored == [A]


@virtual_time
async def test_a_restore_that_fails_is_the_end_of_the_job() -> None:
    harness = DispatcherHarness()
    harness.savepoints.fail_with = Invalid("the savepoint is damaged")
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(restoring())
        await empty(dispatcher)

        assert await status(dispatcher) is JobStatus.FAILED
        assert harness.job_masters.made == []


# Jobs that are stopped with a savepoint

STOP = TriggerOperation(trigger_id=TRIGGER, command=StopJob(job_id=A, target_directory="/s"))


async def streaming(
    harness: DispatcherHarness, dispatcher: Dispatcher, config: dict[str, str] | None = None
) -> FakeJobMasterRunner:
    """Submit a streaming job and return its JobMaster, which runs."""
    made = submission(A)
    query = StreamQuery(uid="files-v1")
    vertices = (
        JobVertex(id=vertex_id(A, "in"), name=StepName("in"), operation=Source(format="rate", stream=True)),
        JobVertex(
            id=vertex_id(A, "out"),
            name=StepName("out"),
            operation=Sink(format="parquet", path="/out"),
            inputs=(StepName("in"),),
            query=query,
        ),
    )
    graph = structs.replace(made.graph, job_type=JobType.STREAMING, vertices=vertices, config=config or {})
    await dispatcher.submit_job(structs.replace(made, graph=graph))
    await until(lambda: bool(harness.job_masters.made))
    await until(lambda: harness.runner().status is JobStatus.RUNNING)
    runner = harness.runner()
    runner.executions = (running(0),)
    return runner


@virtual_time
async def test_a_streaming_job_is_refused_while_taskmanagers_have_no_place_for_checkpoints_in_common() -> None:
    """As they are when it is submitted; of those that come later, its attempts find out for themselves."""
    harness = DispatcherHarness(unshared_checkpoints="/state/checkpoints")
    registered = [
        TaskManagerInfo(
            id=TaskManagerId(host),
            instance=InstanceId(host),
            address=f"{host}:7000",
            slots=1,
            free_slots=1,
            last_heartbeat_ms=0,
        )
        for host in ("10.0.0.1", "10.0.0.2")
    ]
    async with harness.leading() as dispatcher:
        harness.resource_manager.seen = ResourceOverview(task_managers=tuple(registered))
        with pytest.raises(Refused, match=r"TaskManagers are on 10\.0\.0\.1, 10\.0\.0\.2"):
            await streaming(harness, dispatcher)
        assert harness.cluster.graphs == {}
        harness.resource_manager.seen = ResourceOverview(task_managers=tuple(registered[:1]))
        await streaming(harness, dispatcher)
        assert harness.resource_manager.overviews == 0  # it needs no queue


def running(attempt: int) -> ExecutionInfo:
    return ExecutionInfo(region=RegionId(0), attempt=attempt, state=ExecutionState.RUNNING, timestamps={})


@virtual_time
async def test_a_stopped_job_is_drained_saved_and_finished() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await until(lambda: bool(runner.queries))
        assert runner.queries[0] == DrainTask(attempt=AttemptId(job_id=A, region=RegionId(0), attempt=0))
        assert (await operation(dispatcher)).status is OperationStatus.IN_PROGRESS
        runner.finish()
        await empty(dispatcher)

        assert (await completed(dispatcher)).location == LOCATION
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_a_job_is_not_finished_before_it_is_saved() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        harness.savepoints.proceed.clear()
        runner.finish()
        await until(lambda: harness.savepoints.asked == 1)
        assert not await harness.ha.stores(harness.cluster.token).results.get(A)
        harness.savepoints.proceed.set()
        await empty(dispatcher)
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_the_next_leader_goes_on_to_stop_the_job() -> None:
    """Also if the job was done, and its leader died while the savepoint was being made."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        harness.savepoints.proceed.clear()
        runner.finish()
        await until(lambda: harness.savepoints.asked == 1)
    harness.savepoints.proceed.set()
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 2)
        second = harness.runner()
        await until(lambda: second.status is JobStatus.RUNNING)
        second.executions = (running(1),)
        await until(lambda: bool(second.queries))
        second.finish()
        await empty(dispatcher)

        assert (await completed(dispatcher)).location == LOCATION
        assert harness.savepoints.made == [(TRIGGER, LOCATION)]


@virtual_time
async def test_a_stop_that_a_former_leader_has_begun_is_not_refused_any_more() -> None:
    """Attempts may have ended for it: refused now, the job would finish unsaved, and lose its checkpoints."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await until(lambda: bool(runner.queries))
    harness.savepoints.unprepared = Unavailable("the directory is out of reach")
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 2)
        await until(lambda: harness.runner().status is JobStatus.RUNNING)
        await settle()
        assert (await operation(dispatcher)).status is OperationStatus.IN_PROGRESS
        harness.runner().finish()
        await empty(dispatcher)

        assert (await completed(dispatcher)).location == LOCATION


@virtual_time
async def test_a_stopped_job_that_cannot_be_saved_keeps_its_checkpoints() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await settle()
        harness.savepoints.fail_with = Unavailable("the disk is full")
        runner.end(JobStatus.FINISHED, scratch=(f"/checkpoints/{A}", "/out/.flintlock-1"))
        await empty(dispatcher)

        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert failure.message == "the disk is full; the job has finished, and its checkpoints are kept"
        assert [order.directories for order in harness.resource_manager.removed] == [("/out/.flintlock-1",)]


@virtual_time
async def test_a_stop_that_ends_by_an_error_that_nobody_expects_keeps_the_checkpoints_and_the_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await settle()
        harness.savepoints.fail_with = RuntimeError("a bug")
        runner.end(JobStatus.FINISHED, scratch=(f"/checkpoints/{A}",))
        await empty(dispatcher)

        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert failure.message.endswith("RuntimeError('a bug'); the job has finished, and its checkpoints are kept")
        assert await status(dispatcher) is JobStatus.FINISHED


@virtual_time
async def test_checkpoints_that_a_stop_has_said_to_be_kept_are_kept_by_the_next_leader_too() -> None:
    """The outcome of the stop is durable before the end of the job is."""
    harness = DispatcherHarness()
    checkpoints = f"/checkpoints/{A}"
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await settle()
        harness.savepoints.fail_with = Unavailable("the disk is full")
        harness.faults.hold("results.create_dirty:before")
        runner.end(JobStatus.FINISHED, scratch=(checkpoints,))
        assert (await completed(dispatcher)).failure is not None
        assert not await harness.ha.stores(harness.cluster.token).results.get(A)
    harness.faults.held.clear()
    harness.savepoints.fail_with = None
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 2)
        harness.runner().end(JobStatus.FINISHED, scratch=(checkpoints,))
        await empty(dispatcher)

        assert await status(dispatcher) is JobStatus.FINISHED
        assert checkpoints not in [path for order in harness.resource_manager.removed for path in order.directories]


@virtual_time
async def test_a_stop_of_a_batch_job_or_into_a_directory_that_cannot_be_used_changes_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.trigger(STOP)
        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "is a batch job" in failure.message
        assert await status(dispatcher) is JobStatus.RUNNING
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        harness.savepoints.unprepared = Refused("not there")
        await dispatcher.trigger(STOP)
        assert (await completed(dispatcher)).failure is not None
        assert runner.queries == []


@virtual_time
async def test_a_job_that_fails_while_it_is_stopped_has_no_savepoint() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.trigger(STOP)
        await settle()
        runner.fail("no")
        await empty(dispatcher)

        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "it is FAILED" in failure.message
        assert harness.savepoints.asked == 0


@virtual_time
async def test_a_job_that_ends_while_its_stop_is_recorded_fails_the_stop_and_not_the_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        recorded = harness.faults.hold("operations.put:after")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dispatcher.trigger(STOP), name="stop")
            await until(lambda: "operations.put:after" in harness.faults.seen)
            runner.fail("no")
            await until(lambda: "results.create_dirty:after" in harness.faults.seen)
            recorded.set()
        await empty(dispatcher)

        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "has ended" in failure.message

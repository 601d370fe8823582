"""Rescaling streaming jobs: one operation that is completed or undone, whichever leader carries it out."""

from __future__ import annotations

import asyncio

from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, DispatcherHarness, empty, settle, status, until
from tests.unit.dispatcher.test_savepoints import TRIGGER, completed, operation, running, streaming
from tests.unit.savepoints.checkpoint_samples import streaming_job

from flintlock.dispatcher.core import rescale_outcomes
from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.ha import payloads
from flintlock.model.commands import OperationStatus, RescaleJob, TriggerOperation, TriggerSavepoint
from flintlock.model.ids import RegionId, TriggerId
from flintlock.model.jobs import ExecutionInfo, JobRescaling, ParallelismRange, StoredJob
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.checkpoints import QueryProgress, StateRescale, StateRescaled
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import virtual_time

RESCALE = TriggerOperation(trigger_id=TRIGGER, command=RescaleJob(job_id=A, parallelism=4))
SAVE = TriggerOperation(trigger_id=TriggerId("2" * 32), command=TriggerSavepoint(job_id=A, target_directory="/s"))
FORMER = "query 'out' continues with 2 partitions: the disk is full"


def reported(failure: str = "", trigger_id: TriggerId = TRIGGER, attempt: int = 1) -> ExecutionInfo:
    """Return an attempt that runs and has said what came of its rescale."""
    outcome = StateRescaled(trigger_id=trigger_id, partitions=2 if failure else 4, failure=failure)
    return structs.replace(running(attempt), query=QueryProgress(checkpoint="/c", rescaled=outcome))


def restarts(runner: FakeJobMasterRunner) -> list[StateRescale | None]:
    return [command.rescale for command in runner.commands if isinstance(command, RescaleJob)]


def stored(harness: DispatcherHarness) -> StoredJob:
    return payloads.STORED_JOB.decode(harness.cluster.graphs[A], "the job")


async def begun(harness: DispatcherHarness, dispatcher: Dispatcher) -> FakeJobMasterRunner:
    """Submit a streaming job and have it rescaled, up to the restart of its queries."""
    runner = await streaming(harness, dispatcher)
    await dispatcher.trigger(RESCALE)
    await until(lambda: bool(restarts(runner)))
    return runner


@virtual_time
async def test_queries_are_restarted_and_the_operation_waits_until_they_run_again() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await begun(harness, dispatcher)
        assert restarts(runner) == [StateRescale(trigger_id=TRIGGER, partitions=4)]
        rescaling = stored(harness).rescaling
        assert rescaling == JobRescaling(trigger_id=TRIGGER, partitions=4), "stored before they are restarted"
        await asyncio.sleep(5)
        assert (await operation(dispatcher)).status is OperationStatus.IN_PROGRESS, "the former attempt still runs"
        runner.executions = (running(0), reported())

        assert (await completed(dispatcher)).failure is None
        rescaling = stored(harness).rescaling
        assert rescaling is not None
        assert rescaling.completed
        assert {limits.upper for limits in stored(harness).requirements.values()} == {4}


@virtual_time
async def test_a_state_that_cannot_be_repartitioned_leaves_the_job_with_what_it_had() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await begun(harness, dispatcher)
        runner.executions = (running(0), reported("the disk is full"))

        failure = (await completed(dispatcher)).failure

        assert failure is not None
        assert failure.message == FORMER
        assert stored(harness).requirements == {}
        reverted = runner.commands[-1]
        assert isinstance(reverted, RescaleJob)
        assert (reverted.reverts, reverted.rescale, reverted.vertices) == (True, None, {})
        assert await status(dispatcher) is JobStatus.RUNNING


def test_where_a_rescale_has_failed_for_some_queries_the_others_are_named() -> None:
    """They keep what they have: a repeated rescale is about the rest."""
    graph = streaming_job("a-v1", "b-v1", "c-v1")
    stateless = StateRescaled(trigger_id=TRIGGER)
    executions = [
        structs.replace(execution, region=RegionId(number))
        for number, execution in enumerate(
            (
                reported(),
                reported("the disk is full"),
                structs.replace(running(1), query=QueryProgress(checkpoint="/c", rescaled=stateless)),
            )
        )
    ]

    assert rescale_outcomes(graph, executions, TRIGGER) == (
        "query 's1' continues with 2 partitions: the disk is full",
        "query 's0' has 4 partitions now",
    )
    assert rescale_outcomes(graph, (executions[0], executions[2]), TRIGGER) is None
    executions[1] = structs.replace(executions[0], region=RegionId(1))
    assert rescale_outcomes(graph, executions, TRIGGER) == ()


@virtual_time
async def test_the_next_leader_goes_on_with_a_rescale_whose_leader_died() -> None:
    """It restarts the queries: the former leader may not have done that. What was before is still known."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await begun(harness, dispatcher)
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 2)
        second = harness.runner()
        await until(lambda: bool(restarts(second)))
        second.executions = (reported("the disk is full"),)

        failure = (await completed(dispatcher)).failure

        assert failure is not None
        assert failure.message == FORMER
        assert stored(harness).requirements == {}


@virtual_time
async def test_an_outcome_that_is_stored_with_the_job_is_not_found_out_again() -> None:
    """The leader died between the two writes: the next one completes the operation, and restarts nothing."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await begun(harness, dispatcher)
    done = JobRescaling(trigger_id=TRIGGER, partitions=4, completed=True, failure=FORMER)
    changed = structs.replace(stored(harness), rescaling=done, requirements={})
    harness.cluster.graphs[A] = payloads.STORED_JOB.encode(changed)
    async with harness.leading() as dispatcher:
        failure = (await completed(dispatcher)).failure

        assert failure is not None
        assert failure.message == FORMER
        assert restarts(harness.runner()) == []


@virtual_time
async def test_no_savepoint_is_made_while_checkpoints_are_exchanged() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await begun(harness, dispatcher)
        await dispatcher.trigger(SAVE)
        await settle()
        assert harness.savepoints.asked == 0
        runner.executions = (reported(),)
        await until(lambda: harness.savepoints.asked == 1)


@virtual_time
async def test_a_rescale_ends_with_its_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await begun(harness, dispatcher)
        runner.finish()
        await empty(dispatcher)

        failure = (await completed(dispatcher)).failure
        assert failure is not None
        assert "has ended" in failure.message


@virtual_time
async def test_one_rescale_at_a_time() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await begun(harness, dispatcher)
        other = structs.replace(RESCALE, trigger_id=TriggerId("3" * 32))
        await dispatcher.trigger(other)
        await settle()
        assert len(restarts(runner)) == 1
        runner.executions = (reported(),)
        assert (await completed(dispatcher)).failure is None
        assert set(stored(harness).requirements.values()) == {ParallelismRange(upper=4)}


@virtual_time
async def test_an_attempt_that_does_not_run_or_speaks_of_another_rescale_is_no_outcome() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        graph = (await streaming(harness, dispatcher), stored(harness).graph)[1]
        ended = structs.replace(reported(), state=ExecutionState.FAILED)

        assert rescale_outcomes(graph, (), TRIGGER) is None
        assert rescale_outcomes(graph, (running(0),), TRIGGER) is None
        assert rescale_outcomes(graph, (reported(trigger_id=TriggerId("9" * 32)),), TRIGGER) is None
        assert rescale_outcomes(graph, (reported(), ended), TRIGGER) is None
        assert rescale_outcomes(graph, (ended, reported()), TRIGGER) == ()
        rescaled = structs.replace(reported(), state=ExecutionState.FINISHED)
        assert rescale_outcomes(graph, (rescaled,), TRIGGER) == ()
        failed = structs.replace(reported(failure="the disk is full"), state=ExecutionState.FINISHED)
        assert len(rescale_outcomes(graph, (failed,), TRIGGER) or ()) == 1, "also of one that was stopped since"


@virtual_time
async def test_a_query_that_was_stopped_before_it_was_rescaled_is_reported_unless_it_ends_by_itself() -> None:
    """A job may be stopped, also for an upgrade, while it is rescaled."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        graph = (await streaming(harness, dispatcher), stored(harness).graph)[1]
        finished = structs.replace(running(0), state=ExecutionState.FINISHED)
        problems = rescale_outcomes(graph, (finished,), TRIGGER)
        assert problems == ("query 'out' was stopped before its state was repartitioned",)

        once = StreamQuery(uid="files-v1", trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW))
        read, written = graph.vertices
        ends = structs.replace(graph, vertices=(read, structs.replace(written, query=once)))
        assert rescale_outcomes(ends, (finished,), TRIGGER) == ()

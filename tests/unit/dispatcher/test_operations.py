"""Asynchronous operations: durable before they are acknowledged, carried out at least once, never forgotten."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, empty, graph, outcome_of, settle, until

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import (
    MAX_OPERATIONS,
    CancelJob,
    JobCommand,
    JobOperation,
    OperationQuery,
    OperationStatus,
    RescaleJob,
    TriggerOperation,
)
from flintlock.model.errors import Conflict, NotFound, Unavailable
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.states import JobStatus
from flintlock.testing.virtual_time import run_virtual, virtual_time

FIRST, SECOND = TriggerId("1" * 32), TriggerId("2" * 32)


def rescale(parallelism: int, trigger_id: TriggerId = FIRST) -> TriggerOperation:
    return TriggerOperation(trigger_id=trigger_id, command=RescaleJob(job_id=A, parallelism=parallelism))


async def operation(dispatcher: Dispatcher, trigger_id: TriggerId = FIRST, job_id: JobId = A) -> JobOperation:
    return await dispatcher.operation(OperationQuery(job_id=job_id, trigger_id=trigger_id))


async def completed(dispatcher: Dispatcher, trigger_id: TriggerId = FIRST) -> JobOperation:
    """Wait for the outcome, as a client does."""
    for _ in range(1000):
        found = await operation(dispatcher, trigger_id)
        if found.status is OperationStatus.COMPLETED:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the operation never completed")


def uppers(requirements: dict[str, ParallelismRange]) -> set[int]:
    return {limits.upper for limits in requirements.values()}


@virtual_time
async def test_operation_is_acknowledged_in_progress_and_completes() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        acknowledged = await dispatcher.trigger(rescale(3))

        assert acknowledged.status is OperationStatus.IN_PROGRESS
        outcome = await completed(dispatcher)
        assert (outcome.failure, outcome.started_ms <= outcome.ended_ms) == (None, True)
        assert set(runner.required[-1].vertices) == {vertex.id for vertex in graph().vertices}
        assert uppers({**runner.required[-1].vertices}) == {3}
        assert uppers({**(await harness.ha.stores(harness.cluster.token).graphs.recover(A)).requirements}) == {3}


@virtual_time
async def test_known_trigger_is_acknowledged_again_and_starts_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        both = await asyncio.gather(dispatcher.trigger(rescale(3)), dispatcher.trigger(rescale(3)))
        await completed(dispatcher)

        assert [each.trigger_id for each in both] == [FIRST, FIRST]
        assert (await dispatcher.trigger(rescale(3))).status is OperationStatus.COMPLETED
        assert len(runner.required) == 1
        with pytest.raises(Conflict, match="another command"):
            await dispatcher.trigger(rescale(4))


@virtual_time
async def test_command_that_cannot_be_carried_out_is_a_failed_operation() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await dispatcher.trigger(rescale(0))

        failure = (await completed(dispatcher)).failure

        assert failure is not None
        assert (failure.error, "must go from at least 1" in failure.message) == ("Invalid", True)
        assert runner.required == []


@virtual_time
async def test_change_during_an_operation_is_a_conflict_until_its_outcome_is_durable() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        replaced = harness.faults.hold("graphs.replace:before")
        await dispatcher.trigger(rescale(3))
        outcome_written = harness.faults.hold("operations.put:before")
        replaced.set()
        await settle()

        assert isinstance(await outcome_of(dispatcher.command(RescaleJob(job_id=A, parallelism=5))), Conflict)
        assert (await operation(dispatcher)).status is OperationStatus.IN_PROGRESS

        outcome_written.set()
        await completed(dispatcher)
        await dispatcher.command(RescaleJob(job_id=A, parallelism=5))


@virtual_time
async def test_operation_that_outlives_its_job_harms_no_leader() -> None:
    """The job ends, and is forgotten, while the store does not answer for the change."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        replaced = harness.faults.hold("graphs.replace:before")
        await dispatcher.trigger(rescale(3))
        del runner  # nothing but the Dispatcher refers to the job
        harness.runner().finish()
        await empty(dispatcher)

        replaced.set()
        failure = (await completed(dispatcher)).failure

        assert failure is not None
        assert "has ended" in failure.message
        await settle()
        await harness.submitted(dispatcher, B)


@virtual_time
async def test_operations_of_unknown_initialising_and_ended_jobs() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        assert isinstance(await outcome_of(dispatcher.trigger(rescale(2))), NotFound)
        assert isinstance(await outcome_of(operation(dispatcher)), NotFound)
        runner = await harness.submitted(dispatcher)
        await dispatcher.trigger(rescale(2))
        await completed(dispatcher)
        runner.finish()
        await empty(dispatcher)

        assert (await operation(dispatcher)).status is OperationStatus.COMPLETED, "it outlives the job's end"
        assert (await dispatcher.trigger(rescale(2))).status is OperationStatus.COMPLETED
        with pytest.raises(Conflict, match="FINISHED"):
            await dispatcher.trigger(rescale(2, SECOND))
        with pytest.raises(NotFound):
            await operation(dispatcher, FIRST, B)


@virtual_time
async def test_cancel_can_be_triggered_too() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        await dispatcher.trigger(TriggerOperation(trigger_id=FIRST, command=CancelJob(job_id=A)))

        assert (await completed(dispatcher)).failure is None
        await empty(dispatcher)
        assert harness.runner().status is JobStatus.CANCELED


@virtual_time
async def test_operation_whose_record_got_no_answer_counts_once_it_is_known() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        harness.faults.failing_once["operations.put:after"] = Unavailable("no answer")

        assert isinstance(await outcome_of(dispatcher.trigger(rescale(3))), Unavailable)

        assert (await dispatcher.trigger(rescale(3))).trigger_id == FIRST
        assert (await completed(dispatcher)).failure is None
        assert len(runner.required) == 1


@virtual_time
async def test_only_the_latest_operations_are_kept() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        triggers = [TriggerId(f"{number:032x}") for number in range(MAX_OPERATIONS + 3)]
        for trigger_id in triggers:
            await dispatcher.trigger(rescale(2, trigger_id))
            await completed(dispatcher, trigger_id)

        recorded = await harness.ha.stores(harness.cluster.token).operations.read(A)

        assert recorded is not None
        assert [each.trigger_id for each in recorded.operations] == triggers[3:]


async def _use(harness: DispatcherHarness, command: JobCommand, *, end: bool) -> None:
    """What happens until a JobManager dies somewhere in it."""
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await outcome_of(dispatcher.trigger(TriggerOperation(trigger_id=FIRST, command=command)))
        if end:
            if not runner.status.globally_terminal:
                runner.finish()
            await empty(dispatcher)
        else:
            await completed(dispatcher)


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("command", [RescaleJob(job_id=A, parallelism=3), CancelJob(job_id=A)])
def test_operation_is_completed_wherever_its_leader_dies(command: JobCommand, *, end: bool) -> None:
    """After a death at any step of a store the next leader has an outcome for every operation that is recorded."""

    async def dies_after(steps: int) -> bool:
        harness = DispatcherHarness()
        harness.faults.die_after(steps)
        async with asyncio.TaskGroup() as tasks:
            use = tasks.create_task(outcome_of(_use(harness, command, end=end)), name="use")
            await asyncio.wait((use,), timeout=60)
            survived = use.done() and use.result() is None
            use.cancel()
        recorded = A in harness.cluster.operations
        harness.faults.clear_death()
        async with harness.leading() as dispatcher:
            if recorded:
                outcome = await completed(dispatcher)
                rescaled = A in harness.cluster.graphs and not end and isinstance(command, RescaleJob)
                if rescaled and outcome.failure is None:
                    stored = await harness.ha.stores(harness.cluster.token).graphs.recover(A)
                    assert uppers({**stored.requirements}) == {3}
                    await until(lambda: bool(harness.runner().job.requirements or harness.runner().required))
        return survived

    steps = 0
    while not run_virtual(dies_after(steps)):
        steps += 1
        assert steps < 500
    assert steps > 10

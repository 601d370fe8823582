"""Savepoints as operations: recorded before they are made, made once, and found again by the next leader."""

from __future__ import annotations

import asyncio

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
from flintlock.model.commands import JobOperation, OperationQuery, OperationStatus, TriggerOperation, TriggerSavepoint
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.jobs import JobSubmission
from flintlock.model.states import JobStatus
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

"""A leader dies at each access to a store while it saves or stops a job: the next one goes on, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.dispatcher.dispatcher_harness import A, DispatcherHarness, empty, outcome_of, status, until
from tests.unit.dispatcher.test_savepoints import LOCATION, SAVE, STOP, TRIGGER, completed, running, streaming

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import StopJob, TriggerOperation
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import run_virtual


async def finish_when_drained(runner: FakeJobMasterRunner) -> None:
    """End the attempt, and the job with it, as soon as it is asked to."""
    await until(lambda: bool(runner.queries))
    runner.finish()


async def use(harness: DispatcherHarness, trigger: TriggerOperation, steps: int) -> None:
    """What happens until the first leader dies somewhere in it; the job runs when it may die for the first time."""
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        harness.faults.die_after(steps)
        await dispatcher.trigger(trigger)
        if isinstance(trigger.command, StopJob):
            await finish_when_drained(runner)
            await empty(dispatcher)
        await completed(dispatcher)


async def continue_(harness: DispatcherHarness, dispatcher: Dispatcher, trigger: TriggerOperation) -> None:
    """What the next leader does; the client, which may not have been answered, triggers again."""
    known = await outcome_of(status(dispatcher))
    if isinstance(known, JobStatus) and known.globally_terminal:
        await empty(dispatcher)  # what the first leader has left to clean up
        return
    await until(lambda: len(harness.job_masters.made) == 2)
    await until(lambda: harness.runner().status is JobStatus.RUNNING)
    harness.runner().executions = (running(1),)
    await dispatcher.trigger(trigger)
    if isinstance(trigger.command, StopJob):
        if harness.job_masters.made[0].status is JobStatus.FINISHED:
            harness.runner().finish()  # as it is recorded of its region
        else:
            await finish_when_drained(harness.runner())
        await empty(dispatcher)


@pytest.mark.parametrize("trigger", [SAVE, STOP], ids=["savepoint", "stop"])
def test_a_job_is_saved_once_and_unharmed_wherever_its_leader_dies(trigger: TriggerOperation) -> None:
    stops = isinstance(trigger.command, StopJob)

    async def dies_after(steps: int) -> bool:
        harness = DispatcherHarness()
        async with asyncio.TaskGroup() as tasks:
            using = tasks.create_task(outcome_of(use(harness, trigger, steps)), name="use")
            await asyncio.wait((using,), timeout=60)
            survived = using.done() and using.result() is None
            using.cancel()
        harness.faults.clear_death()
        async with harness.leading() as dispatcher:
            await continue_(harness, dispatcher, trigger)
            outcome = await completed(dispatcher)

            assert (outcome.failure, outcome.location) == (None, LOCATION)
            assert harness.savepoints.made == [(TRIGGER, LOCATION)]
            assert await status(dispatcher) is (JobStatus.FINISHED if stops else JobStatus.RUNNING)
            assert (A in harness.cluster.graphs) != stops
        return survived

    steps = 0
    while not run_virtual(dies_after(steps)):
        steps += 1
        assert steps < 500
    assert steps >= (10 if stops else 4), "it died at each access"

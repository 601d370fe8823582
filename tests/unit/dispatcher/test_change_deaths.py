"""A leader dies at each access to a store while it rescales or upgrades a job: the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, outcome_of, status, until
from tests.unit.dispatcher.test_rescaling import FORMER, RESCALE, reported, restarts, stored
from tests.unit.dispatcher.test_savepoints import completed, running, streaming
from tests.unit.dispatcher.upgrade_harness import BACK, LOCATION, former_graph, running_of, snapshot, upgrade

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobs import JobSubmission, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import run_virtual

LIMIT_S = 60.0


def at_each_access(
    first: Callable[[DispatcherHarness, int], Awaitable[None]],
    second: Callable[[DispatcherHarness, Dispatcher, list[FakeJobMasterRunner]], Awaitable[None]],
    *,
    accesses: int,
) -> None:
    """Let the first leader die at each of its accesses in turn, and the second one go on from there.

    `first` says when it may die for the first time, by `die_after`; `second` gets its JobMasters. There are at least so
    many accesses.
    """

    async def survived(steps: int) -> bool:
        harness = DispatcherHarness()
        async with asyncio.TaskGroup() as tasks:
            using = tasks.create_task(outcome_of(first(harness, steps)), name="first")
            await asyncio.wait((using,), timeout=LIMIT_S)
            whole = using.done() and using.result() is None
            using.cancel()
        harness.faults.clear_death()
        made = [*harness.job_masters.made]
        harness.job_masters.made.clear()
        async with harness.leading() as dispatcher:
            await asyncio.wait_for(second(harness, dispatcher, made), LIMIT_S)
        return whole

    steps = 0
    while not run_virtual(survived(steps)):
        steps += 1
        assert steps < 500
    assert steps >= accesses, "it died at each access"


@pytest.mark.parametrize("failure", ["", "the disk is full"], ids=["completed", "given up"])
def test_a_job_is_rescaled_or_as_it_was_wherever_its_leader_dies(failure: str) -> None:
    """Never in between: what it may use is what its state has, and the outcome says which of the two it is."""

    async def restarted(runner: FakeJobMasterRunner) -> None:
        await until(lambda: bool(restarts(runner)))
        runner.executions = (running(0), reported(failure))

    async def first(harness: DispatcherHarness, steps: int) -> None:
        async with harness.leading() as dispatcher:
            runner = await streaming(harness, dispatcher)
            harness.faults.die_after(steps)
            await dispatcher.trigger(RESCALE)
            await restarted(runner)
            await completed(dispatcher)

    async def second(harness: DispatcherHarness, dispatcher: Dispatcher, _: list[FakeJobMasterRunner]) -> None:
        await until(lambda: bool(harness.job_masters.made))
        await until(lambda: harness.runner().status is JobStatus.RUNNING)
        runner = harness.runner()
        runner.executions = (running(0),)
        async with asyncio.TaskGroup() as tasks:
            attempts = tasks.create_task(restarted(runner), name="attempts")
            await dispatcher.trigger(RESCALE)  # the client may not have been answered
            outcome = await completed(dispatcher)
            attempts.cancel()  # one that is completed restarts nothing

        job = stored(harness)
        assert await status(dispatcher) is JobStatus.RUNNING
        assert (outcome.failure.message if outcome.failure else "") == (FORMER if failure else "")
        assert {limits.upper for limits in job.requirements.values()} == (set() if failure else {4})
        assert job.rescaling is not None
        assert job.rescaling.completed

    at_each_access(first, second, accesses=5)


async def is_known(dispatcher: Dispatcher, job_id: JobId) -> bool:
    return not isinstance(await outcome_of(snapshot(dispatcher, job_id)), Exception)


async def replaced(harness: DispatcherHarness, dispatcher: Dispatcher, *, fails: bool) -> None:
    """Wait until the new job runs, or let it fail and wait until the former one runs again."""
    successor = await running_of(harness, B)
    if fails:
        successor.fail("the state does not fit")
        await running_of(harness, BACK)
        await until(lambda: B not in dispatcher.jobs)


async def drain(harness: DispatcherHarness, made: list[FakeJobMasterRunner]) -> None:
    """End the first job under its next leader: at once if its region had finished, else when it is asked to."""
    runner = await running_of(harness, A)
    if made[0].status is not JobStatus.FINISHED:
        runner.executions = (running(1),)
        await until(lambda: bool(runner.queries))
    runner.finish()


@pytest.mark.parametrize("fails", [False, True], ids=["switched", "gone back"])
def test_a_job_is_upgraded_or_runs_as_before_wherever_its_leader_dies(fails: bool) -> None:
    """One of the jobs runs in the end, from the one savepoint, and each names the other."""
    submissions: list[JobSubmission] = []

    async def first(harness: DispatcherHarness, steps: int) -> None:
        async with harness.leading() as dispatcher:
            former = await streaming(harness, dispatcher)
            submissions.append(structs.replace(upgrade(former_graph(harness)), idempotency_key="key"))
            harness.faults.die_after(steps)
            await dispatcher.submit_job(submissions[-1])
            await until(lambda: bool(former.queries))
            former.finish()
            await replaced(harness, dispatcher, fails=fails)

    async def second(harness: DispatcherHarness, dispatcher: Dispatcher, made: list[FakeJobMasterRunner]) -> None:
        await dispatcher.recovered.wait()
        known = await outcome_of(snapshot(dispatcher, B))
        again = await dispatcher.submit_job(submissions[-1])  # the client may not have been answered
        assert again == Submitted(job_id=B, existing=not isinstance(known, Exception))
        async with asyncio.TaskGroup() as tasks:
            drained = tasks.create_task(drain(harness, made), name="drain")
            reverted = BACK in harness.cluster.graphs  # then the failed job does not run beside it
            if isinstance(known, Exception) or (known.status is not JobStatus.FAILED and not reverted):
                await replaced(harness, dispatcher, fails=fails)
            else:
                await running_of(harness, BACK)
                await until(lambda: B not in dispatcher.jobs)
            drained.cancel()

        assert harness.savepoints.made == [(TriggerId(B), LOCATION)]
        assert harness.savepoints.restored == ([B, BACK] if fails else [B])
        old, new = await snapshot(dispatcher, A), await snapshot(dispatcher, B)
        assert (old.status, old.successor, new.graph.upgrade_of) == (JobStatus.FINISHED, B, A)
        assert (new.status, new.successor) == ((JobStatus.FAILED, BACK) if fails else (JobStatus.RUNNING, ""))
        assert await is_known(dispatcher, BACK) == fails

    at_each_access(first, second, accesses=10)

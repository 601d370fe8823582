"""Requirements (FLINK_BEHAVIOURS S9), parallelism overrides (S5), attached clients."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    DispatcherHarness,
    empty,
    graph,
    outcome_of,
    settle,
    status,
    submission,
    until,
)

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import MAX_OPERATIONS, CancelJob, RescaleJob
from flintlock.model.errors import Conflict, Invalid, NotFound, Unavailable
from flintlock.model.jobs import ClientHeartbeat, JobQuery, JobRequirements, JobSubmission, ParallelismRange
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import virtual_time

QUERY = JobQuery(job_id=A)
ROWS, TOP = (vertex.id for vertex in graph().vertices)


def use(upper: int) -> JobRequirements:
    limits = ParallelismRange(lower=1, upper=upper)
    return JobRequirements(job_id=A, vertices={ROWS: limits, TOP: limits})


def rescale(upper: int) -> RescaleJob:
    return RescaleJob(job_id=A, vertices=use(upper).vertices)


# Requirements


@virtual_time
async def test_an_update_is_persisted_before_it_is_applied() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await dispatcher.command(rescale(3))
        assert runner.required == [use(3)]
        assert await dispatcher.requirements(QUERY) == use(3)

    async with harness.leading():
        await until(lambda: len(harness.job_masters.made) == 2)
        assert harness.runner().job.requirements == use(3).vertices


@virtual_time
async def test_an_invalid_update_changes_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        with pytest.raises(Invalid, match="at most"):
            await dispatcher.command(rescale(0))
        assert runner.required == []
        assert (await harness.ha.stores(harness.cluster.token).graphs.recover(A)).requirements == {}


@virtual_time
async def test_an_update_that_cannot_be_persisted_is_not_applied() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["graphs.replace:before"] = Unavailable("the disk is full")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        with pytest.raises(Unavailable, match="the disk is full"):
            await dispatcher.command(rescale(2))
        assert runner.required == []
        harness.faults.failing.clear()
        with pytest.raises(Unavailable, match="not known yet"):
            await dispatcher.command(rescale(2))
        await asyncio.sleep(1)
        await dispatcher.command(rescale(2))
        assert runner.required == [use(2)]


@virtual_time
async def test_who_requests_an_update_is_recorded_and_known_after_the_job_has_ended() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        for number in range(MAX_OPERATIONS + 1):
            await dispatcher.command(structs.replace(rescale(number + 1), requested_by=f"user {number}"))
    async with harness.leading() as dispatcher:
        await until(lambda: len(harness.job_masters.made) == 2)
        await dispatcher.command(CancelJob(job_id=A, requested_by="eve"))
        await until(lambda: A not in harness.cluster.graphs)
        recorded = await dispatcher.job_changes(QUERY)
    assert [each.requested_by for each in recorded.rescales] == [f"user {n}" for n in range(1, MAX_OPERATIONS + 1)]
    assert recorded.cancel is not None
    assert recorded.cancel.requested_by == "eve"


@virtual_time
async def test_an_update_whose_requester_cannot_be_recorded_is_not_applied() -> None:
    harness = DispatcherHarness()
    harness.faults.failing["operations.put:before"] = Unavailable("the disk is full")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        with pytest.raises(Unavailable, match="the disk is full"):
            await dispatcher.command(rescale(2))
        assert runner.required == []
        assert (await harness.ha.stores(harness.cluster.token).graphs.recover(A)).requirements == {}
        harness.faults.failing.clear()
        await dispatcher.command(rescale(2))
        assert runner.required == [use(2)]


@virtual_time
async def test_only_initialised_jobs_can_be_updated() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())
        assert harness.job_masters.made == []
        assert isinstance(await outcome_of(dispatcher.requirements(QUERY)), Unavailable)
        assert isinstance(await outcome_of(dispatcher.command(rescale(2))), Unavailable)


@virtual_time
async def test_concurrent_updates_are_guarded_and_sequential_ones_work() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        first, second = await asyncio.gather(
            outcome_of(dispatcher.command(rescale(2))), outcome_of(dispatcher.command(rescale(3)))
        )
        assert first is None
        assert isinstance(second, Conflict)
        await dispatcher.command(rescale(4))
        assert runner.required == [use(2), use(4)]


@virtual_time
async def test_an_ended_job_cannot_be_updated_and_an_unknown_one_is_not_found() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
        assert isinstance(await outcome_of(dispatcher.command(rescale(2))), Conflict)
        other = structs.replace(rescale(2), job_id="b" * 32)
        assert isinstance(await outcome_of(dispatcher.command(other)), NotFound)


@virtual_time
async def test_update_is_completed_though_its_caller_disconnects() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        async with asyncio.TaskGroup() as callers:
            call = callers.create_task(dispatcher.command(rescale(2)), name="caller")
            await asyncio.sleep(0)
            call.cancel()
        await settle()
        assert runner.required == [use(2)]


# Overrides


@virtual_time
async def test_parallelism_overrides_apply_to_new_submissions_only() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
    imposing = DispatcherHarness(harness.cluster, {"pipeline.jobvertex-parallelism-overrides": f"{ROWS}:4"})
    async with imposing.leading():
        await until(lambda: bool(imposing.job_masters.made))
        assert imposing.runner().job.graph.vertices[0].parallelism is None


# Attached clients


async def attached(harness: DispatcherHarness, dispatcher: Dispatcher) -> FakeJobMasterRunner:
    await dispatcher.submit_job(JobSubmission(graph=structs.replace(graph(), client_timeout_s=60.0), digest="d"))
    await until(lambda: bool(harness.job_masters.made) and harness.runner().status is JobStatus.RUNNING)
    return harness.runner()


@virtual_time
async def test_job_whose_client_sends_no_heartbeats_is_cancelled() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await attached(harness, dispatcher)
        await asyncio.sleep(50)
        await dispatcher.client_heartbeat(ClientHeartbeat(job_id=A))
        await asyncio.sleep(50)
        assert runner.cancels == 0
        await asyncio.sleep(11)
        assert runner.cancels == 1
        await empty(dispatcher)
        assert await status(dispatcher) is JobStatus.CANCELED


@virtual_time
async def test_client_has_the_whole_timeout_again_after_a_change_of_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await attached(harness, dispatcher)
        await asyncio.sleep(50)
    async with harness.leading():
        await until(lambda: len(harness.job_masters.made) == 2)
        await asyncio.sleep(50)
        assert harness.runner().cancels == 0
        await asyncio.sleep(15)
        assert harness.runner().cancels == 1


@virtual_time
async def test_a_cancel_because_the_client_is_gone_outlives_the_leader() -> None:
    """The store does not answer at first, and the leader ends before the job has."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await attached(harness, dispatcher)
        runner.obeys = False
        harness.faults.failing_once["operations.put:before"] = Unavailable("the store does not answer")
        await asyncio.sleep(62)
        assert runner.cancels == 1
    assert A in harness.cluster.operations

    async with harness.leading():
        await until(lambda: len(harness.job_masters.made) == 2)
        await until(lambda: harness.runner().cancels == 1)


@virtual_time
async def test_a_job_without_a_timeout_needs_no_client() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await dispatcher.client_heartbeat(ClientHeartbeat(job_id=A))
        await asyncio.sleep(3600)
        assert runner.cancels == 0


@virtual_time
async def test_job_that_has_ended_is_not_cancelled_when_its_client_times_out() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await attached(harness, dispatcher)
        runner.finish()
        await empty(dispatcher)
        await dispatcher.client_heartbeat(ClientHeartbeat(job_id=A))
        await asyncio.sleep(100)
        assert runner.cancels == 0


@virtual_time
async def test_publishing_job_runs_to_its_end_though_its_client_times_out() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await attached(harness, dispatcher)
        runner.publishing = True
        await asyncio.sleep(61)
        assert runner.cancels == 1
        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_the_heartbeat_of_an_unknown_jobs_client_is_not_found() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        assert isinstance(await outcome_of(dispatcher.client_heartbeat(ClientHeartbeat(job_id=A))), NotFound)

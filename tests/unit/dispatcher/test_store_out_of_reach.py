"""A leader that cannot reach the stores, and writes that take place without an answer: the rule of `ha.leader_gate`."""

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    B,
    DispatcherHarness,
    empty,
    graph,
    outcome_of,
    rows,
    settle,
    status,
    submission,
    until,
)

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import RescaleJob
from flintlock.model.errors import InvariantBroken, Unavailable
from flintlock.model.jobs import (
    AwaitJob,
    JobQuery,
    JobRequirements,
    JobResult,
    JobSubmission,
    ParallelismRange,
    Submitted,
)
from flintlock.model.states import JobStatus
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time

NO_ANSWER = Unavailable("no answer")


@virtual_time
async def test_disconnected_leader_writes_nothing_and_continues_where_it_waited() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher)
        await harness.submitted(dispatcher, B)
        harness.disconnect_stores()
        before = len(harness.faults.seen)
        runner.finish(rows())
        await asyncio.sleep(600)
        assert harness.faults.writes(since=before) == []
        assert A not in harness.cluster.results
        assert A not in harness.cluster.ended

        harness.reconnect_stores()
        await until(lambda: not harness.cluster.results[A].dirty if A in harness.cluster.results else False)

        assert harness.cluster.ended.keys() == {A}, "it is archived all the same"
        assert await status(dispatcher) is JobStatus.FINISHED
        assert await status(dispatcher, B) is JobStatus.RUNNING
        assert len(harness.job_masters.made) == 2, "nothing was restarted"


@virtual_time
async def test_waiting_clients_are_answered_only_once_the_end_is_durable() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        runner = await harness.submitted(dispatcher)
        waiting = clients.create_task(dispatcher.await_job(AwaitJob(job_id=A, wait_s=3600)))
        harness.disconnect_stores()
        runner.finish()
        await asyncio.sleep(60)
        assert not waiting.done()

        harness.reconnect_stores()

        assert (await waiting).status is JobStatus.FINISHED


@pytest.mark.parametrize(
    "step", ["ended.put", "results.create_dirty", "results.mark_clean", "graphs.remove", "progress.remove"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_end_of_a_job_is_written_once_though_an_answer_is_lost(step: str, when: str) -> None:
    @virtual_time
    async def scenario() -> None:
        harness = DispatcherHarness()
        async with harness.leading() as dispatcher:
            runner = await harness.submitted(dispatcher)
            harness.faults.failing_once[f"{step}:{when}"] = NO_ANSWER
            runner.finish(rows())
            await empty(dispatcher)

            assert harness.faults.failing_once == {}
            assert not harness.cluster.results[A].dirty
            assert (harness.cluster.graphs, harness.cluster.ended.keys()) == ({}, {A})
            assert await status(dispatcher) is JobStatus.FINISHED

    scenario()


@virtual_time
async def test_another_result_under_the_same_id_is_not_mistaken_for_the_own_one() -> None:
    harness = DispatcherHarness()
    with pytest.RaisesGroup(pytest.RaisesExc(InvariantBroken, match="has a result already")):
        async with harness.leading() as dispatcher:
            runner = await harness.submitted(dispatcher)
            harness.faults.failing_once["results.create_dirty:before"] = NO_ANSWER
            runner.finish()
            await until(lambda: harness.faults.failing_once == {})
            another = JobResult(job_id=A, name="another", status=JobStatus.FAILED, start_ms=0, end_ms=1)
            await harness.ha.stores(harness.cluster.token).results.create_dirty(another)
            await asyncio.sleep(60)


@virtual_time
async def test_submission_that_was_stored_without_an_answer_is_removed_and_its_key_makes_the_job_once() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        harness.faults.failing_once["graphs.put:after"] = NO_ANSWER
        answer = await outcome_of(dispatcher.submit_job(submission(A, key="k")))
        assert isinstance(answer, Unavailable)
        assert (harness.cluster.graphs, harness.cluster.keys) == ({}, {})

        assert await dispatcher.submit_job(submission(B, key="k")) == Submitted(job_id=B)
        assert await dispatcher.submit_job(submission(A, key="k")) == Submitted(job_id=B, existing=True)

        await settle()
        assert [runner.job.graph.job_id for runner in harness.job_masters.made] == [B]


@virtual_time
async def test_key_of_a_submission_that_is_being_taken_back_finds_nothing_yet() -> None:
    """It was stored, its answer was lost, and it cannot be removed: no client may see it."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        harness.faults.failing_once["graphs.put:after"] = NO_ANSWER
        harness.faults.failing["graphs.remove:before"] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert harness.cluster.graphs.keys() == {A}

        for job_id in (A, B):
            assert isinstance(await outcome_of(dispatcher.submit_job(submission(job_id, key="k"))), Unavailable)

        harness.faults.failing.clear()
        answer = await accepted(dispatcher, submission(B, key="k"))
        assert answer == Submitted(job_id=B)
        assert harness.cluster.graphs.keys() == {B}


@virtual_time
async def test_key_read_just_before_its_submission_was_taken_back_is_read_again() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        harness.faults.failing_once |= {"graphs.put:after": NO_ANSWER, "graphs.remove:before": NO_ANSWER}
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert harness.cluster.keys.keys() == {"k"}
        read = harness.faults.hold("graphs.key:after")
        again = clients.create_task(dispatcher.submit_job(submission(B, key="k")))
        await asyncio.sleep(10)
        assert harness.cluster.keys == {}, "taken back while the answer that it is there was under way"
        read.set()

        assert await again == Submitted(job_id=B)
        assert harness.cluster.graphs.keys() == {B}


@virtual_time
async def test_unacknowledged_submission_is_run_by_the_next_leader_and_found_by_its_key() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        harness.faults.failing_once["graphs.put:after"] = NO_ANSWER
        harness.faults.failing["graphs.remove:before"] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
    harness.faults.failing.clear()
    async with harness.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(B, key="k")) == Submitted(job_id=A, existing=True)
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_submission_to_a_disconnected_leader_is_unavailable_and_leaves_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        harness.disconnect_stores()
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        harness.reconnect_stores()

        answer = await accepted(dispatcher, submission(A, key="k"))

        assert answer == Submitted(job_id=A)
        assert harness.cluster.graphs.keys() == {A}


@virtual_time
async def test_change_of_requirements_without_an_answer_is_reverted() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        stored = harness.cluster.graphs[A]
        vertex = graph().vertices[0].id
        wanted = RescaleJob(job_id=A, vertices={vertex: ParallelismRange(lower=1, upper=3)})
        harness.faults.failing_once["graphs.replace:after"] = NO_ANSWER

        assert isinstance(await outcome_of(dispatcher.command(wanted)), Unavailable)
        await settle()

        assert harness.cluster.graphs[A] == stored
        assert harness.runner().required == []
        await dispatcher.command(wanted)
        assert harness.runner().required == [JobRequirements(job_id=A, vertices=wanted.vertices)]


@virtual_time
async def test_client_timeout_of_a_disconnected_leader_cancels_nothing() -> None:
    harness = DispatcherHarness()
    attached = structs.replace(graph(), client_timeout_s=10.0)
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(JobSubmission(graph=attached, digest="d"))
        await settle()
        harness.disconnect_stores()
        await asyncio.sleep(25)
        harness.reconnect_stores()
        assert await status(dispatcher) is JobStatus.RUNNING

        await asyncio.sleep(12)

        assert await status(dispatcher) is JobStatus.CANCELED


@virtual_time
async def test_recovery_waits_for_the_store_and_then_recovers_everything() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, A)
        await harness.submitted(dispatcher, B)
    harness.cluster.graphs[A] = b"\xc1 not a graph"
    async with asyncio.TaskGroup() as tasks:
        pausing = tasks.create_task(_pause_the_next_leader(harness, 3600))
        async with harness.leading() as dispatcher:
            await pausing
            await settle()
            assert await status(dispatcher, A) is JobStatus.FAILED
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert harness.cluster.quarantined.keys() == {A}


@virtual_time
async def test_ended_jobs_that_expired_without_an_answer_are_not_listed_any_more() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
        await asyncio.sleep(630)
        (await harness.submitted(dispatcher, B)).finish()
        harness.faults.failing_once["ended.expire:after"] = NO_ANSWER
        await asyncio.sleep(60)
        assert harness.faults.failing_once == {}
        assert harness.cluster.ended.keys() == {B}
        await asyncio.sleep(60)

        assert [line.job_id for line in (await all_jobs(dispatcher))] == [B]


@virtual_time
async def test_reads_that_get_no_answer_are_unavailable_to_the_client_and_change_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        for step in ("ended.get:before", "graphs.key:before"):
            harness.faults.failing[step] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.job(JobQuery(job_id=A))), Unavailable)
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert harness.cluster.graphs == {}


async def _pause_the_next_leader(harness: DispatcherHarness, length_s: float) -> None:
    harness.disconnect_stores()
    await asyncio.sleep(length_s)
    assert harness.cluster.quarantined == {}
    harness.reconnect_stores()


async def accepted(dispatcher: Dispatcher, message: JobSubmission) -> Submitted:
    """Submit as clients should: again for as long as the call is Unavailable."""
    for _ in range(60):
        try:
            return await dispatcher.submit_job(message)
        except Unavailable:
            await asyncio.sleep(1)
    raise AssertionError("never accepted")

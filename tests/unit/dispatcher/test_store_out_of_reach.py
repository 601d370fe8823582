"""A leader that cannot reach the stores, and writes that take place without an answer: the rule of `ha.leader_gate`."""

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.stage import A, B, Stage, empty, graph, outcome_of, rows, settle, status, submission, until

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
from flintlock.testing.virtual_time import virtual_time

NO_ANSWER = Unavailable("no answer")


@virtual_time
async def test_cut_off_leader_writes_nothing_and_goes_on_where_it_waited() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        runner = await stage.submitted(dispatcher)
        await stage.submitted(dispatcher, B)
        stage.cut_off()
        before = len(stage.faults.seen)
        runner.finish(rows())
        await asyncio.sleep(600)
        assert stage.faults.writes(since=before) == []
        assert A not in stage.cluster.results
        assert A not in stage.cluster.ended

        stage.mend()
        await until(lambda: not stage.cluster.results[A].dirty if A in stage.cluster.results else False)

        assert stage.cluster.ended.keys() == {A}, "what it kept is archived all the same"
        assert await status(dispatcher) is JobStatus.FINISHED
        assert await status(dispatcher, B) is JobStatus.RUNNING
        assert len(stage.job_masters.made) == 2, "nothing was restarted"


@virtual_time
async def test_clients_who_wait_hear_of_an_end_only_once_it_is_durable() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher, asyncio.TaskGroup() as clients:
        runner = await stage.submitted(dispatcher)
        waiting = clients.create_task(dispatcher.await_job(AwaitJob(job_id=A, wait_s=3600)))
        stage.cut_off()
        runner.finish()
        await asyncio.sleep(60)
        assert not waiting.done()

        stage.mend()

        assert (await waiting).status is JobStatus.FINISHED


@pytest.mark.parametrize(
    "step", ["ended.put", "results.create_dirty", "results.mark_clean", "graphs.remove", "progress.remove"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_end_of_a_job_is_written_once_though_an_answer_is_lost(step: str, when: str) -> None:
    @virtual_time
    async def scenario() -> None:
        stage = Stage()
        async with stage.leading() as dispatcher:
            runner = await stage.submitted(dispatcher)
            stage.faults.failing_once[f"{step}:{when}"] = NO_ANSWER
            runner.finish(rows())
            await empty(dispatcher)

            assert stage.faults.failing_once == {}
            assert not stage.cluster.results[A].dirty
            assert (stage.cluster.graphs, stage.cluster.ended.keys()) == ({}, {A})
            assert await status(dispatcher) is JobStatus.FINISHED

    scenario()


@virtual_time
async def test_result_of_another_under_the_same_id_is_not_taken_for_ours() -> None:
    stage = Stage()
    with pytest.RaisesGroup(pytest.RaisesExc(InvariantBroken, match="has a result already")):
        async with stage.leading() as dispatcher:
            runner = await stage.submitted(dispatcher)
            stage.faults.failing_once["results.create_dirty:before"] = NO_ANSWER
            runner.finish()
            await until(lambda: stage.faults.failing_once == {})
            another = JobResult(job_id=A, name="another", status=JobStatus.FAILED, start_ms=0, end_ms=1)
            await stage.ha.stores(stage.cluster.token).results.create_dirty(another)
            await asyncio.sleep(60)


@virtual_time
async def test_submission_that_was_stored_without_an_answer_is_removed_and_its_key_makes_the_job_once() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        stage.faults.failing_once["graphs.put:after"] = NO_ANSWER
        answer = await outcome_of(dispatcher.submit_job(submission(A, key="k")))
        assert isinstance(answer, Unavailable)
        assert (stage.cluster.graphs, stage.cluster.keys) == ({}, {})

        assert await dispatcher.submit_job(submission(B, key="k")) == Submitted(job_id=B)
        assert await dispatcher.submit_job(submission(A, key="k")) == Submitted(job_id=B, existing=True)

        await settle()
        assert [runner.job.graph.job_id for runner in stage.job_masters.made] == [B]


@virtual_time
async def test_key_of_a_submission_that_is_being_taken_back_finds_nothing_yet() -> None:
    """It was stored, its answer was lost, and it cannot be removed: nobody may be told that it is there."""
    stage = Stage()
    async with stage.leading() as dispatcher:
        stage.faults.failing_once["graphs.put:after"] = NO_ANSWER
        stage.faults.failing["graphs.remove:before"] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert stage.cluster.graphs.keys() == {A}

        for job_id in (A, B):
            assert isinstance(await outcome_of(dispatcher.submit_job(submission(job_id, key="k"))), Unavailable)

        stage.faults.failing.clear()
        answer = await accepted(dispatcher, submission(B, key="k"))
        assert answer == Submitted(job_id=B)
        assert stage.cluster.graphs.keys() == {B}


@virtual_time
async def test_key_read_just_before_its_submission_was_taken_back_is_read_again() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher, asyncio.TaskGroup() as clients:
        stage.faults.failing_once |= {"graphs.put:after": NO_ANSWER, "graphs.remove:before": NO_ANSWER}
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert stage.cluster.keys.keys() == {"k"}
        read = stage.faults.hold("graphs.key:after")
        again = clients.create_task(dispatcher.submit_job(submission(B, key="k")))
        await asyncio.sleep(10)
        assert stage.cluster.keys == {}, "taken back while the answer that it is there was under way"
        read.set()

        assert await again == Submitted(job_id=B)
        assert stage.cluster.graphs.keys() == {B}


@virtual_time
async def test_submission_of_which_nobody_was_told_is_run_by_the_next_leader_and_found_by_its_key() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        stage.faults.failing_once["graphs.put:after"] = NO_ANSWER
        stage.faults.failing["graphs.remove:before"] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
    stage.faults.failing.clear()
    async with stage.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(B, key="k")) == Submitted(job_id=A, existing=True)
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_submission_while_cut_off_is_unavailable_and_leaves_nothing() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        stage.cut_off()
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        stage.mend()

        answer = await accepted(dispatcher, submission(A, key="k"))

        assert answer == Submitted(job_id=A)
        assert stage.cluster.graphs.keys() == {A}


@virtual_time
async def test_change_of_requirements_without_an_answer_is_set_back() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher)
        stored = stage.cluster.graphs[A]
        vertex = graph().vertices[0].id
        wanted = RescaleJob(job_id=A, vertices={vertex: ParallelismRange(lower=1, upper=3)})
        stage.faults.failing_once["graphs.replace:after"] = NO_ANSWER

        assert isinstance(await outcome_of(dispatcher.command(wanted)), Unavailable)
        await settle()

        assert stage.cluster.graphs[A] == stored
        assert stage.runner().required == []
        await dispatcher.command(wanted)
        assert stage.runner().required == [JobRequirements(job_id=A, vertices=wanted.vertices)]


@virtual_time
async def test_silence_of_a_client_that_could_not_be_heard_cancels_nothing() -> None:
    stage = Stage()
    attached = structs.replace(graph(), client_timeout_s=10.0)
    async with stage.leading() as dispatcher:
        await dispatcher.submit_job(JobSubmission(graph=attached, digest="d"))
        await settle()
        stage.cut_off()
        await asyncio.sleep(25)
        stage.mend()
        assert await status(dispatcher) is JobStatus.RUNNING

        await asyncio.sleep(12)

        assert await status(dispatcher) is JobStatus.CANCELED


@virtual_time
async def test_recovery_waits_for_the_store_and_then_recovers_everything() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        await stage.submitted(dispatcher, A)
        await stage.submitted(dispatcher, B)
    stage.cluster.graphs[A] = b"\xc1 not a graph"
    async with asyncio.TaskGroup() as tasks:
        pausing = tasks.create_task(_pause_the_next_leader(stage, 3600))
        async with stage.leading() as dispatcher:
            await pausing
            await settle()
            assert await status(dispatcher, A) is JobStatus.FAILED
            assert await status(dispatcher, B) is JobStatus.RUNNING
            assert stage.cluster.quarantined.keys() == {A}


@virtual_time
async def test_ended_jobs_that_expired_without_an_answer_are_not_listed_any_more() -> None:
    stage = Stage(config={"job-result-store.retention": "10 min"})
    async with stage.leading() as dispatcher:
        (await stage.submitted(dispatcher)).finish()
        await empty(dispatcher)
        await asyncio.sleep(630)
        (await stage.submitted(dispatcher, B)).finish()
        stage.faults.failing_once["ended.expire:after"] = NO_ANSWER
        await asyncio.sleep(60)
        assert stage.faults.failing_once == {}
        assert stage.cluster.ended.keys() == {B}
        await asyncio.sleep(60)

        assert [line.job_id for line in (await dispatcher.list_jobs()).jobs] == [B]


@virtual_time
async def test_reads_that_get_no_answer_are_unavailable_to_the_client_and_change_nothing() -> None:
    stage = Stage()
    async with stage.leading() as dispatcher:
        for step in ("ended.get:before", "graphs.key:before"):
            stage.faults.failing[step] = NO_ANSWER
        assert isinstance(await outcome_of(dispatcher.job(JobQuery(job_id=A))), Unavailable)
        assert isinstance(await outcome_of(dispatcher.submit_job(submission(A, key="k"))), Unavailable)
        assert stage.cluster.graphs == {}


async def _pause_the_next_leader(stage: Stage, length_s: float) -> None:
    stage.cut_off()
    await asyncio.sleep(length_s)
    assert stage.cluster.quarantined == {}
    stage.mend()


async def accepted(dispatcher: Dispatcher, message: JobSubmission) -> Submitted:
    """Submit as good clients do: again for as long as nobody can answer."""
    for _ in range(60):
        try:
            return await dispatcher.submit_job(message)
        except Unavailable:
            await asyncio.sleep(1)
    raise AssertionError("never accepted")

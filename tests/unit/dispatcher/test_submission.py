"""Submission: FLINK_BEHAVIOURS S1-S4, and idempotency keys."""

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
    C,
    DispatcherHarness,
    empty,
    graph,
    outcome_of,
    settle,
    status,
    submission,
    until,
)

from flintlock.model.errors import DuplicateJob, Fenced, Invalid, KeyReused, NotFound, Unavailable
from flintlock.model.jobs import JobQuery, JobSubmission, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import now_ms, virtual_time


@virtual_time
async def test_accepted_job_is_stored_shown_and_run() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(blobs=[CODE])) == Submitted(job_id=A)

        assert A in harness.cluster.graphs
        assert harness.blobs.references == {A: (CODE,)}
        assert await status(dispatcher) is JobStatus.INITIALIZING
        await until(lambda: harness.job_masters.made != [])
        await settle()
        assert await status(dispatcher) is JobStatus.RUNNING
        assert [line.job_id for line in (await all_jobs(dispatcher))] == [A]


@virtual_time
async def test_acknowledgement_comes_after_the_graph_is_durable_and_not_before() -> None:
    harness = DispatcherHarness()
    stored = harness.faults.hold("graphs.put:after")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(dispatcher.submit_job(submission()))
        await settle()
        assert A in harness.cluster.graphs
        assert not answer.done()
        with pytest.raises(NotFound):
            await dispatcher.job(JobQuery(job_id=A))
        assert (await all_jobs(dispatcher)) == ()

        stored.set()

        assert (await answer).job_id == A


@virtual_time
async def test_submitting_never_waits_for_initialisation() -> None:
    """The answer leaves before the JobMaster is made."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission())

        assert harness.job_masters.made == []


@virtual_time
async def test_duplicate_while_running_is_refused_and_deletes_nothing() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher)
        before = len(harness.faults.seen)

        with pytest.raises(DuplicateJob) as refused:
            await dispatcher.submit_job(submission())

        assert not refused.value.globally_terminated
        await settle()
        assert harness.faults.writes(since=before) == []
        assert A in harness.cluster.graphs
        assert len(harness.job_masters.made) == 1


@virtual_time
async def test_duplicate_of_a_terminated_but_dirty_job_is_flagged() -> None:
    harness = DispatcherHarness()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish(scratch=("work",))
        await until(lambda: A in harness.cluster.results)
        await settle()
        assert harness.cluster.results[A].dirty

        with pytest.raises(DuplicateJob) as refused:
            await dispatcher.submit_job(submission())

        assert refused.value.globally_terminated


@virtual_time
async def test_duplicate_of_a_terminated_and_clean_job_is_flagged() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
        assert not harness.cluster.results[A].dirty

        with pytest.raises(DuplicateJob) as refused:
            await dispatcher.submit_job(submission())

        assert refused.value.globally_terminated
        assert A not in harness.cluster.graphs


@virtual_time
async def test_id_stays_used_when_only_the_store_has_it() -> None:
    """The archive is gone, so the listing does not know the job: the store's own transaction refuses it."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await harness.submitted(dispatcher)).finish()
        await empty(dispatcher)
    harness.cluster.ended.clear()
    async with harness.leading() as dispatcher:
        before = len(harness.faults.seen)
        with pytest.raises(DuplicateJob) as refused:
            await dispatcher.submit_job(submission(blobs=[CODE]))

        assert refused.value.globally_terminated
        await empty(dispatcher)
        assert harness.faults.writes(since=before) == []
        assert harness.cluster.graphs == {}
        assert harness.blobs.references == {}


@virtual_time
async def test_of_two_simultaneous_submissions_exactly_one_wins() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        answers = await asyncio.gather(*(dispatcher.submit_job(submission()) for _ in range(5)), return_exceptions=True)

        assert sorted(type(answer).__name__ for answer in answers) == ["DuplicateJob"] * 4 + ["Submitted"]
        await settle()
        assert len(harness.job_masters.made) == 1


@virtual_time
async def test_invalid_graph_is_refused_with_every_problem_and_touches_no_stored_data() -> None:
    harness = DispatcherHarness()
    bad = structs.replace(
        graph(),
        vertices=graph().vertices[1:],
        config={"rest.port": "1", "spark.x": "y", "restart-strategy.typ": "none"},
    )
    async with harness.leading() as dispatcher:
        before = len(harness.faults.seen)
        with pytest.raises(Invalid) as refused:
            await dispatcher.submit_job(JobSubmission(graph=bad))

        assert [problem for problem in refused.value.problems if "there is no step 'rows'" in problem]
        assert [problem for problem in refused.value.problems if "rest.port" in problem and "cluster" in problem]
        assert [problem for problem in refused.value.problems if "restart-strategy.type" in problem]
        assert harness.faults.seen[before:] == []
        dispatcher.assert_empty()


@virtual_time
async def test_submission_that_cannot_be_stored_is_cleaned_up_and_then_refused() -> None:
    """The write failed and took effect all the same: nothing of the job is left when the client gets the error."""
    harness = DispatcherHarness()
    harness.faults.failing["graphs.put:after"] = OSError("disk full")
    async with harness.leading() as dispatcher:
        with pytest.raises(Unavailable, match="disk full"):
            await dispatcher.submit_job(submission(key="k", blobs=[CODE]))

        assert harness.cluster.graphs == {}
        assert harness.cluster.keys == {}
        assert harness.blobs.references == {}
        assert harness.job_masters.made == []
        await empty(dispatcher)
        del harness.faults.failing["graphs.put:after"]
        assert (await dispatcher.submit_job(submission(key="k"))).existing is False


@virtual_time
async def test_cleanup_error_is_attached_to_the_refusal_and_the_cleanup_goes_on() -> None:
    harness = DispatcherHarness()
    harness.faults.failing |= {"graphs.put:after": OSError("disk full"), "graphs.remove:before": OSError("still full")}
    async with harness.leading() as dispatcher:
        with pytest.raises(Unavailable) as refused:
            await dispatcher.submit_job(submission(blobs=[CODE]))
        assert "still full" in "".join(refused.value.__notes__)
        assert A in harness.cluster.graphs
        assert harness.blobs.references == {A: (CODE,)}, "blobs outlive the graph that names them"

        harness.faults.failing.clear()
        await empty(dispatcher)

        assert harness.cluster.graphs == {}
        assert harness.blobs.references == {}


@virtual_time
async def test_same_id_again_waits_for_the_cleanup_of_the_submission_that_failed() -> None:
    harness = DispatcherHarness()
    harness.faults.failing |= {"graphs.put:after": OSError("disk full"), "graphs.remove:before": OSError("still full")}
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        with pytest.raises(Unavailable):
            await dispatcher.submit_job(submission())
        del harness.faults.failing["graphs.put:after"]
        again = tasks.create_task(dispatcher.submit_job(submission()))
        await asyncio.sleep(10)
        assert not again.done()

        harness.faults.failing.clear()

        waited_ms = now_ms()
        assert (await again).job_id == A
        await settle()
        assert harness.cluster.graphs.keys() == {A}
        assert await status(dispatcher) is JobStatus.RUNNING
        started_ms = (await dispatcher.job(JobQuery(job_id=A))).timestamps[JobStatus.INITIALIZING]
        assert started_ms >= waited_ms
        timed_from_ms = harness.runner().job.timed_from_ms
        assert timed_from_ms >= waited_ms, "its timeout counts the time that the removal of the former one took"


@virtual_time
async def test_missing_artifact_is_refused_before_anything_is_stored() -> None:
    harness = DispatcherHarness()
    harness.blobs.missing.add(CODE)
    async with harness.leading() as dispatcher:
        before = len(harness.faults.seen)
        with pytest.raises(NotFound, match="blob"):
            await dispatcher.submit_job(submission(blobs=[CODE]))
        await settle()

        assert harness.faults.writes(since=before) == []
        assert harness.cluster.graphs == {}


@virtual_time
async def test_job_runs_though_its_client_disconnects_while_it_is_stored() -> None:
    harness = DispatcherHarness()
    stored = harness.faults.hold("graphs.put:after")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        client = tasks.create_task(dispatcher.submit_job(submission()))
        await settle()

        client.cancel()
        await settle()
        stored.set()
        await settle()

        assert await status(dispatcher) is JobStatus.RUNNING


@virtual_time
async def test_leadership_lost_while_a_job_is_stored_is_answered() -> None:
    harness = DispatcherHarness()
    harness.faults.hold("graphs.put:before")
    async with asyncio.TaskGroup() as tasks:
        async with harness.leading() as dispatcher:
            client = tasks.create_task(outcome_of(dispatcher.submit_job(submission())))
            await settle()
        assert isinstance(await client, Unavailable)
    assert harness.cluster.graphs == {}


@virtual_time
async def test_leadership_lost_in_the_very_turn_of_a_submission_is_answered() -> None:
    harness = DispatcherHarness()
    async with asyncio.TaskGroup() as tasks:
        async with harness.leading() as dispatcher:
            client = tasks.create_task(outcome_of(dispatcher.submit_job(submission())))
            await asyncio.sleep(0)
        assert isinstance(await client, Unavailable)


@virtual_time
async def test_store_that_fences_a_submission_ends_the_term() -> None:
    harness = DispatcherHarness()

    async def overtaken() -> None:
        async with harness.leading() as dispatcher:
            harness.stores()  # a newer leader
            with pytest.raises(Unavailable):
                await dispatcher.submit_job(submission())
            await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup) as ended:
        await overtaken()
    assert ended.value.split(Fenced)[1] is None


# Idempotency


@virtual_time
async def test_same_key_and_graph_is_the_same_job_however_often() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(A, key="k")) == Submitted(job_id=A)
        for other in (B, C, A):
            assert await dispatcher.submit_job(submission(other, key="k")) == Submitted(job_id=A, existing=True)
        await settle()
        assert [runner.job.graph.job_id for runner in harness.job_masters.made] == [A]


@virtual_time
async def test_same_key_at_once_makes_one_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        answers = await asyncio.gather(*(dispatcher.submit_job(submission(job, key="k")) for job in (A, B, C)))

        assert {answer.job_id for answer in answers} == {A}
        assert sorted(answer.existing for answer in answers) == [False, True, True]
        assert harness.cluster.graphs.keys() == {A}


@virtual_time
async def test_same_key_is_the_same_job_across_failovers_and_after_its_end() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, key="k"))
    async with harness.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(B, key="k")) == Submitted(job_id=A, existing=True)
        await settle()
        harness.runner().finish()
        await empty(dispatcher)
    async with harness.leading() as dispatcher:
        assert await dispatcher.submit_job(submission(C, key="k")) == Submitted(job_id=A, existing=True)
        assert harness.cluster.graphs == {}


@virtual_time
async def test_same_key_with_another_graph_is_refused() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, key="k", digest="one"))

        with pytest.raises(KeyReused, match=A):
            await dispatcher.submit_job(submission(B, key="k", digest="two"))

        assert harness.cluster.graphs.keys() == {A}


@virtual_time
async def test_key_of_a_refused_submission_is_free() -> None:
    harness = DispatcherHarness()
    bad = JobSubmission(graph=structs.replace(graph(), vertices=()), idempotency_key="k", digest="d")
    async with harness.leading() as dispatcher:
        refused, accepted = await asyncio.gather(
            dispatcher.submit_job(bad), dispatcher.submit_job(submission(B, key="k")), return_exceptions=True
        )

        assert isinstance(refused, Invalid)
        assert accepted == Submitted(job_id=B)
        await settle()
        dispatcher_keys_are_free = await dispatcher.submit_job(submission(C, key="other"))
        assert dispatcher_keys_are_free.job_id == C


@virtual_time
async def test_retry_with_the_key_after_disconnecting_finds_the_job() -> None:
    """The first client goes away while its job is being stored; its retry comes before that is done."""
    harness = DispatcherHarness()
    stored = harness.faults.hold("graphs.put:before")
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as tasks:
        client = tasks.create_task(dispatcher.submit_job(submission(A, key="k")))
        await settle()
        client.cancel()
        retry = tasks.create_task(dispatcher.submit_job(submission(B, key="k")))
        await settle()

        stored.set()

        assert await retry == Submitted(job_id=A, existing=True)
        await settle()
        assert harness.cluster.graphs.keys() == {A}

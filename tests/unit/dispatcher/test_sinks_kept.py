"""Until when a job keeps its file sinks: a leader may die at any time, and the next one runs what has not ended."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
    C,
    DispatcherHarness,
    outcome_of,
    settle,
    status,
    until,
)
from tests.unit.dispatcher.test_savepoints import running
from tests.unit.dispatcher.test_sink_writers import UPGRADE, writing
from tests.unit.dispatcher.upgrade_harness import BACK, ended, runner_of, running_of, snapshot

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.ha import payloads
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, Invalid, JobFailed, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import Artifact
from flintlock.model.jobs import JobQuery, JobSubmission, StoredJob, Submitted
from flintlock.model.states import JobStatus
from flintlock.model.streaming.checkpoints import BatchFigures, QueryProgress
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import virtual_time

OTHER = JobSubmission(graph=writing(C, "/out"))


async def started(
    harness: DispatcherHarness, dispatcher: Dispatcher, job_id: JobId, path: str = "/out", upgrade_of: str = ""
) -> FakeJobMasterRunner:
    """Submit a streaming job and return its JobMaster, which runs; a job whose place it takes finishes."""
    config = {"execution.upgrade-of": upgrade_of} if upgrade_of else {}
    await dispatcher.submit_job(JobSubmission(graph=writing(job_id, path, config)))
    if upgrade_of:
        former = runner_of(harness, JobId(upgrade_of))
        assert former is not None
        await until(lambda: bool(former.queries))
        former.finish()
    runner = await running_of(harness, job_id)
    runner.executions = (running(0),)
    return runner


def live(harness: DispatcherHarness, path: str = "/out") -> list[JobId]:
    """Return which of the stored jobs that have not ended write to a path."""
    graphs = [payloads.STORED_JOB.decode(each, "the job").graph for each in harness.cluster.graphs.values()]
    return [
        JobId(graph.job_id)
        for graph in graphs
        if graph.job_id not in harness.cluster.results
        and path in {vertex.operation.target for vertex in graph.vertices}
    ]


@virtual_time
async def test_a_sink_is_free_only_once_the_end_of_its_job_is_durable() -> None:
    """A JobMaster that ends by its own error records nothing: the next leader runs the job again."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await started(harness, dispatcher, A)
        harness.faults.hold("results.create_dirty:before")
        runner.crash(JobFailed("a bug"))
        await until(lambda: "results.create_dirty:before" in harness.faults.seen)
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Unavailable)
    harness.faults.held.clear()
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        assert live(harness) == [A]
        (await running_of(harness, A)).fail("no rows")
        assert (await ended(dispatcher, A)).status is JobStatus.FAILED

        assert await dispatcher.submit_job(OTHER) == Submitted(job_id=C), "a failed job is run again under another id"


@virtual_time
async def test_a_job_that_failed_keeps_its_sink_while_the_way_back_waits_for_storage() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        failed = await started(harness, dispatcher, B, upgrade_of=A)
        harness.savepoints.unreadable = Unavailable("the disk is full")
        failed.fail("the state does not fit")
        await asyncio.sleep(3600)
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)
        harness.savepoints.unreadable = None

        assert (await ended(dispatcher, B)).successor == BACK
        assert await status(dispatcher, BACK) is JobStatus.RUNNING
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)


@virtual_time
async def test_the_sink_of_the_former_job_is_kept_until_the_new_one_has_committed_a_batch() -> None:
    """The new one has another sink. If it fails before that, the former one runs again, and needs its own."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        successor = await started(harness, dispatcher, B, "/new", upgrade_of=A)
        refusal = await outcome_of(dispatcher.submit_job(OTHER))
        assert isinstance(refusal, Conflict)
        assert f"job {A} has the same sink, and runs again if job {B}" in refusal.public
        batch = BatchFigures(batch=1, started_ms=1, duration_ms=1)
        successor.executions = (structs.replace(running(0), query=QueryProgress(checkpoint="/c", batches=(batch,))),)

        assert await dispatcher.submit_job(OTHER) == Submitted(job_id=C)


@virtual_time
async def test_the_way_back_to_another_sink_is_open_under_the_next_leader_too() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        await started(harness, dispatcher, B, "/new", upgrade_of=A)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        successor = await running_of(harness, B)
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)
        successor.fail("the state does not fit")
        await running_of(harness, BACK)

        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)


@virtual_time
async def test_the_way_back_is_open_although_another_job_was_to_take_the_place_of_the_failed_one() -> None:
    """That one waits for a savepoint of the failed job, which is never made. Else none of them would run."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        failed = await started(harness, dispatcher, B, upgrade_of=A)
        await dispatcher.submit_job(JobSubmission(graph=writing(C, "/out", {"execution.upgrade-of": B})))
        await until(lambda: bool(failed.queries))
        harness.savepoints.unmade = Invalid("it is not a savepoint")
        failed.fail("the state does not fit")
        await running_of(harness, BACK)

        assert (await ended(dispatcher, C)).status is JobStatus.FAILED
        assert live(harness) == [BACK]


@virtual_time
async def test_in_a_chain_of_upgrades_each_one_takes_the_sink_of_the_one_before() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        await started(harness, dispatcher, B, upgrade_of=A)
        last = await started(harness, dispatcher, C, upgrade_of=B)
        last.fail("the state does not fit")
        assert (await ended(dispatcher, C)).successor

        assert len(live(harness)) == 1


@virtual_time
async def test_a_job_that_was_followed_by_the_former_one_is_not_run_again_by_the_next_leader() -> None:
    """Its JobMaster ended by an error of its own, and its leader died before that was durable."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
        failed = await started(harness, dispatcher, B, upgrade_of=A)
        harness.faults.hold("results.create_dirty:before")
        failed.crash(JobFailed("a bug"))
        await running_of(harness, BACK)
        await settle()
    harness.faults.held.clear()
    harness.job_masters.made.clear()
    harness.savepoints.progressed = True  # the former one has written to the sink meanwhile
    async with harness.leading() as dispatcher:
        await running_of(harness, BACK)
        found = await ended(dispatcher, B)

        assert (found.status, found.successor) == (JobStatus.FAILED, BACK)
        assert runner_of(harness, B) is None, "both would write to the sink"
        assert not harness.cluster.quarantined
        assert live(harness) == [BACK]


@virtual_time
async def test_a_submission_that_may_be_stored_keeps_its_sinks_until_nothing_is_left_of_it() -> None:
    """Also when its id is submitted again, with another sink. The next leader would run what it finds."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        harness.faults.failing_once["graphs.put:after"] = Unavailable("no answer")
        harness.faults.failing["graphs.remove:before"] = Unavailable("out of reach")
        assert isinstance(await outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(A, "/out")))), Unavailable)
        assert live(harness) == [A]
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Unavailable)
        again = clients.create_task(dispatcher.submit_job(JobSubmission(graph=writing(A, "/new"))))
        await settle()
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Unavailable)
        del harness.faults.failing["graphs.remove:before"]
        await again

        assert await dispatcher.submit_job(OTHER) == Submitted(job_id=C)
        assert (live(harness), live(harness, "/new")) == ([C], [A])


@virtual_time
async def test_two_jobs_of_an_older_version_with_one_sink_are_recovered_and_run_both() -> None:
    """Each can be upgraded to another sink, cancelled, and gone back to."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await started(harness, dispatcher, A)
    other = StoredJob(graph=writing(C, "/out"), submitted_ms=1)
    harness.cluster.graphs[C] = payloads.STORED_JOB.encode(other)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        for job_id in (A, C):
            (await running_of(harness, job_id)).executions = (running(0),)
        assert not harness.cluster.quarantined
        assert isinstance(await outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(B, "/out")))), Conflict)
        upgraded = await outcome_of(dispatcher.submit_job(JobSubmission(graph=writing(B, "/out", UPGRADE))))
        assert isinstance(upgraded, Conflict)
        (await started(harness, dispatcher, B, "/new", upgrade_of=A)).fail("the state does not fit")
        await running_of(harness, BACK)
        assert (await snapshot(dispatcher, C)).status is JobStatus.RUNNING
        await dispatcher.command(CancelJob(job_id=C))
        assert (await ended(dispatcher, C)).status is JobStatus.CANCELED

        assert (await dispatcher.quarantined_jobs()).jobs == ()
        assert (await dispatcher.job(JobQuery(job_id=BACK))).status is JobStatus.RUNNING


async def quarantined(upgrade_of: str = "", path: str = "/out") -> DispatcherHarness:
    """Return a cluster whose next leader can put a job back from the quarantine: A, or B that has taken its place."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        if upgrade_of:
            await started(harness, dispatcher, A)
            await started(harness, dispatcher, B, path, upgrade_of=A)
        else:
            await started(harness, dispatcher, A)
    job_id = B if upgrade_of else A
    stored = payloads.STORED_JOB.decode(harness.cluster.graphs[job_id], "the job")
    graph = structs.replace(stored.graph, artifacts=(Artifact(name="code.zip", blob=CODE),))
    harness.cluster.graphs[job_id] = payloads.STORED_JOB.encode(structs.replace(stored, graph=graph))
    harness.blobs.missing.add(CODE)
    async with harness.leading() as dispatcher:
        assert (await status(dispatcher, job_id)) is JobStatus.FAILED
    harness.blobs.missing.clear()
    harness.job_masters.made.clear()
    assert list(harness.cluster.quarantined) == [job_id]
    return harness


@virtual_time
async def test_a_job_that_may_have_been_put_back_keeps_its_sink() -> None:
    """It was, and the store did not answer: the next leader would run it beside another one."""
    harness = await quarantined()
    harness.faults.failing["graphs.restore:after"] = Unavailable("no answer")
    async with harness.leading() as dispatcher:
        with pytest.raises(Unavailable, match=r"it is not known whether job a+ was put back: no answer"):
            await dispatcher.retry_quarantined(JobQuery(job_id=A))
        assert live(harness) == [A]
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)
        del harness.faults.failing["graphs.restore:after"]
        await asyncio.sleep(10)

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert isinstance(await outcome_of(dispatcher.submit_job(OTHER)), Conflict)


@virtual_time
async def test_a_leader_that_dies_before_it_knows_whether_a_job_was_put_back_leaves_one_with_the_sink() -> None:
    harness = await quarantined()
    harness.faults.failing["graphs.restore:after"] = Unavailable("no answer")
    async with harness.leading() as dispatcher:
        await outcome_of(dispatcher.retry_quarantined(JobQuery(job_id=A)))
        await outcome_of(dispatcher.submit_job(OTHER))
    async with harness.leading():
        await running_of(harness, A)
        assert live(harness) == [A]


@virtual_time
async def test_a_job_that_could_not_be_put_back_is_put_back_once_the_store_answers() -> None:
    harness = await quarantined()
    harness.faults.failing["graphs.restore:before"] = Unavailable("out of reach")
    async with harness.leading() as dispatcher:
        assert isinstance(await outcome_of(dispatcher.retry_quarantined(JobQuery(job_id=A))), Unavailable)
        del harness.faults.failing["graphs.restore:before"]
        await dispatcher.retry_quarantined(JobQuery(job_id=A))
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert [each.job.graph.job_id for each in harness.job_masters.made] == [A]


@virtual_time
@pytest.mark.parametrize("progressed", [False, True])
async def test_an_upgrade_is_put_back_only_if_it_can_go_back_to_the_sink_of_the_former_job(progressed: bool) -> None:
    harness = await quarantined(upgrade_of=A, path="/new")
    harness.savepoints.progressed = progressed
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(OTHER)
        answer = await outcome_of(dispatcher.retry_quarantined(JobQuery(job_id=B)))

        assert isinstance(answer, Conflict) != progressed
        assert live(harness, "/new") == ([B] if progressed else [])

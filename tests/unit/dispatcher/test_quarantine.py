"""Quarantined jobs are inspected, put back and dropped, whichever leader has to finish it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
    DispatcherHarness,
    empty,
    record,
    settle,
    status,
    submission,
    until,
)

from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, NotFound, Unavailable
from flintlock.model.jobs import AwaitJob, JobQuery
from flintlock.model.states import JobStatus
from flintlock.model.tasks import RemoveFiles
from flintlock.testing.virtual_time import virtual_time

QUERY = JobQuery(job_id=A)
RECORD = structs.replace(record(A), staging=("out/.flintlock-a",))


async def with_missing_artifact(retention: str = "7 d") -> DispatcherHarness:
    """Return a cluster whose next leader quarantines job A."""
    harness = DispatcherHarness(config={"job-result-store.retention": retention})
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await harness.submitted(dispatcher, B)
    harness.blobs.missing.add(CODE)
    return harness


async def with_failed_initialisation() -> DispatcherHarness:
    """Return a cluster whose next leader quarantines job A, which has run."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
        await harness.ha.stores(harness.cluster.token).progress.record(RECORD)
    harness.job_masters.fail_for[A] = ValueError("no plan for this")
    return harness


@virtual_time
async def test_quarantined_jobs_are_listed_with_reason_and_what_is_kept_of_them() -> None:
    harness = await with_missing_artifact()
    async with harness.leading() as dispatcher:
        (found,) = (await dispatcher.quarantined_jobs()).jobs
        assert found == await dispatcher.quarantined_job(QUERY)
        assert (found.job_id, found.name, found.readable) == (A, "job", True)
        assert "its artifact 'lib0.zip' cannot be had" in found.reason
        assert found.artifacts == ("lib0.zip",)
        with pytest.raises(NotFound, match="is not quarantined"):
            await dispatcher.quarantined_job(JobQuery(job_id=B))


@virtual_time
async def test_retried_job_runs_under_its_own_id_once_what_kept_it_from_running_is_repaired() -> None:
    harness = await with_missing_artifact()
    async with harness.leading() as dispatcher:
        assert await status(dispatcher, A) is JobStatus.FAILED
        assert harness.blobs.references[A] == (CODE,), "its artifacts are kept"
        harness.blobs.missing.clear()

        for _ in range(2):
            await dispatcher.retry_quarantined(QUERY)
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert (await dispatcher.quarantined_jobs()).jobs == ()
        harness.runner(A).finish()
        assert (await dispatcher.await_job(AwaitJob(job_id=A, wait_s=5))).status is JobStatus.FINISHED


@virtual_time
async def test_retried_job_whose_reason_is_still_there_is_quarantined_again_with_the_reason() -> None:
    harness = await with_missing_artifact()
    async with harness.leading() as dispatcher:
        with pytest.raises(Conflict, match=r"is quarantined again: its artifact 'lib0.zip' cannot be had"):
            await dispatcher.retry_quarantined(QUERY)

        assert await status(dispatcher, A) is JobStatus.FAILED
        assert [job.job_id for job in (await dispatcher.quarantined_jobs()).jobs] == [A]


@virtual_time
async def test_job_that_could_not_be_initialised_keeps_what_it_used_and_continues_when_it_is_retried() -> None:
    harness = await with_failed_initialisation()
    async with harness.leading() as dispatcher:
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)
        assert A in harness.cluster.progress
        assert harness.blobs.references[A] == (CODE,)
        del harness.job_masters.fail_for[A]

        await dispatcher.retry_quarantined(QUERY)
        await settle()

        assert await status(dispatcher, A) is JobStatus.RUNNING
        assert harness.job_masters.made[-1].progress == (RECORD,)


@virtual_time
async def test_leader_that_dies_after_the_job_was_put_back_leaves_it_to_the_next_one() -> None:
    harness = await with_missing_artifact()
    async with harness.leading() as dispatcher:
        harness.blobs.missing.clear()
        harness.faults.failing["progress.ids:before"] = Unavailable("out of reach")
        with pytest.raises(Unavailable, match="is put back and will run"):
            await dispatcher.retry_quarantined(QUERY)
    del harness.faults.failing["progress.ids:before"]
    async with harness.leading() as dispatcher:
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_retried_job_whose_store_answers_again_runs_under_the_same_leader() -> None:
    harness = await with_missing_artifact()
    async with harness.leading() as dispatcher:
        harness.blobs.missing.clear()
        harness.faults.failing["progress.ids:before"] = Unavailable("out of reach")
        with pytest.raises(Unavailable):
            await dispatcher.retry_quarantined(QUERY)
        del harness.faults.failing["progress.ids:before"]
        await asyncio.sleep(10)
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_former_cancel_does_not_count_for_a_retried_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, blobs=[CODE]))
        await settle()
        harness.runner(A).obeys = False
        await dispatcher.command(CancelJob(job_id=A))
    harness.blobs.missing.add(CODE)
    async with harness.leading() as dispatcher:
        harness.blobs.missing.clear()
        await dispatcher.retry_quarantined(QUERY)
        await settle()
        assert await status(dispatcher, A) is JobStatus.RUNNING


@virtual_time
async def test_dropped_job_is_cleaned_up_with_records_directories_and_artifacts() -> None:
    harness = await with_failed_initialisation()
    async with harness.leading() as dispatcher:
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)
        assert (await dispatcher.quarantined_job(QUERY)).directories == RECORD.staging
        assert harness.resource_manager.removed == []

        for _ in range(2):
            await dispatcher.drop_quarantined(QUERY)
        await empty(dispatcher)

        assert harness.cluster.quarantined == {}
        assert A not in harness.cluster.progress
        assert A not in harness.blobs.references
        assert harness.resource_manager.removed == [RemoveFiles(job_id=A, directories=RECORD.staging)]
        assert await status(dispatcher, A) is JobStatus.FAILED, "it is listed until its retention is over"
        with pytest.raises(NotFound):
            await dispatcher.drop_quarantined(JobQuery(job_id=B))


@virtual_time
async def test_job_is_not_dropped_while_the_store_does_not_say_what_it_leaves_behind() -> None:
    """Its directories would stay for ever."""
    harness = await with_failed_initialisation()
    async with harness.leading() as dispatcher:
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)
        harness.faults.failing["progress.read:after"] = Unavailable("no answer")
        with pytest.raises(Unavailable):
            await dispatcher.drop_quarantined(QUERY)
        del harness.faults.failing["progress.read:after"]

        await dispatcher.drop_quarantined(QUERY)
        await empty(dispatcher)
        assert harness.resource_manager.removed == [RemoveFiles(job_id=A, directories=RECORD.staging)]


@virtual_time
async def test_artifacts_of_quarantined_jobs_are_kept_while_the_store_does_not_list_them() -> None:
    harness = await with_failed_initialisation()
    async with harness.leading():
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)
    harness.faults.failing["graphs.quarantined:after"] = Unavailable("no answer")
    async with harness.leading():
        await settle()
        assert harness.blobs.references[A] == (CODE,)


@virtual_time
async def test_leader_that_dies_after_a_drop_leaves_the_cleanup_to_the_next_one() -> None:
    harness = await with_failed_initialisation()
    harness.resource_manager.fail_with = Unavailable("no TaskManager")
    async with harness.leading() as dispatcher:
        await until(lambda: A in harness.cluster.results and not harness.cluster.results[A].dirty)
        await dispatcher.drop_quarantined(QUERY)
        with pytest.raises((NotFound, Conflict)):
            await dispatcher.retry_quarantined(QUERY)
    harness.resource_manager.fail_with = None
    async with harness.leading() as dispatcher:
        await empty(dispatcher)
        assert A not in harness.cluster.progress
        assert not harness.cluster.results[A].dirty


@virtual_time
async def test_quarantined_job_is_dropped_and_forgotten_when_its_retention_is_over() -> None:
    harness = await with_missing_artifact(retention="1 h")
    async with harness.leading() as dispatcher:
        await asyncio.sleep(3000)
        assert [job.job_id for job in (await dispatcher.quarantined_jobs()).jobs] == [A]
        await asyncio.sleep(7200)
        assert (await dispatcher.quarantined_jobs()).jobs == ()
        assert A not in harness.cluster.ended
        assert A not in harness.blobs.references

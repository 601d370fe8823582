"""A leader does not wait for the ended jobs of earlier ones: it lists them while it leads already."""

from __future__ import annotations

import asyncio

from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, settle, submission

from flintlock.api.job_lines import id_and_status
from flintlock.dispatcher.snapshots import initial_snapshot
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobsQuery, ListingChangesQuery, StoredJob
from flintlock.model.states import JobStatus
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import VIRTUAL_EPOCH_MS, virtual_time

COUNT = 1_200  # more than two slices


async def with_ended_jobs(count: int = COUNT) -> DispatcherHarness:
    """A store with ended jobs: number n started and ended n seconds after the first."""
    harness = DispatcherHarness()
    stores = harness.stores()
    for number in range(count):
        at_ms = VIRTUAL_EPOCH_MS - 10**9 + number * 1000
        graph = JobGraph(job_id=JobId(f"{number:032x}"), name=f"job {number}")
        snapshot = initial_snapshot(StoredJob(graph=graph, submitted_ms=at_ms))
        ended = structs.replace(snapshot, status=JobStatus.FINISHED, end_ms=at_ms + 500)
        await stores.ended.put(ended, ())
    async with harness.leading():  # the first leader of all reads one of them, for the retention clock
        await settle()
    return harness


@virtual_time
async def test_a_leader_accepts_jobs_before_the_ended_ones_are_listed() -> None:
    harness = await with_ended_jobs(10)
    held = harness.faults.hold("ended.summaries:before")
    async with harness.leading() as dispatcher:
        assert (await dispatcher.submit_job(submission(A))).job_id == A
        async with asyncio.TaskGroup() as tasks:
            listing = tasks.create_task(all_jobs(dispatcher), name="listing")
            await asyncio.sleep(60)

            assert not listing.done(), "the list would not have the ended jobs"
            running = await dispatcher.list_jobs(JobsQuery(limit=5, ended=False))
            assert [id_and_status(line)[0] for line in running.lines] == [A]
            held.set()
        assert len(listing.result()) == 11


@virtual_time
async def test_the_first_page_is_there_before_all_ended_jobs_are_listed() -> None:
    harness = await with_ended_jobs()
    first = harness.faults.hold("ended.slice:before")
    async with harness.leading() as dispatcher:
        await settle()
        first.set()
        others = harness.faults.hold("ended.slice:before")
        page = await dispatcher.list_jobs(JobsQuery(limit=3))
        others.set()

        assert [id_and_status(line)[0] for line in page.lines] == [f"{COUNT - n:032x}" for n in (1, 2, 3)]
        assert len(await all_jobs(dispatcher)) == COUNT
        assert (await dispatcher.job_counts()).by_status[JobStatus.FINISHED] == COUNT


@virtual_time
async def test_a_store_that_does_not_answer_is_read_again() -> None:
    harness = await with_ended_jobs()
    harness.faults.failing_once["ended.slice:after"] = Unavailable("connection lost")
    async with harness.leading() as dispatcher:
        assert len(await all_jobs(dispatcher)) == COUNT
        assert (await dispatcher.job_counts()).by_status[JobStatus.FINISHED] == COUNT


@virtual_time
async def test_a_job_that_ends_while_the_others_are_listed_is_listed_once() -> None:
    harness = await with_ended_jobs(10)
    held = harness.faults.hold("ended.slice:before")
    async with harness.leading() as dispatcher:
        runner = await harness.submitted(dispatcher, B)
        runner.end(JobStatus.FINISHED)
        await settle()
        held.set()
        listed = await all_jobs(dispatcher)

        assert len(listed) == len({line.job_id for line in listed}) == 11
        assert listed[0].job_id == B
        assert listed[0].status is JobStatus.FINISHED


@virtual_time
async def test_who_follows_the_changes_is_told_of_each_change_and_of_another_leader() -> None:
    harness = await with_ended_jobs(10)
    async with harness.leading() as dispatcher:
        await all_jobs(dispatcher)
        begun = await dispatcher.listing_changes(ListingChangesQuery(since=-1))
        assert not begun.complete
        runner = await harness.submitted(dispatcher, A)
        changes = await dispatcher.listing_changes(ListingChangesQuery(since=begun.version))
        assert [id_and_status(line) for line in changes.lines] == [(A, JobStatus.RUNNING)]
        runner.end(JobStatus.FINISHED)
        await settle()
        changes = await dispatcher.listing_changes(ListingChangesQuery(since=changes.version))
        assert [id_and_status(line) for line in changes.lines] == [(A, JobStatus.FINISHED)]
    await asyncio.sleep(1)
    async with harness.leading() as dispatcher:
        assert not (await dispatcher.listing_changes(ListingChangesQuery(since=changes.version))).complete

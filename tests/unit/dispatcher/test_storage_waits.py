"""A full disk, or storage that is out of reach for hours, fails no job and no upgrade: the jobs wait and say so."""

from __future__ import annotations

import asyncio
import errno

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, record, until
from tests.unit.dispatcher.test_savepoints import streaming
from tests.unit.dispatcher.upgrade_harness import (
    BACK,
    ended,
    former_graph,
    runner_of,
    running_of,
    snapshot,
    stopping,
    upgrade,
)

from flintlock.dispatcher.changes.retries import wait_for_storage
from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.states import JobStatus
from flintlock.model.streaming.savepoints import FileGone
from flintlock.model.tasks import FailureKind
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time

FULL = Unavailable("the disk is full")


async def stopped_without_storage(harness: DispatcherHarness, dispatcher: Dispatcher) -> None:
    """Upgrade A to B; A has ended with a savepoint, and then B cannot be restored from it."""
    former = await stopping(harness, dispatcher)
    former.finish()
    await until(lambda: bool(harness.savepoints.made))
    harness.savepoints.fail_with = FULL
    await until(lambda: A in harness.cluster.results and harness.savepoints.asked > 0)
    await asyncio.sleep(3600)
    assert runner_of(harness, B) is None


@virtual_time
async def test_a_job_waits_for_hours_until_it_can_be_restored_and_shows_what_it_waits_for() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopped_without_storage(harness, dispatcher)

        waiting = await snapshot(dispatcher, B)
        assert (waiting.status, waiting.summary().waits_for) == (JobStatus.INITIALIZING, "storage: the disk is full")
        listed = {line.job_id: line.waits_for for line in await all_jobs(dispatcher)}
        assert listed[B] == "storage: the disk is full"
        harness.savepoints.fail_with = None

        await running_of(harness, B)
        assert (await snapshot(dispatcher, B)).summary().waits_for == ""


STALE = Unavailable("the checkpoints cannot be read: Stale file handle")


@virtual_time
async def test_a_job_that_runs_needs_no_storage_under_the_next_leader() -> None:
    """Its record says that it has begun: neither is it restored again, nor does it wait, nor is it quarantined."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        first = await running_of(harness, B)
        await harness.ha.stores(harness.cluster.token).progress.record(record(B))
    harness.savepoints.unreadable_checkpoints = OSError(errno.ESTALE, "Stale file handle")
    async with harness.leading() as dispatcher:
        await until(lambda: runner_of(harness, B) is not first)
        assert (await snapshot(dispatcher, B)).status is not JobStatus.FAILED
    assert harness.savepoints.restored == [B]


@virtual_time
async def test_a_job_that_may_be_restored_is_not_restored_again_or_quarantined_while_that_cannot_be_found_out() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        first = await running_of(harness, B)
    harness.savepoints.unreadable_checkpoints = STALE
    async with harness.leading() as dispatcher:
        await asyncio.sleep(3600)
        waiting = await snapshot(dispatcher, B)
        assert (waiting.status, waiting.summary().waits_for) == (JobStatus.INITIALIZING, f"storage: {STALE.public}")
        assert runner_of(harness, B) is first
        harness.savepoints.unreadable_checkpoints = None
        await until(lambda: runner_of(harness, B) is not first)
    assert harness.savepoints.restored == [B]


@virtual_time
async def test_a_job_that_may_be_restored_is_cancelled_while_that_cannot_be_found_out() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        await running_of(harness, B)
    harness.savepoints.unreadable_checkpoints = STALE
    async with harness.leading() as dispatcher:
        await asyncio.sleep(60)
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED


HANGS = "storage: no answer for more than 30 s"


@virtual_time
async def test_a_job_whose_storage_answers_nothing_shows_that_and_is_cancelled() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        await until(lambda: bool(harness.savepoints.made))
        harness.savepoints.answers.clear()
        await asyncio.sleep(3600)
        waiting = await snapshot(dispatcher, B)
        assert (waiting.status, waiting.summary().waits_for) == (JobStatus.INITIALIZING, HANGS)
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED


@virtual_time
async def test_a_way_back_that_is_not_answered_ends_with_a_cancel() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        successor = await running_of(harness, B)
        harness.savepoints.answers.clear()
        successor.fail("the state does not fit")
        await asyncio.sleep(3600)
        assert (await snapshot(dispatcher, B)).summary().waits_for == HANGS
        await dispatcher.command(CancelJob(job_id=B))

        failed = await ended(dispatcher, B)
        assert (failed.status, failed.successor) == (JobStatus.FAILED, "")


@virtual_time
async def test_a_savepoint_that_is_not_answered_is_shown_and_given_up_once_its_successor_is_cancelled() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        harness.savepoints.answers.clear()
        former.finish()
        await asyncio.sleep(3600)
        assert (await snapshot(dispatcher, A)).summary().waits_for == HANGS
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED
        assert (await ended(dispatcher, A)).status is JobStatus.FINISHED


@virtual_time
async def test_a_savepoint_that_takes_long_is_made_though_nobody_waits_for_it_any_more() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        harness.savepoints.answers.clear()
        former.finish()
        await asyncio.sleep(60)
        await dispatcher.command(CancelJob(job_id=B))
        await asyncio.sleep(300)
        harness.savepoints.answers.set()

        assert (await ended(dispatcher, A)).status is JobStatus.FINISHED
    assert len(harness.savepoints.made) == 1


@virtual_time
@pytest.mark.parametrize("answers", [False, True])
async def test_a_job_that_waits_for_storage_fails_at_its_timeout_and_the_way_back_is_taken(answers: bool) -> None:
    """Time under an earlier leader counts, as it does for a job that runs."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await streaming(harness, dispatcher)
        wanted = upgrade(former_graph(harness))
        config = {**wanted.graph.config, "job.timeout": "2 h"}
        await dispatcher.submit_job(structs.replace(wanted, graph=structs.replace(wanted.graph, config=config)))
        await until(lambda: bool(former.queries))
        former.finish()
        await until(lambda: bool(harness.savepoints.made))
        if answers:
            harness.savepoints.fail_with = FULL
        else:
            harness.savepoints.answers.clear()
        await asyncio.sleep(3600)
    async with harness.leading() as dispatcher:
        await asyncio.sleep(3000)
        assert (await snapshot(dispatcher, B)).status is JobStatus.INITIALIZING
        await asyncio.sleep(1200)
        assert (await snapshot(dispatcher, B)).status is JobStatus.FAILED if answers else JobStatus.FAILING
        harness.savepoints.answers.set()
        harness.savepoints.fail_with = None

        failed = await ended(dispatcher, B)
        assert (failed.status, failed.successor) == (JobStatus.FAILED, BACK)
        (entry,) = failed.exceptions
        assert entry.failure.kind is FailureKind.TIMEOUT
        assert entry.failure.message == "the job has not ended within 7200 s of its submission (job.timeout)"


@virtual_time
async def test_a_wait_for_the_same_reason_is_shown_once_though_other_paths_are_named() -> None:
    shown: list[str] = []
    tries = 0

    async def restore() -> None:
        nonlocal tries
        tries += 1
        if tries < 100:
            error = Unavailable(f"no space left: /checkpoints/.x.{tries}")
            error.__cause__ = OSError(errno.ENOSPC if tries < 50 else errno.EROFS, "…", f"/checkpoints/.x.{tries}")
            raise error

    await wait_for_storage(restore, is_over=lambda: False, show=shown.append)

    assert shown == [f"storage: no space left: /checkpoints/.x.{number}" for number in (1, 50)] + [""]


@virtual_time
async def test_a_job_that_waits_for_storage_is_cancelled_also_under_the_next_leader() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopped_without_storage(harness, dispatcher)
    async with harness.leading() as dispatcher:
        await asyncio.sleep(60)
        assert (await snapshot(dispatcher, B)).summary().waits_for == "storage: the disk is full"
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED


@virtual_time
async def test_a_stopped_job_waits_for_hours_until_its_savepoint_can_be_made_and_is_not_shown_as_ended() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        harness.savepoints.fail_with = FULL
        former.finish()
        await asyncio.sleep(3600)
        waiting = await snapshot(dispatcher, A)
        assert (waiting.status, waiting.end_ms) == (JobStatus.RUNNING, -1)
        assert waiting.summary().waits_for == "storage: the disk is full"
        harness.savepoints.fail_with = None

        await running_of(harness, B)
        assert (await snapshot(dispatcher, A)).status is JobStatus.FINISHED


@virtual_time
async def test_a_stopped_job_waits_no_longer_once_its_successor_is_cancelled() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        harness.savepoints.fail_with = FULL
        former.finish()
        await asyncio.sleep(600)
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED
        assert (await ended(dispatcher, A)).status is JobStatus.FINISHED


@virtual_time
@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_way_back_waits_for_hours_or_until_the_failed_job_is_cancelled(cancelled: bool) -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        successor = await running_of(harness, B)
        harness.savepoints.unreadable = Unavailable("the storage cannot be reached")
        successor.fail("the state does not fit")
        await asyncio.sleep(3600)
        waiting = await snapshot(dispatcher, B)
        assert (waiting.status, waiting.summary().waits_for) == (
            JobStatus.FAILING,
            "storage: the storage cannot be reached",
        )
        if cancelled:
            await dispatcher.command(CancelJob(job_id=B))
        else:
            harness.savepoints.unreadable = None

        assert (await ended(dispatcher, B)).successor == ("" if cancelled else BACK)


@virtual_time
@pytest.mark.parametrize("gone", [FileGone("offsets/7"), FileNotFoundError(errno.ENOENT, "No such file or directory")])
async def test_a_savepoint_of_files_that_are_gone_is_given_up_after_a_while(gone: Exception) -> None:
    """Nothing writes to the checkpoints of a job that has finished: what is missing does not come."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        missing = Unavailable("files disappear faster than they can be saved")
        missing.__cause__ = gone
        harness.savepoints.fail_with = missing
        former.finish()
        await asyncio.sleep(600)

        assert (await ended(dispatcher, A)).status is JobStatus.FINISHED
        harness.savepoints.fail_with = Invalid("there is no savepoint")
        assert (await ended(dispatcher, B)).status is JobStatus.FAILED


@virtual_time
async def test_a_file_that_nobody_may_read_fails_the_job_after_a_while() -> None:
    """It does not pass by itself; the job whose place was to be taken runs again."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        denied = Unavailable("not permitted")
        denied.__cause__ = PermissionError(errno.EACCES, "not permitted")
        former.finish()
        await until(lambda: bool(harness.savepoints.made))
        harness.savepoints.fail_with = denied
        await asyncio.sleep(600)

        failed = await ended(dispatcher, B)
        assert (failed.status, failed.successor) == (JobStatus.FAILED, BACK)


@virtual_time
async def test_what_was_restored_of_a_job_that_is_cancelled_meanwhile_is_removed() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopped_without_storage(harness, dispatcher)
        harness.faults.failing["results.create_dirty:before"] = FULL
        await dispatcher.command(CancelJob(job_id=B))
        await asyncio.sleep(60)
        assert not harness.savepoints.abandoned, "until its end is durable, another leader may run it"
        harness.faults.failing.clear()
        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED
    assert harness.savepoints.abandoned == [B]

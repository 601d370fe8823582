"""Retention counts the time in which the cluster had a leader; a wall clock that is wrong or jumps changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, empty, graph, settle, submission

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.retention.retention_clock import RECORD_PERIOD_S
from flintlock.ha import payloads
from flintlock.model import log_events
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import RetentionReading, StoredJob
from flintlock.testing.fakes.memory_ha import ResultEntry
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import now_ms, virtual_time

DAY_MS = 86_400_000
HOUR_S = 3600.0


async def end_a_job(harness: DispatcherHarness, dispatcher: Dispatcher, job_id: JobId = A) -> None:
    (await harness.submitted(dispatcher, job_id)).finish()
    await empty(dispatcher)


async def listed(dispatcher: Dispatcher) -> set[JobId]:
    return {line.job_id for line in await all_jobs(dispatcher)}


@virtual_time
async def test_leader_that_starts_with_a_clock_a_week_ahead_forgets_no_job_and_no_key() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.submit_job(submission(A, key="k"))
        await asyncio.sleep(1)
        harness.runner(A).finish()
        await empty(dispatcher)

    harness.clock_error_ms = 8 * DAY_MS
    async with harness.leading() as dispatcher:
        await asyncio.sleep(2 * HOUR_S)
        harness.clock_error_ms = 0

        assert await listed(dispatcher) == {A}
        assert (await dispatcher.submit_job(submission(B, key="k"))).job_id == A


@virtual_time
@pytest.mark.parametrize("days", [8, -8])
async def test_clock_that_jumps_while_leading_forgets_nothing_and_is_logged_once_each_way(days: int) -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await end_a_job(harness, dispatcher)
        with capture_logs() as logs:
            harness.clock_error_ms = days * DAY_MS
            await asyncio.sleep(2 * HOUR_S)
            harness.clock_error_ms = 0
            await asyncio.sleep(2 * HOUR_S)

        assert await listed(dispatcher) == {A}
        jumps = [entry["by_s"] for entry in logs if entry["event"] == log_events.CLOCK_JUMPED]
        assert jumps == pytest.approx([days * 86_400.0, -days * 86_400.0], abs=1)


@virtual_time
@pytest.mark.parametrize("days", [3650, -3650])
async def test_job_that_ended_while_the_clock_was_wrong_expires_after_its_retention(days: int) -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 h"})
    async with harness.leading() as dispatcher:
        harness.clock_error_ms = days * DAY_MS
        await end_a_job(harness, dispatcher)
        harness.clock_error_ms = 0
        await asyncio.sleep(9.5 * HOUR_S)
        assert await listed(dispatcher) == {A}

        await asyncio.sleep(1.6 * HOUR_S)

        assert await listed(dispatcher) == set()
        assert harness.cluster.results == {}


@virtual_time
async def test_jobs_of_a_cluster_that_is_restarted_often_expire() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    async with harness.leading() as dispatcher:
        await end_a_job(harness, dispatcher)
    terms = 0
    while harness.cluster.ended:
        terms += 1
        async with harness.leading():
            await asyncio.sleep(60 + RECORD_PERIOD_S / 2)
        await asyncio.sleep(3600)  # without a leader: this does not count

    assert 9 <= terms <= 12


@virtual_time
async def test_retention_goes_on_where_the_former_leader_recorded_it() -> None:
    harness = DispatcherHarness()
    async with harness.leading():
        await asyncio.sleep(1000)
    before = _reading(harness)
    await asyncio.sleep(5000)
    async with harness.leading():
        await asyncio.sleep(100.5)

    assert _reading(harness).clock_ms - before.clock_ms == 100_000
    assert _reading(harness).wall_ms - before.wall_ms == pytest.approx(5_110_000, abs=20_000)


@virtual_time
async def test_job_is_stored_with_the_reading_of_the_clock_at_its_submission() -> None:
    """`job.timeout` counts from it: the wall clocks of two leaders may be hours apart."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        begin_ms = _reading(harness).clock_ms
        await asyncio.sleep(100)
        harness.clock_error_ms = 8 * DAY_MS
        await harness.submitted(dispatcher)

        stored = payloads.STORED_JOB.decode(harness.cluster.graphs[A], "the graph")
        assert stored.submitted_at_ms == begin_ms + 100_000
        assert stored.submitted_ms >= begin_ms + 8 * DAY_MS


@virtual_time
@pytest.mark.parametrize("ahead_ms", [0, DAY_MS, -DAY_MS], ids=["agree", "corrected", "set ahead"])
async def test_job_of_an_older_version_has_used_what_has_passed_by_the_wall_clock(ahead_ms: int) -> None:
    """The retention clock began when the wall clock was wrong, which was corrected later: they cannot be compared."""
    harness = DispatcherHarness()
    harness.clock_error_ms = 10 * DAY_MS + ahead_ms
    async with harness.leading():
        await settle()
    harness.clock_error_ms = 10 * DAY_MS
    old = StoredJob(graph=graph(A), submitted_ms=now_ms() + harness.clock_error_ms)
    harness.cluster.graphs[A] = payloads.STORED_JOB.encode(old)
    await asyncio.sleep(3600)
    for hours in (1, 2):
        async with harness.leading():
            await settle()
            runner = harness.runner()
            used_ms = runner.cluster_ms() - runner.job.timed_from_ms
            assert used_ms == pytest.approx(hours * 3_600_000, abs=20_000)
        await asyncio.sleep(3600)


@virtual_time
async def test_clock_that_went_back_between_two_leaders_is_logged() -> None:
    harness = DispatcherHarness()
    async with harness.leading():
        await asyncio.sleep(60)
    harness.clock_error_ms = -DAY_MS
    with capture_logs() as logs:
        async with harness.leading():
            pass

    assert [entry["event"] for entry in logs].count(log_events.CLOCK_JUMPED) == 1


@virtual_time
async def test_first_leader_with_a_clock_ahead_forgets_nothing_that_an_older_version_stored() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await end_a_job(harness, dispatcher)
    _leave_record(harness, None)  # as an older version
    harness.clock_error_ms = 8 * DAY_MS
    async with harness.leading() as dispatcher:
        await asyncio.sleep(2 * HOUR_S)
        assert await listed(dispatcher) == {A}


@virtual_time
async def test_clock_is_recorded_before_a_job_can_be_stamped_with_it() -> None:
    """Else the end of a job under a first leader whose clock is behind is long ago for the next leader."""
    harness = DispatcherHarness()
    harness.clock_error_ms = -30 * DAY_MS
    async with harness.leading():
        first = _reading(harness)
    harness.clock_error_ms = 0
    async with harness.leading():
        await asyncio.sleep(RECORD_PERIOD_S)

    assert _reading(harness).clock_ms - first.clock_ms < 2 * RECORD_PERIOD_S * 1000


@virtual_time
@pytest.mark.parametrize("damage", [b"", b"\xc1 not a reading"])
async def test_damaged_record_of_the_clock_is_replaced(damage: bytes) -> None:
    harness = DispatcherHarness()
    _leave_record(harness, damage)
    async with harness.leading() as dispatcher:
        await end_a_job(harness, dispatcher)
        await asyncio.sleep(HOUR_S)
        assert await listed(dispatcher) == {A}

    assert _reading(harness).clock_ms > 0


@virtual_time
@pytest.mark.parametrize("before", [b"\xc1 not a reading", None], ids=["damaged", "of an older version"])
@pytest.mark.parametrize("ends", [True, False])
async def test_cluster_with_jobs_serves_them_on_a_full_disk_though_its_clock_is_not_recorded(
    before: bytes | None, ends: bool
) -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await (end_a_job(harness, dispatcher) if ends else harness.submitted(dispatcher))
    _leave_record(harness, before)
    harness.faults.failing["retention_clock.record:before"] = Unavailable("the disk is full")
    with capture_logs() as logs:
        async with asyncio.timeout(60), harness.leading() as dispatcher:
            assert await listed(dispatcher) == {A}
            harness.faults.failing.clear()
            await asyncio.sleep(1.5 * RECORD_PERIOD_S)
            assert _reading(harness).clock_ms > 0

    assert log_events.RETENTION_CLOCK_NOT_RECORDED in [entry["event"] for entry in logs]


@virtual_time
async def test_new_cluster_waits_until_its_clock_is_recorded() -> None:
    """Else the end of its first job could be long ago for a next leader whose clock is ahead."""
    harness = DispatcherHarness()
    harness.faults.failing["retention_clock.record:before"] = Unavailable("the disk is full")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600), harness.leading():
            pass

    harness.faults.failing.clear()
    async with harness.leading():
        assert _reading(harness).clock_ms > 0


@virtual_time
async def test_clock_that_cannot_be_recorded_is_logged_and_nothing_else() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    async with harness.leading() as dispatcher:
        harness.faults.failing["retention_clock.record:before"] = OSError("busy")
        with capture_logs() as logs:
            await end_a_job(harness, dispatcher)
            await asyncio.sleep(720)
        assert await listed(dispatcher) == set()

    assert log_events.RETENTION_CLOCK_NOT_RECORDED in [entry["event"] for entry in logs]


@virtual_time
async def test_output_of_a_job_is_removed_once_the_job_is_forgotten_and_not_before() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    stray = JobId("e" * 32)
    async with harness.leading() as dispatcher:
        await harness.submitted(dispatcher, B)
        (await harness.submitted(dispatcher, A)).finish()
        harness.resource_manager.logged = [A, B, stray]
        await asyncio.sleep(590)
        assert harness.resource_manager.logged == [A, B]

        await asyncio.sleep(150)
        assert await listed(dispatcher) == {B}
        assert harness.resource_manager.logged == [B]


@virtual_time
async def test_output_whose_removal_fails_is_removed_later() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    async with harness.leading():
        harness.resource_manager.logged = [A]
        harness.resource_manager.fail_with = Unavailable("no TaskManager")
        await asyncio.sleep(150)
        harness.resource_manager.fail_with = None
        await asyncio.sleep(60)
        assert harness.resource_manager.logged == []


@virtual_time
async def test_sweep_of_many_logs_asks_page_by_page() -> None:
    """However many jobs there were, an answer has a thousand of them, and the store is asked once about each page."""
    harness = DispatcherHarness(config={"job-result-store.retention": "1 d"})
    jobs = [JobId(f"{number:032x}") for number in range(5000)]
    stored, forgotten = jobs[:-100], jobs[-100:]
    async with harness.leading():
        harness.cluster.results.update(dict.fromkeys(stored, ResultEntry(dirty=False, end_ms=now_ms(), payload=b"")))
        harness.resource_manager.logged = list(jobs)
        before = len(harness.faults.seen)
        await asyncio.sleep(HOUR_S + 1)

    assert harness.resource_manager.logged == stored
    pages = harness.resource_manager.logged_pages
    assert [page.limit for page in pages] == [1000] * 6
    assert [page.after for page in pages] == ["", *jobs[999::1000]]
    reads = harness.faults.seen[before:]
    assert reads.count("results.known:before") == 5
    assert reads.count("ended.get:before") == len(forgotten)


def _reading(harness: DispatcherHarness) -> RetentionReading:
    return payloads.RETENTION_READING.decode(harness.cluster.cluster_records["retention_clock"], "the cluster")


def _leave_record(harness: DispatcherHarness, record: bytes | None) -> None:
    harness.cluster.cluster_records.pop("retention_clock", None)
    if record is not None:
        harness.cluster.cluster_records["retention_clock"] = record

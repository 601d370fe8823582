"""Retention counts the time in which the cluster had a leader; a wall clock that is wrong or jumps changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, empty, submission

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.retention.retention_clock import RECORD_PERIOD_S
from flintlock.ha import payloads
from flintlock.model import log_events
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import RetentionReading
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import virtual_time

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
    harness.cluster.retention_clock = None  # as an older version left it
    harness.clock_error_ms = 8 * DAY_MS
    async with harness.leading() as dispatcher:
        await asyncio.sleep(2 * HOUR_S)
        assert await listed(dispatcher) == {A}


@virtual_time
@pytest.mark.parametrize("damage", [b"", b"\xc1 not a reading"])
async def test_damaged_record_of_the_clock_is_replaced(damage: bytes) -> None:
    harness = DispatcherHarness()
    harness.cluster.retention_clock = damage
    async with harness.leading() as dispatcher:
        await end_a_job(harness, dispatcher)
        await asyncio.sleep(HOUR_S)
        assert await listed(dispatcher) == {A}

    assert _reading(harness).clock_ms > 0


@virtual_time
async def test_clock_that_cannot_be_recorded_is_logged_and_nothing_else() -> None:
    harness = DispatcherHarness(config={"job-result-store.retention": "10 min"})
    harness.faults.failing["retention_clock.record:before"] = OSError("busy")
    async with harness.leading() as dispatcher:
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


def _reading(harness: DispatcherHarness) -> RetentionReading:
    assert harness.cluster.retention_clock is not None
    return payloads.RETENTION_READING.decode(harness.cluster.retention_clock, "the cluster")

"""A loop that stands still is measured, exported and reported with the code that held it up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from flintlock.model import log_events
from flintlock.model.ids import JobId
from flintlock.monitoring.blocking_jobs import BlockingJobs
from flintlock.monitoring.current_job import CurrentJob
from flintlock.monitoring.loop_monitor import BlockingJobWatcher, LoopMonitor
from flintlock.monitoring.standstill import StandstillLimit

A = JobId("a" * 32)


def hold_the_loop_up(seconds: float) -> None:
    """Neither sleeps nor awaits: as a large computation would."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def test_a_long_step_is_measured_and_reported_with_its_code() -> None:
    """Histogram, longest delay, and one warning that names the function."""
    registry = CollectorRegistry()

    async def run() -> float:
        async with LoopMonitor(registry, warn_after_s=0.1) as monitor:
            await asyncio.sleep(0.02)
            hold_the_loop_up(0.4)
            await asyncio.sleep(0.02)
            return monitor.longest_s

    with structlog.testing.capture_logs() as logs:
        longest_s = asyncio.run(run())

    assert longest_s >= 0.3
    warnings = [line for line in logs if line["event"] == log_events.EVENT_LOOP_BLOCKED]
    assert len(warnings) == 1
    assert warnings[0]["seconds"] >= 0.3
    assert any("hold_the_loop_up" in frame for frame in warnings[0]["stack"])
    text = generate_latest(registry).decode()
    assert "flintlock_event_loop_delay_seconds_count" in text
    assert float(text.split("flintlock_event_loop_longest_delay_seconds ")[-1].split()[0]) == longest_s


def test_a_loop_that_is_held_up_again_and_again_is_not_reported_each_time() -> None:
    """One warning for some seconds; the next one says how many there were."""

    async def run() -> None:
        async with LoopMonitor(warn_after_s=0.05):
            for _ in range(4):
                await asyncio.sleep(0.02)
                hold_the_loop_up(0.1)
            await asyncio.sleep(0.02)

    with structlog.testing.capture_logs() as logs:
        asyncio.run(run())

    assert [line["event"] for line in logs].count(log_events.EVENT_LOOP_BLOCKED) == 1


def records_during(tmp_path: Path, work: Callable[[Callable[[], dict[JobId, int]]], None]) -> dict[JobId, int]:
    """Work on a job on a monitored loop; return what is recorded afterwards."""
    current, blocking = CurrentJob(), BlockingJobs(tmp_path)

    async def run() -> dict[JobId, int]:
        async with LoopMonitor(warn_after_s=0.05, watcher=BlockingJobWatcher(current, blocking, limit_s=0.2)):
            await asyncio.sleep(0.02)
            with current.working_on(A):
                work(lambda: blocking.lost_leaders((A,)))
            async with asyncio.timeout(20):
                while blocking.lost_leaders((A,)):  # noqa: ASYNC110 a thread removes it
                    await asyncio.sleep(0.02)
            return blocking.lost_leaders((A,))

    return asyncio.run(run())


def test_a_job_is_recorded_while_work_on_it_blocks_the_loop_and_not_longer(tmp_path: Path) -> None:
    """If the process died meanwhile, the record would stay."""
    seen: list[dict[JobId, int]] = []

    def block(recorded: Callable[[], dict[JobId, int]]) -> None:
        end_s = time.monotonic() + 60
        while not recorded() and time.monotonic() < end_s:
            pass
        seen.append(recorded())

    assert records_during(tmp_path, block) == {}
    assert seen == [{A: 1}]


def test_work_that_waits_for_the_machine_is_not_the_jobs_fault(tmp_path: Path) -> None:
    """Only CPU time counts: a paused machine and a slow disk stop all work."""
    seen: list[dict[JobId, int]] = []

    def wait(recorded: Callable[[], dict[JobId, int]]) -> None:
        threading.Event().wait(0.6)
        seen.append(recorded())

    records_during(tmp_path, wait)

    assert seen == [{}]


def ended_by(tmp_path: Path, work: Callable[[threading.Event], None]) -> tuple[list[str], dict[JobId, int]]:
    """Work on a job on a loop that may stand still for 0.3 s; return why the process was to end, and what is recorded.

    In the place of the end of the process an event is set.
    """
    current, blocking, reasons, over = CurrentJob(), BlockingJobs(tmp_path), list[str](), threading.Event()

    def end(reason: str) -> None:
        reasons.append(reason)
        over.set()

    async def run() -> dict[JobId, int]:
        limit, watcher = StandstillLimit(lambda: 0.3, end), BlockingJobWatcher(current, blocking)
        async with LoopMonitor(warn_after_s=0.05, watcher=watcher, limit=limit):
            await asyncio.sleep(0.02)
            with current.working_on(A):
                work(over)
            return blocking.lost_leaders((A,))

    return reasons, asyncio.run(run())


def test_a_loop_that_stands_still_ends_its_process_and_leaves_the_job_that_it_works_on(tmp_path: Path) -> None:
    """Once, with the code; also before the job has used as much time as makes one blocking."""

    def block(over: threading.Event) -> None:
        end_s = time.monotonic() + 60
        while not over.is_set() and time.monotonic() < end_s:
            pass

    reasons, recorded = ended_by(tmp_path, block)

    assert len(reasons) == 1
    assert "its event loop has stood still for 0." in reasons[0]
    assert "block (" in reasons[0]
    assert recorded == {A: 1}


def test_a_loop_that_waits_for_the_machine_ends_its_process_and_blames_no_job(tmp_path: Path) -> None:
    def wait(over: threading.Event) -> None:
        over.wait(60)

    reasons, recorded = ended_by(tmp_path, wait)

    assert len(reasons) == 1
    assert recorded == {}


def test_a_loop_that_goes_on_between_long_steps_ends_nothing() -> None:
    ended: list[str] = []

    async def run() -> None:
        async with LoopMonitor(warn_after_s=0.05, limit=StandstillLimit(lambda: 5.0, ended.append)):
            for _ in range(8):
                await asyncio.sleep(0.02)
                hold_the_loop_up(0.1)

    asyncio.run(run())

    assert ended == []


def test_work_on_jobs_is_distinguished() -> None:
    """The innermost counts, and each piece of work has a number of its own."""
    current = CurrentJob()
    with current.working_on(A):
        first = current.serial
        with current.working_on(JobId("b" * 32)):
            assert current.job_id == "b" * 32
        assert current.job_id == A
    assert current.job_id is None
    with current.working_on(A):
        assert current.serial > first

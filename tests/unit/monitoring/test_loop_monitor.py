"""A loop that stands still is measured, exported and reported with the code that held it up."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from flintlock.model import log_events
from flintlock.model.ids import JobId
from flintlock.monitoring.blocking_jobs import BlockingJobRecords, BlockingJobs
from flintlock.monitoring.current_job import BLOCKING_WORK_S, CurrentJob
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


def ended_by(
    tmp_path: Path,
    work: Callable[[threading.Event], None],
    records: BlockingJobRecords | None = None,
    record_after_s: float = BLOCKING_WORK_S,
    limit_s: Callable[[], float] = lambda: 0.3,
) -> tuple[list[str], dict[JobId, int]]:
    """Work on a job on a loop that may stand still for 0.3 s; return why the process was to end, and what is recorded.

    In the place of the end of the process an event is set.
    """
    current, blocking, reasons, over = CurrentJob(), BlockingJobs(tmp_path), list[str](), threading.Event()

    def end(reason: str) -> None:
        reasons.append(reason)
        over.set()

    async def run() -> dict[JobId, int]:
        watcher = BlockingJobWatcher(current, records or blocking, record_after_s)
        limit = StandstillLimit(limit_s, end)
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


class SilentRecords:
    """BlockingJobRecords of an ensemble that does not answer while work lasts."""

    def __init__(self) -> None:
        self.answers = False
        self.written: list[str] = []  # tries
        self.removed: list[str] = []

    def name(self, job_id: JobId) -> str:
        return f"{job_id}.{len(self.written)}"

    def write(self, record: str) -> None:
        self.written.append(record)
        threading.Event().wait(0.05)
        raise TimeoutError("no answer")

    def remove(self, record: str) -> None:
        if not self.answers:
            raise TimeoutError("no answer")
        self.removed.append(record)

    def lost_leaders(self, job_ids: Collection[JobId]) -> dict[JobId, int]:
        raise TimeoutError("no answer")


def test_records_that_cannot_be_written_do_not_delay_the_end_of_the_process(tmp_path: Path) -> None:
    """Each try is of one record: it may be there although it was not answered, and the leader is lost once."""
    records = SilentRecords()

    def block(over: threading.Event) -> None:
        end_s = time.monotonic() + 60
        while not over.is_set() and time.monotonic() < end_s:
            pass
        records.answers = True

    started_s = time.monotonic()

    def limit_s() -> float:
        return 0.3 if records.written else math.inf  # after a first try, however slow the machine is

    reasons, _ = ended_by(tmp_path, block, records, 0.1, limit_s)

    assert len(reasons) == 1
    assert time.monotonic() - started_s < 20
    assert len(records.written) > 1
    assert len({*records.written}) == 1
    assert records.removed == [records.written[0]]


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

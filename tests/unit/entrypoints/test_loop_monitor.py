"""A loop that stands still is measured, exported and reported with the code that held it up."""

from __future__ import annotations

import asyncio
import time

import structlog
from prometheus_client import CollectorRegistry, generate_latest

from flintlock.entrypoints.loop_monitor import LoopMonitor
from flintlock.model import log_events


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

"""The longest delay of an event loop, read from its metrics."""

from __future__ import annotations

import asyncio

import pytest
from bench.idle_loop import idle_loop
from bench.loop_delays import longest_delay_ms
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from flintlock.monitoring.loop_monitor import LoopMonitor


def metrics(latest_s: float, *delays_s: float) -> str:
    registry = CollectorRegistry()
    histogram = Histogram("flintlock_event_loop_delay_seconds", ".", buckets=(0.01, 0.05, 0.1), registry=registry)
    for delay_s in delays_s:
        histogram.observe(delay_s)
    Gauge("flintlock_event_loop_longest_delay_seconds", ".", registry=registry).set(latest_s)
    return generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("latest_s", "delays_s", "longest_ms"),
    [
        (0.004, (0.001, 0.004), 4.0),
        (0.06, (0.001, 0.06), 60.0),
        (0.004, (0.06, 0.004), 100.0),
        (0.004, (0.02, 0.004), 50.0),
        (0.004, (3.0, 0.004), float("inf")),
        (3.0, (3.0, 0.004), 3000.0),
        (0.0, (), 0.0),
    ],
    ids=["all of it", "a long one", "a longer one before", "within the bound", "beyond all", "beyond all, now", "none"],
)
def test_the_longest_delay_is_exact_while_the_gauge_knows_it(
    latest_s: float, delays_s: tuple[float, ...], longest_ms: float
) -> None:
    assert longest_delay_ms(metrics(latest_s, *delays_s)) == pytest.approx(longest_ms)


def test_a_jobmanager_exports_what_is_read() -> None:
    registry = CollectorRegistry()

    async def run() -> None:
        async with LoopMonitor(registry):
            await asyncio.sleep(0.02)

    asyncio.run(run())
    assert longest_delay_ms(generate_latest(registry).decode()) > 0
    with pytest.raises(RuntimeError, match="does not measure"):
        longest_delay_ms("")


def test_an_idle_loop_reports_its_longest_delay() -> None:
    with idle_loop() as end:
        assert end() >= 0

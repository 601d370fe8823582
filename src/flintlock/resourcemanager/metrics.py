"""The ResourceManager's metrics. Made once in each process; every leadership term reports to the same."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from flintlock.resourcemanager.slot_manager import Counts

_LAG_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ResourceManagerMetrics:
    """Gauges are computed when they are scraped, and cost nothing in between."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges: Final[dict[Gauge, Callable[[Counts], int]]] = {
            Gauge("flintlock_resourcemanager_taskmanagers", "Registered TaskManagers.", registry=registry): (
                lambda counts: counts.task_managers
            ),
            Gauge("flintlock_resourcemanager_slots", "Slots of registered TaskManagers.", registry=registry): (
                lambda counts: counts.slots
            ),
            Gauge("flintlock_resourcemanager_free_slots", "Slots that no job has.", registry=registry): (
                lambda counts: counts.free_slots
            ),
            Gauge("flintlock_resourcemanager_waiting_requests", "Requests in the queue.", registry=registry): (
                lambda counts: counts.waiting
            ),
        }
        self._starting: Final = Gauge(
            "flintlock_resourcemanager_starting_workers",
            "Workers that were ordered and have not registered yet.",
            registry=registry,
        )
        self._lag: Final = Histogram(
            "flintlock_resourcemanager_heartbeat_lag_seconds",
            "Delay of a TaskManager's heartbeat beyond its interval.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )
        self._lost: Final = Counter(
            "flintlock_resourcemanager_lost_taskmanagers", "TaskManagers that were lost.", registry=registry
        )

    @contextmanager
    def reading(self, counts: Callable[[], Counts], starting: Callable[[], int]) -> Generator[None]:
        """Publish these values while the context lasts, and zero afterwards."""
        for gauge, value in self._gauges.items():
            gauge.set_function(lambda value=value: value(counts()))
        self._starting.set_function(starting)
        try:
            yield
        finally:
            for gauge in (*self._gauges, self._starting):
                gauge.set_function(lambda: 0)

    def heartbeat(self, lag_s: float) -> None:
        """Record how late a heartbeat came."""
        self._lag.observe(max(lag_s, 0.0))

    def lost(self) -> None:
        """Count a lost TaskManager."""
        self._lost.inc()

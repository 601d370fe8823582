"""Metrics that all JobMasters of a process share."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter

from flintlock.jobmaster.reporting.query_metrics import QueryMetrics


class JobMasterMetrics:
    """Failures by kind, restarts, and the figures of streaming queries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures: Final = Counter(
            "flintlock_task_failures", "Failed attempts, by kind.", labelnames=("kind",), registry=registry
        )
        self._restarts: Final = Counter(
            "flintlock_task_restarts", "Attempts that followed a failure.", registry=registry
        )
        self.queries: Final = QueryMetrics()
        registry.register(self.queries)

    def failed(self, kind: str) -> None:
        """Count a failed attempt."""
        self._failures.labels(kind).inc()

    def restarted(self) -> None:
        """Count a restart."""
        self._restarts.inc()

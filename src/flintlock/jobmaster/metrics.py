"""What all JobMasters of a process count together."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter


class JobMasterMetrics:
    """Failures by their kind, and restarts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures: Final = Counter(
            "flintlock_task_failures", "Failed attempts, by kind.", labelnames=("kind",), registry=registry
        )
        self._restarts: Final = Counter(
            "flintlock_task_restarts", "Attempts that followed a failure.", registry=registry
        )

    def failed(self, kind: str) -> None:
        """An attempt failed."""
        self._failures.labels(kind).inc()

    def restarted(self) -> None:
        """Another attempt will follow."""
        self._restarts.inc()

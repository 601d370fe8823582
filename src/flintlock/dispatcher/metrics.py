"""The Dispatcher's metrics. Created once for each process: its counters go on growing from term to term."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class DispatcherMetrics:
    """Submissions, recoveries and ends of jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._persisting: Final = Histogram(
            "flintlock_submission_seconds",
            "From an accepted graph to its durable acknowledgement.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._refused: Final = Counter(
            "flintlock_submissions_refused", "Submissions that were not accepted.", registry=registry
        )
        self._ended: Final = Counter(
            "flintlock_jobs_ended", "Jobs that ended, by how.", labelnames=("status",), registry=registry
        )
        self._recovered: Final = Counter(
            "flintlock_jobs_recovered", "Jobs that a new leader took over.", registry=registry
        )

    def acknowledged(self, seconds: float) -> None:
        """Record how long it took from a submission to its durable acknowledgement."""
        self._persisting.observe(seconds)

    def refused(self) -> None:
        """Count a submission that was not accepted."""
        self._refused.inc()

    def ended(self, status: str) -> None:
        """Count a job whose end is durable."""
        self._ended.labels(status).inc()

    def recovered(self, jobs: int) -> None:
        """Count the jobs that a new term took over."""
        self._recovered.inc(jobs)

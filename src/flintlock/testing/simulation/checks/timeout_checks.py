"""Whether a job with `job.timeout` has that time, and no more, whatever the wall clocks of its leaders show.

Time under each of its leaders counts. It is counted on the retention clock, which loses some at each change of leader.
"""

from __future__ import annotations

from typing import Final

from flintlock.model.jobs import JobSnapshot
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.workload import ObservedJob
from flintlock.testing.virtual_time import VIRTUAL_EPOCH_MS

#: How late a timer or a report may be, with what a change of leader takes.
_TIMEOUT_MARGIN_MS: Final = 5000
_RECOVERY_MARGIN_MS: Final = 12_000  # what a new leader takes until it acts, with its start and slow reads


def timeout_problems(cluster: SimulatedCluster, observed: ObservedJob, job: JobSnapshot) -> list[str]:
    """Return what is wrong with when a job ended that may have a timeout."""
    if not observed.timeout_s or observed.restored:
        return []
    failed = has_timed_out(job)
    if failed and observed.ended_s < (observed.submitted_s or 0.0) + observed.timeout_s:
        return [f"{observed.key} had failed at {observed.ended_s:.1f} s, before its {observed.timeout_s:g} s were over"]
    if cluster.faults.freezes_leaders:
        return []
    if cluster.faults.clock_jumps:  # the times that it shows are of wrong clocks: what its client saw counts
        due_ms = _virtual_ms(observed.acknowledged_s + observed.timeout_s)
        working_ms = _virtual_ms(observed.working_s)
        return _late(cluster, observed, due_ms, working_ms) if failed else []
    due_ms = job.timestamps[JobStatus.INITIALIZING] + observed.timeout_s * 1000
    finished_ms = max((each.timestamps.get(ExecutionState.FINISHED, 0) for each in job.executions), default=0)
    # An attempt that publishes is not interrupted, also not by a cancel before the timeout.
    ending = job.timestamps.get(JobStatus.FAILING) or job.timestamps.get(JobStatus.CANCELLING)
    if finished_ms > due_ms + _lost_ms(cluster, finished_ms) + _TIMEOUT_MARGIN_MS and not ending:
        return [f"{observed.key} was due after {observed.timeout_s:g} s, and worked until {finished_ms} ms"]
    return _late(cluster, observed, due_ms, job.timestamps.get(JobStatus.FAILING, 0)) if failed else []


def has_timed_out(job: JobSnapshot) -> bool:
    """Return whether the timeout of a job is among its failures."""
    failures = [entry.failure for root in job.exceptions for entry in (root, *root.concurrent)]
    return any(failure.kind is FailureKind.TIMEOUT for failure in failures)


def _late(cluster: SimulatedCluster, observed: ObservedJob, due_ms: float, failing_ms: float) -> list[str]:
    led_ms = max((began_ms for began_ms in cluster.terms_ms if began_ms <= failing_ms), default=0)
    due_ms = max(due_ms + _lost_ms(cluster, failing_ms), led_ms)
    if failing_ms <= due_ms + _RECOVERY_MARGIN_MS:
        return []
    return [f"{observed.key} was due after {observed.timeout_s:g} s, and failed only at {failing_ms} ms"]


def _lost_ms(cluster: SimulatedCluster, until_ms: float) -> float:
    """Return how much more the retention clock is behind in the latest term before `until_ms` than in the first."""
    lags = [lag for began_ms, lag in zip(cluster.terms_ms, cluster.lags_ms, strict=True) if began_ms <= until_ms]
    return max(0, lags[-1] - lags[0]) if lags else 0


def _virtual_ms(at_s: float) -> float:
    return VIRTUAL_EPOCH_MS + at_s * 1000

"""Numbers of one job and of one step, by Flink's ids. Pure: all of it is in the snapshot."""

from __future__ import annotations

from typing import Final

from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobSnapshot
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import TaskMetrics
from flintlock.model.times import elapsed_ms
from flintlock.rest.jobs.checkpoints import checkpoints_of
from flintlock.rest.metrics.query_values import query_values
from flintlock.rest.vertices.translate import SubtaskView, metrics_of

#: Flink's names for "how long has the job been in this state", 0 while it is in another.
_TIMED: Final = {
    "initializingTime": JobStatus.INITIALIZING,
    "createdTime": JobStatus.CREATED,
    "runningTime": JobStatus.RUNNING,
    "failingTime": JobStatus.FAILING,
    "restartingTime": JobStatus.RESTARTING,
    "cancellingTime": JobStatus.CANCELLING,
}


def job_values(job: JobSnapshot, now_ms: int) -> dict[str, float]:
    """Return Flink's metrics of a job, in milliseconds."""
    in_state_ms = elapsed_ms(job.timestamps.get(job.status, now_ms), now_ms)
    return {
        **{name: in_state_ms if job.status is status else 0 for name, status in _TIMED.items()},
        "numRestarts": restarts(job),
        "uptime": _uptime_ms(job, in_state_ms),
        "downtime": _downtime_ms(job, now_ms),
        **(_checkpoint_values(job) if job.graph.job_type is JobType.STREAMING else {}),
    }


def _checkpoint_values(job: JobSnapshot) -> dict[str, float]:
    """Return Flink's metrics of checkpoints, of a streaming job: here they are the committed batches."""
    found = checkpoints_of(job)
    values: dict[str, float] = {
        "totalNumberOfCheckpoints": found.counts.total,
        "numberOfCompletedCheckpoints": found.counts.completed,
        "numberOfInProgressCheckpoints": found.counts.in_progress,
        "numberOfFailedCheckpoints": found.counts.failed,
    }
    if found.latest.completed is not None:
        values["lastCompletedCheckpointId"] = found.latest.completed.id
        values["lastCheckpointDuration"] = found.latest.completed.end_to_end_duration
        values["lastCheckpointSize"] = found.latest.completed.checkpointed_size
        values["lastCheckpointFullSize"] = found.latest.completed.state_size
    if found.latest.restored is not None:
        values["lastCheckpointRestoreTimestamp"] = found.latest.restored.restore_timestamp
    return values


def restarts(job: JobSnapshot) -> int:
    """Return how often the job was restarted; regions that restart in the same millisecond restart together."""
    again = [execution for execution in job.executions if execution.attempt > 0]
    known = {execution.timestamps.get(ExecutionState.CREATED, -1 - n) for n, execution in enumerate(again)}
    return len(known) + sum(job.attempts_omitted.values())


def vertex_values(view: SubtaskView) -> dict[str, float]:
    """Return what is known of a step in one region: its own numbers, those of the region and of its queries."""
    own = metrics_of(view)
    values: dict[str, float] = {}
    if own.read_records_complete:
        values |= {"numRecordsIn": own.read_records, "numBytesIn": own.read_bytes}
    if own.write_records_complete:
        values |= {"numRecordsOut": own.write_records, "numBytesOut": own.write_bytes}
    region = view.current.metrics if view.current else TaskMetrics()
    return {
        **values,
        "region.numRecordsIn": region.read_records,
        "region.numBytesIn": region.read_bytes,
        "region.numRecordsOut": region.write_records,
        "region.numBytesOut": region.write_bytes,
        "region.stagesDone": region.stages_done,
        "region.stagesTotal": region.stages_total,
        "region.tasksDone": region.tasks_done,
        "region.tasksTotal": region.tasks_total,
        **query_values(view),
    }


def _uptime_ms(job: JobSnapshot, in_state_ms: int) -> int:
    """As Flink has it: how long it runs without interruption; 0 while it does not run, -1 once it has ended."""
    if job.status.terminal:
        return -1
    return in_state_ms if job.status is JobStatus.RUNNING else 0


def _downtime_ms(job: JobSnapshot, now_ms: int) -> int:
    """As Flink has it: how long a job that ran has not run since; 0 while it runs or before, -1 once it has ended."""
    if job.status.terminal:
        return -1
    ran_ms = job.timestamps.get(JobStatus.RUNNING)
    if ran_ms is None or job.status is JobStatus.RUNNING:
        return 0
    since = [at for status, at in job.timestamps.items() if at >= ran_ms and status is not JobStatus.RUNNING]
    return elapsed_ms(min(since, default=ran_ms), now_ms)

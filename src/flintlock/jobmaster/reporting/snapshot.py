"""The public view of a job, computed from the execution graph on request."""

from __future__ import annotations

from flintlock.config.options import RESTORE_PATH
from flintlock.jobmaster.execution_graph import ExecutionGraph, RegionState
from flintlock.jobmaster.reporting.history import info_of
from flintlock.jobmaster.scheduling import parallelism_of
from flintlock.model.ids import VertexId
from flintlock.model.jobgraph import MAX_PARALLELISM
from flintlock.model.jobs import JobOutcome, JobRequirements, JobSnapshot, ParallelismRange
from flintlock.model.states import JobStatus
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.tasks import ResultRows


def snapshot_of(job: ExecutionGraph) -> JobSnapshot:
    """Return the job's public view."""
    plan = job.plan
    return JobSnapshot(
        graph=plan.graph,
        regions=plan.regions,
        status=job.status,
        timestamps=job.timestamps,
        end_ms=job.timestamps[job.status] if job.status.globally_terminal else -1,
        last_modified_ms=job.modified_ms,
        executions=tuple(info_of(region, execution) for region in job.regions for execution in region.executions),
        exceptions=job.exceptions,
        exceptions_truncated=job.exceptions_omitted > 0,
        exceptions_omitted=job.exceptions_omitted,
        attempts_omitted={region.id: region.attempts_omitted for region in job.regions if region.attempts_omitted},
        result_names=tuple(rows.name for rows in results_of(job)),
        publishing=_publishing(job),
    )


def outcome_of(job: ExecutionGraph) -> JobOutcome:
    """Return the outcome of an ended job, with the directories that cleanup has to remove."""
    return JobOutcome(snapshot=snapshot_of(job), results=results_of(job), scratch=scratch_of(job))


def requirements_of(job: ExecutionGraph) -> JobRequirements:
    """Return how many slots each step may use; a step that several regions share: the widest range of theirs."""
    ids = {vertex.name: vertex.id for vertex in job.plan.graph.vertices}
    unlimited = ParallelismRange(upper=MAX_PARALLELISM)
    ranges: dict[VertexId, ParallelismRange] = {}
    for region in job.regions:
        own = parallelism_of(job, region) or unlimited
        for step in region.plan.steps:
            other = ranges.get(ids[step], own)
            widest = ParallelismRange(lower=min(own.lower, other.lower), upper=max(own.upper, other.upper))
            ranges[ids[step]] = widest
    return JobRequirements(job_id=job.plan.job_id, vertices=ranges)


def results_of(job: ExecutionGraph) -> tuple[ResultRows, ...]:
    """Return the result rows of the job; only a FINISHED job has any."""
    if job.status is not JobStatus.FINISHED:
        return ()
    return tuple(rows for region in job.regions if region.outcome is not None for rows in region.outcome.results)


def active_queries(job: ExecutionGraph) -> list[QueryFigures]:
    """Return the streaming queries that run now, as their tasks have reported them."""
    return [
        query
        for region in job.regions
        if region.current.queries and region.current.state.on_a_task_manager
        for query in region.current.queries
        if query.active
    ]


def scratch_of(job: ExecutionGraph) -> tuple[str, ...]:
    """Return the directories to remove: staging of attempts, blocking results, checkpoints that are not kept."""
    staging = [directory for region in job.regions for directory in region.staging]
    if any(region.plan.materialises and _any_attempt_sent(region) for region in job.regions):
        staging.append(job.plan.work_dir)  # older versions did not record it with the attempts
    written = any(map(_any_attempt_sent, job.regions)) or bool(job.plan.graph.config.get(RESTORE_PATH.key))
    if job.plan.checkpoint_dir and job.status not in job.plan.kept_after and written:
        staging.append(job.plan.checkpoint_dir)
    return tuple(dict.fromkeys(staging))


def _any_attempt_sent(region: RegionState) -> bool:
    """Whether some attempt at the region may have reached a TaskManager."""
    return region.attempts_omitted > 0 or any(execution.task_manager is not None for execution in region.executions)


def _publishing(job: ExecutionGraph) -> tuple[int, int] | None:
    publications = [region.publication for region in job.regions if region.publishing and region.publication]
    if not publications:
        return None
    return sum(p.done for p in publications), sum(p.total for p in publications)

"""From snapshots of jobs to the messages of REST. Pure; only what is Flink's is translated field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from flintlock.api import jobs as shapes
from flintlock.config.options import RESTART_TYPE
from flintlock.model.access.secret_references import is_one_reference
from flintlock.model.checking.problems import abbreviated
from flintlock.model.checking.rerun import continuation_refusal
from flintlock.model.commands import CancelJob, JobOperations, OperationCommand, RescaleJob, StopJob, TriggerSavepoint
from flintlock.model.failures.failure_text import headline, render
from flintlock.model.ids import JobId, RegionId
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, Scalar
from flintlock.model.jobs import ExceptionEntry, ExecutionInfo, JobSnapshot
from flintlock.model.operations import Source, Sql
from flintlock.model.regions import Region
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure
from flintlock.rest.secrets import HIDDEN, is_secret, without_secrets
from flintlock.rest.vertices import translate as vertices_of

_MAX_DEFINITION: Final = 20_000  # characters of a query that a plan shows
_APPLICATION_STATUS: Mapping[JobStatus, str] = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELED",
}


_KINDS: Final[Mapping[type[OperationCommand], str]] = {
    CancelJob: "cancel",
    RescaleJob: "rescale",
    TriggerSavepoint: "savepoint",
    StopJob: "stop",
}


def job_details(job: JobSnapshot, now_ms: int, application: JobId | None = None) -> shapes.JobDetails:
    """The body of /jobs/:jobid; `application` is the one it belongs to, if not its own."""
    vertices = [vertices_of.vertex(view) for view in vertices_of.vertex_views(job, now_ms)]
    counts = dict.fromkeys(map(str, ExecutionState), 0)
    for vertex in vertices:
        counts[vertex.status] += 1
    return shapes.JobDetails(
        jid=job.graph.job_id,
        application_id=application or job.graph.job_id,
        name=job.graph.name,
        is_stoppable=False,
        state=job.status,
        job_type=job.graph.job_type,
        scheduler_type="Default",
        start_time=job.start_ms,
        end_time=job.end_ms,
        duration=job.duration_ms(now_ms),
        max_parallelism=-1,
        now=now_ms,
        timestamps={status: job.timestamps.get(status, 0) for status in JobStatus},
        vertices=vertices,
        status_counts=counts,
        plan=plan(job),
        pending_operators=0,
        waits_for=job.summary().waits_for,
        labels=job.graph.labels,
        submitted_by=job.graph.submitted_by,
        rerun_of=job.graph.rerun_of,
        upgrade_of=job.graph.upgrade_of,
        successor=job.successor,
    )


def plan(job: JobSnapshot) -> shapes.Plan:
    """The job's plan: a node for each step."""
    graph = job.graph
    return shapes.Plan(
        jid=graph.job_id,
        name=graph.name,
        type=graph.job_type,
        nodes=[_node(graph, vertex, vertices_of.parallelism(job, vertex.name)) for vertex in graph.vertices],
    )


def plan_of_graph(graph: JobGraph) -> shapes.Plan:
    """The plan of a graph that was not submitted: its parallelism is what the document says, else 1."""
    nodes = [_node(graph, vertex, vertex.parallelism or graph.parallelism or 1) for vertex in graph.vertices]
    return shapes.Plan(jid=graph.job_id, name=graph.name, type=graph.job_type, nodes=nodes)


def _node(graph: JobGraph, vertex: JobVertex, parallelism: int) -> shapes.PlanNode:
    operation = vertex.operation
    return shapes.PlanNode(
        id=vertex.id,
        operator="",
        parallelism=parallelism,
        operator_strategy="",
        description=vertex.title,
        optimizer_properties={},
        inputs=tuple(
            shapes.PlanInput(
                num=number,
                id=graph.vertex(source).id,
                ship_strategy="FORWARD",
                exchange="blocking" if graph.vertex(source).exchange is Exchange.BLOCKING else "pipelined_bounded",
            )
            for number, source in enumerate(vertex.inputs)
        ),
        step=vertex.name,
        kind=operation.kind,
        definition=abbreviated(operation.query if isinstance(operation, Sql) else vertex.description, _MAX_DEFINITION),
        guarantee=vertex.guarantee.value if vertex.guarantee is not None else "",
        uid=vertex.uid or "",
        schema=abbreviated(operation.schema or "", _MAX_DEFINITION) if isinstance(operation, Source) else "",
    )


def execution_result(job: JobSnapshot) -> shapes.ExecutionResultResponse:
    """How the job ended, or that it is still in progress."""
    if not job.status.globally_terminal:
        return shapes.ExecutionResultResponse(status=shapes.QueueStatus(id="IN_PROGRESS"))
    failure = last_failure(job) if job.status is JobStatus.FAILED else None
    return shapes.ExecutionResultResponse(
        status=shapes.QueueStatus(id="COMPLETED"),
        job_execution_result=shapes.ExecutionResult(
            id=job.graph.job_id,
            application_status=_APPLICATION_STATUS[job.status],
            accumulator_results={},
            net_runtime=job.duration_ms(job.end_ms),
            failure_cause=None
            if failure is None
            else shapes.FailureCause(
                class_=failure.exception or failure.kind,
                stack_trace=render(failure, verbose=True),
                serialized_throwable="",
            ),
        ),
    )


def exceptions(job: JobSnapshot, at_most: int) -> shapes.ExceptionsResponse:
    """The failures of a job, newest first."""
    newest = list(reversed(job.exceptions))
    return shapes.ExceptionsResponse(
        exception_history=shapes.ExceptionHistory(
            entries=[_history_entry(entry) for entry in newest[:at_most]],
            truncated=job.exceptions_truncated or len(newest) > at_most,
        )
    )


def job_config(job: JobSnapshot) -> shapes.JobConfigResponse:
    """The configuration of a job."""
    graph = job.graph
    strategy = graph.config.get(RESTART_TYPE.key, "Cluster level default restart strategy")
    return shapes.JobConfigResponse(
        jid=graph.job_id,
        name=graph.name,
        execution_config=shapes.ExecutionConfig(
            restart_strategy=strategy,
            job_parallelism=graph.parallelism or -1,
            object_reuse_mode=False,
            user_config=without_secrets(graph.config),
        ),
        params=_parameters(graph.params),
    )


def _parameters(params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the parameters of a job. A value whose name is that of a secret is hidden, unless it is a reference."""
    return {
        name: HIDDEN if is_secret(name) and not is_one_reference(value) else value for name, value in params.items()
    }


def changes(job: JobSnapshot, recorded: JobOperations) -> shapes.JobChanges:
    """Who submitted the job, and what was requested of it since."""
    found = [
        shapes.JobChange(
            kind=_KINDS[type(each.command)],
            requested=each.started_ms,
            requested_by=each.command.requested_by,
            status=each.status,
            failure="" if each.failure is None else each.failure.message,
            location=each.location,
        )
        for each in recorded.operations
    ]
    found.extend(
        shapes.JobChange(kind="rescale", requested=each.requested_ms, requested_by=each.requested_by)
        for each in recorded.rescales
    )
    if recorded.cancel is not None:
        cancel = recorded.cancel
        found.append(shapes.JobChange(kind="cancel", requested=cancel.requested_ms, requested_by=cancel.requested_by))
    found.sort(key=lambda change: change.requested)
    return shapes.JobChanges(submitted_by=job.graph.submitted_by, changes=tuple(found))


def attempts(job: JobSnapshot) -> shapes.JobAttempts:
    """Every region with every attempt."""
    failure = last_failure(job)
    return shapes.JobAttempts(
        jobid=job.graph.job_id,
        name=job.graph.name,
        status=job.status,
        engine=job.graph.engine,
        regions=_regions(job),
        publishing=None
        if job.publishing is None
        else shapes.PublishingProgress(done=job.publishing[0], total=job.publishing[1]),
        failure=None if failure is None else msgspec.convert(failure, shapes.FailureInfo, from_attributes=True),
        failures=tuple(
            _failure_summary(item, concurrent=item is not entry)
            for entry in job.exceptions
            for item in (entry, *entry.concurrent)
        ),
        failures_omitted=job.exceptions_omitted,
        submitted_by=job.graph.submitted_by,
        rerun_of=job.graph.rerun_of,
        upgrade_of=job.graph.upgrade_of,
        successor=job.successor,
        waits_for=job.summary().waits_for,
        continuable=continuation_refusal(job) is None,
        labels=job.graph.labels,
        start_time=job.timestamps.get(JobStatus.INITIALIZING, 0),
        end_time=job.end_ms,
    )


def last_failure(job: JobSnapshot) -> Failure | None:
    """The job's latest failure."""
    return job.exceptions[-1].failure if job.exceptions else None


def _history_entry(entry: ExceptionEntry) -> shapes.ExceptionHistoryEntry:
    return shapes.ExceptionHistoryEntry(
        **_exception_fields(entry),
        concurrent_exceptions=[shapes.ExceptionInfo(**_exception_fields(other)) for other in entry.concurrent],
    )


def _exception_fields(entry: ExceptionEntry) -> dict[str, Any]:
    return {
        "exception_name": entry.failure.exception or entry.failure.kind,
        "stacktrace": render(entry.failure, verbose=True),
        "timestamp": entry.timestamp_ms,
        "failure_labels": entry.labels,
        "task_name": entry.task_name,
        "endpoint": entry.endpoint,
        "task_manager_id": entry.task_manager,
    }


def _failure_summary(entry: ExceptionEntry, *, concurrent: bool) -> shapes.FailureSummary:
    return shapes.FailureSummary(
        timestamp=entry.timestamp_ms,
        region=entry.region,
        attempt=entry.attempt,
        task_manager=entry.task_manager,
        kind=entry.failure.kind,
        headline=headline(entry.failure),
        labels=entry.labels,
        concurrent=concurrent,
    )


def _regions(job: JobSnapshot) -> tuple[shapes.RegionAttempts, ...]:
    executions: dict[RegionId, list[ExecutionInfo]] = {region.id: [] for region in job.regions}
    for item in job.executions:
        executions.get(item.region, []).append(item)
    omitted = job.attempts_omitted
    return tuple(_region(region, executions[region.id], omitted.get(region.id, 0)) for region in job.regions)


def _region(region: Region, executions: list[ExecutionInfo], omitted: int) -> shapes.RegionAttempts:
    made = msgspec.convert(region, shapes.RegionAttempts, from_attributes=True)
    attempts = msgspec.convert(executions, tuple[shapes.AttemptInfo, ...], from_attributes=True)
    return structs.replace(made, attempts=attempts, omitted=omitted)

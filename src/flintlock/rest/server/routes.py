"""The routes, as data: routing, forwarding, caching, OpenAPI and the reference page all read this table."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from flintlock.api import applications as of_applications
from flintlock.api import cluster as of_cluster
from flintlock.api import jobs as shapes
from flintlock.api import process as of_process
from flintlock.api import tokens as of_tokens
from flintlock.api import vertices as of_vertices
from flintlock.api.checkpoints import CheckpointsResponse
from flintlock.api.quarantine import QuarantineEntry, QuarantineListing
from flintlock.api.queries import QueriesResponse
from flintlock.api.requests import (
    CheckRequest,
    ClientHeartbeatRequest,
    DisposalRequest,
    RerunRequest,
    SavepointRequest,
    StopRequest,
    VertexRequirementsRequest,
)
from flintlock.model.access.principals import Role
from flintlock.model.jobgraph import Versions
from flintlock.rest.access import login, tokens
from flintlock.rest.cluster import handlers as cluster
from flintlock.rest.cluster import process_handlers as process
from flintlock.rest.cluster import spark_ui
from flintlock.rest.cluster import taskmanager_handlers as taskmanager
from flintlock.rest.dashboard import handlers as dashboard
from flintlock.rest.events import stream as event_stream
from flintlock.rest.events.documents import MAX_FOLLOWED
from flintlock.rest.jobs import applications, check, checkpoints, listing, operations, quarantine, queries, rerun
from flintlock.rest.jobs import handlers as jobs
from flintlock.rest.metrics import handlers as metrics
from flintlock.rest.metrics.registry import SubmissionTimer
from flintlock.rest.server.http import ARROW, Handler, HttpResponse, RestCall, RestServices, json_response
from flintlock.rest.server.openapi import openapi
from flintlock.rest.server.route import Parameter, Route, RouteTable, ServedBy
from flintlock.rest.vertices import handlers as vertices

_JOB: Final = (400, 404, 503)
_TASK_MANAGER: Final = "/taskmanagers/{taskmanagerid}"
_VERTEX: Final = "/jobs/{jobid}/vertices/{vertexid}"
_MODE = Parameter(name="mode", description="Only `cancel`.")
_FORCE = Parameter(
    name="force",
    description="`true` also ends publications, and attempts of a CANCELLING job that no TaskManager can end; the job's"
    " exceptions say what is left behind.",
)
_PARALLELISM = Parameter(
    name="parallelism", description="Upper bound of the slots of each step.", kind="integer", minimum=1, required=True
)
_TRIGGER = Parameter(
    name="triggerId",
    description="The id of the operation, 32 hex digits: chosen by the client, or by the server.",
    pattern="^[0-9a-f]{32}$",
)
_MAX = Parameter(name="maxExceptions", description="Maximum number of entries.", kind="integer", minimum=0)
_REGION = Parameter(name="region", description="Only this region.", kind="integer", minimum=0)
_ATTEMPT = Parameter(name="attempt", description="Only this attempt.", kind="integer", minimum=0)
_GET = Parameter(name="get", description="Return the values of these ids, separated by commas; without it, all ids.")
_AGG = Parameter(name="agg", description="Only these of `min`, `max`, `avg`, `sum`.")
_JOBS = Parameter(name="jobs", description="Only these jobs; they may have ended.")
_TASK_MANAGERS = Parameter(name="taskmanagers", description="Only these TaskManagers.")
_OFFSET = Parameter(name="offset", description="Start at this byte; negative counts from the end.", kind="integer")
_LIMIT = Parameter(
    name="limit",
    description=f"Return a page of at most so many jobs (up to {listing.MAX_PAGE}), with `next` where there are more.",
    kind="integer",
    minimum=1,
)
_AFTER = Parameter(name="after", description="Return the page behind this position: the `next` of the page before it.")
_ENDED = Parameter(name="ended", description="`false`: only jobs that have not ended.", pattern="^(true|false)$")
_NAME = Parameter(name="name", description="Only jobs of this name, in which `*` stands for any text.")
_STATE = Parameter(
    name="state",
    description="Only jobs in one of these states, separated by commas. `WAITING`: jobs that wait for slots, which are"
    " then not among the `RUNNING` ones.",
)
_LABEL = Parameter(
    name="label", description="Only jobs with all of these labels, `key=value` or `key`; separated by commas."
)
_SORT = Parameter(
    name="sort",
    description="The order of the list, over all its pages: `start`, `end`, `duration` or `name`, with `-` before it"
    " the largest first; else `-start`. By end and duration, jobs that have not ended come last, with `-` first. Of a"
    " name, the first 40 characters count, in lower case.",
    pattern="^-?(start|end|duration|name)$",
)
_SINCE = Parameter(name="since", description="Only jobs that started at this time (ms) or later.", kind="integer")
_ID = Parameter(name="id", description="Only jobs whose id begins so.")
_SUBMITTED_BY = Parameter(name="submitted-by", description="Only jobs that were submitted under this name.")
_EVENTS_OF = Parameter(name="job", description="Only events of this job, beginning with its present state.")
_EVENTS_OF_CLUSTER = Parameter(
    name="cluster",
    description="`true`: also an event `cluster` when JobManagers, TaskManagers, slots or the queue change.",
    pattern="^(true|false)$",
)
_FOLLOW = Parameter(
    name="follow",
    description="The path of a document, with its query: also an event `document` with it, at the beginning and when it"
    f" has changed, or with the output that follows, of a path of logs. Up to {MAX_FOLLOWED} times.",
)
_LAST_EVENT = Parameter(
    name="Last-Event-ID",
    where="header",
    description="The `id` that the client has received last: what has changed since is sent, after an event `resumed`,"
    " instead of all jobs, where that is known.",
)
_METRICS: Final = list[of_cluster.Metric]
_AGGREGATED: Final = list[of_cluster.AggregatedMetric]
_JSON: Final = ("application/json",)
_ANY: Final = ServedBy.ANY
_VIEWER: Final = Role.VIEWER
_SUBMITTER: Final = Role.SUBMITTER
_OPERATOR: Final = Role.OPERATOR
_ADMIN: Final = Role.ADMIN
_CACHE_S: Final = 0.5  # for responses that dashboards poll


def _get(
    path: str,
    handler: Handler,
    answers: Any,
    *query: Parameter,
    errors: tuple[int, ...] = (),
    served_by: ServedBy = ServedBy.LEADER,
    role: Role | None = Role.VIEWER,
    follow_s: float = 0.0,
) -> Route:
    return Route(
        method="GET", path=path, handler=handler, role=role, answers=answers, query=query, errors=errors,
        served_by=served_by, follow_s=follow_s,
    )  # fmt: skip


async def _job_listing(services: RestServices) -> object | None:
    counts = await services.dispatcher.job_counts()  # the same object until a job changes
    return counts if sum(counts.by_status.values()) <= listing.MAX_CACHED else None


async def _describe(call: RestCall) -> HttpResponse:
    """The OpenAPI description of this API."""
    return _description(call.services.versions.flintlock)


@cache
def _description(version: str) -> HttpResponse:
    return json_response(openapi(ROUTES, version))


ROUTES: Final[tuple[Route, ...]] = (
    Route(method="GET", path="/", handler=dashboard.page, role=None, answers=str, html=True, served_by=_ANY),
    Route(
        method="GET", path="/assets/{asset}", handler=dashboard.asset, role=None, answers=str, asset=True,
        errors=(404,), served_by=_ANY,
    ),
    _get("/config", cluster.config, of_cluster.DashboardConfig, served_by=_ANY),
    Route(method="DELETE", path="/cluster", handler=cluster.shut_down, role=_ADMIN,
        answers=shapes.Empty, errors=(503,)),
    Route(
        method="GET", path="/overview", handler=cluster.overview, role=_VIEWER,
        answers=of_cluster.ClusterOverview, errors=(503,),
        cache_s=_CACHE_S,
    ),
    Route(
        method="GET", path="/applications/overview", handler=applications.overview, role=_VIEWER,
        answers=of_applications.ApplicationsOverview, errors=(503,),
        cache_s=_CACHE_S,
    ),
    _get("/applications/{jobid}", applications.details, of_applications.ApplicationDetails, errors=_JOB),
    _get(
        "/applications/{jobid}/exceptions", applications.exceptions, of_applications.ApplicationExceptions, errors=_JOB
    ),
    _get(
        "/applications/{jobid}/jobmanager/config", applications.jobmanager_config, list[of_cluster.ConfigEntry],
        errors=_JOB,
    ),
    Route(
        method="POST", path="/applications/{jobid}/cancel", handler=applications.cancel, role=_SUBMITTER,
        answers=shapes.Empty, status=202, errors=(*_JOB, 408, 409),
    ),
    Route(
        method="GET", path="/jobs", handler=listing.list_ids, role=_VIEWER, answers=shapes.JobIds, errors=(503,),
        cache_s=_CACHE_S, cache_version=_job_listing,
    ),
    Route(
        method="GET", path="/jobs/overview", handler=listing.overview, role=_VIEWER,
        answers=shapes.JobsOverviewResponse,
        query=(_LIMIT, _AFTER, _SORT, _ENDED, _NAME, _STATE, _LABEL, _SINCE, _ID, _SUBMITTED_BY), errors=(400, 503),
        cache_s=_CACHE_S, cache_version=_job_listing,
    ),
    Route(
        method="POST", path="/jobs", handler=jobs.submit, role=_SUBMITTER,
        answers=shapes.SubmittedJob, status=202, idempotency_key=True,
        body=("multipart/form-data", "application/json"), errors=(400, 409, 413, 422, 502, 503),
        timer=SubmissionTimer,
    ),
    Route(
        method="POST", path="/jobs/check", handler=check.check, role=_SUBMITTER, answers=shapes.JobCheck,
        body=_JSON, takes=CheckRequest, errors=(400, 413), served_by=_ANY,
    ),
    _get("/jobs/metrics", metrics.jobs, _AGGREGATED, _GET, _AGG, _JOBS, errors=_JOB),
    _get("/jobs/{jobid}", jobs.details, shapes.JobDetails, errors=_JOB),
    Route(
        method="PATCH", path="/jobs/{jobid}", handler=jobs.cancel, role=_SUBMITTER, answers=shapes.Empty, status=202,
        query=(_MODE, _FORCE), errors=(*_JOB, 408, 409),
    ),
    Route(
        method="POST", path="/jobs/{jobid}/rerun", handler=rerun.rerun, role=_SUBMITTER, answers=shapes.SubmittedJob,
        status=202, idempotency_key=True, body=_JSON, takes=RerunRequest, errors=(*_JOB, 409, 413, 422),
    ),
    _get("/jobs/{jobid}/resource-requirements", jobs.requirements, dict[str, shapes.VertexRequirements], errors=_JOB),
    Route(
        method="PUT", path="/jobs/{jobid}/resource-requirements", handler=jobs.update_requirements, role=_SUBMITTER,
        answers=shapes.Empty, body=_JSON, takes=dict[str, VertexRequirementsRequest], errors=(*_JOB, 409, 413, 500),
    ),
    Route(
        method="PATCH", path="/jobs/{jobid}/rescaling", handler=operations.trigger_rescaling, role=_SUBMITTER,
        answers=shapes.TriggerResponse,
        status=202, query=(_PARALLELISM, _TRIGGER), errors=(*_JOB, 409),
    ),
    _get("/jobs/{jobid}/rescaling/{triggerid}", operations.rescaling, shapes.OperationResponse, errors=_JOB),
    Route(
        method="POST", path="/jobs/{jobid}/savepoints", handler=operations.trigger_savepoint, role=_SUBMITTER,
        answers=shapes.TriggerResponse,
        status=202, body=_JSON, takes=SavepointRequest, errors=(*_JOB, 409, 413),
    ),
    Route(
        method="POST", path="/jobs/{jobid}/stop", handler=operations.trigger_stop, role=_SUBMITTER,
        answers=shapes.TriggerResponse,
        status=202, body=_JSON, takes=StopRequest, errors=(*_JOB, 409, 413),
    ),
    Route(
        method="POST", path="/savepoint-disposal", handler=operations.dispose, role=_OPERATOR,
        answers=shapes.TriggerResponse,
        status=202, body=_JSON, takes=DisposalRequest, errors=(400, 409, 413, 503),
    ),
    _get("/savepoint-disposal/{triggerid}", operations.disposal, shapes.OperationResponse, errors=(400, 404, 503)),
    _get(
        "/jobs/{jobid}/savepoints/{triggerid}", operations.savepoint, shapes.OperationResponse, errors=_JOB,
        follow_s=0.5,
    ),
    Route(
        method="PATCH", path="/jobs/{jobid}/clientHeartbeat", handler=jobs.client_heartbeat, role=_SUBMITTER,
        answers=shapes.Empty,
        status=202, body=_JSON, takes=ClientHeartbeatRequest, errors=(*_JOB, 413),
    ),
    _get("/jobs/{jobid}/metrics", metrics.job, _METRICS, _GET, errors=_JOB),
    _get("/jobs/{jobid}/jobmanager/config", cluster.job_jobmanager_config, list[of_cluster.ConfigEntry], errors=_JOB),
    _get("/jobs/{jobid}/plan", jobs.plan, shapes.PlanResponse, errors=_JOB),
    _get("/jobs/{jobid}/config", jobs.config, shapes.JobConfigResponse, errors=_JOB),
    _get("/jobs/{jobid}/status", jobs.status, shapes.JobStatusResponse, errors=_JOB),
    _get("/jobs/{jobid}/queries", queries.queries, QueriesResponse, errors=_JOB, follow_s=1.0),
    _get("/jobs/{jobid}/checkpoints", checkpoints.checkpoints, CheckpointsResponse, errors=_JOB, follow_s=1.0),
    _get("/jobs/{jobid}/exceptions", jobs.exceptions, shapes.ExceptionsResponse, _MAX, errors=_JOB),
    Route(
        method="GET", path="/jobs/{jobid}/execution-result", handler=jobs.execution_result, role=_VIEWER,
        answers=shapes.ExecutionResultResponse, errors=_JOB, max_wait_s=600.0,
    ),
    _get("/jobs/{jobid}/attempts", jobs.attempts, shapes.JobAttempts, errors=_JOB, follow_s=1.0),
    _get("/jobs/{jobid}/logs", jobs.logs, shapes.JobLogs, _REGION, _ATTEMPT, _OFFSET, errors=_JOB, follow_s=0.5),
    _get("/jobs/{jobid}/changes", jobs.changes, shapes.JobChanges, errors=_JOB, follow_s=1.0),
    _get("/jobs/{jobid}/accumulators", vertices.job_accumulators, of_vertices.JobAccumulators, errors=_JOB),
    _get(_VERTEX, vertices.details, of_vertices.VertexDetails, errors=_JOB),
    _get(f"{_VERTEX}/subtasktimes", vertices.times, of_vertices.VertexTimes, errors=_JOB),
    _get(f"{_VERTEX}/taskmanagers", vertices.task_managers, of_vertices.VertexTaskManagers, errors=_JOB),
    _get(f"{_VERTEX}/accumulators", vertices.accumulators, of_vertices.VertexAccumulators, errors=_JOB),
    _get(f"{_VERTEX}/watermarks", vertices.watermarks, _METRICS, errors=_JOB),
    _get(f"{_VERTEX}/metrics", metrics.vertex, _METRICS, _GET, errors=_JOB),
    _get(f"{_VERTEX}/subtasks/metrics", metrics.subtasks, _AGGREGATED, _GET, _AGG, errors=_JOB),
    _get(
        f"{_VERTEX}/subtasks/accumulators", vertices.subtasks_accumulators, of_vertices.SubtasksAccumulators,
        errors=_JOB,
    ),
    _get(f"{_VERTEX}/subtasks/{{subtaskindex}}", vertices.subtask, of_vertices.Subtask, errors=_JOB),
    _get(
        f"{_VERTEX}/subtasks/{{subtaskindex}}/thread-dump", vertices.thread_dump, of_process.ThreadDump,
        errors=(*_JOB, 409),
    ),
    _get(f"{_VERTEX}/subtasks/{{subtaskindex}}/metrics", metrics.subtask, _METRICS, _GET, errors=_JOB),
    _get("/jobs/{jobid}/results", jobs.results, shapes.ResultNames, errors=_JOB),
    Route(
        method="GET", path="/jobs/{jobid}/results/{name}", handler=jobs.result, role=_VIEWER,
        answers=shapes.ResultTable,
        errors=(*_JOB, 409), also=ARROW,
    ),
    Route(
        method="POST", path="/blobs", handler=jobs.upload_blob, role=_SUBMITTER, answers=shapes.StoredBlob, status=201,
        body=("application/octet-stream",), errors=(400, 413, 503),
    ),
    _get("/quarantine", quarantine.list_jobs, QuarantineListing, errors=(503,)),
    _get("/quarantine/{jobid}", quarantine.show, QuarantineEntry, errors=_JOB),
    Route(
        method="POST", path="/quarantine/{jobid}/retry", handler=quarantine.retry, role=_OPERATOR,
        answers=shapes.Empty, status=202,
        errors=(*_JOB, 409),
    ),
    Route(
        method="DELETE", path="/quarantine/{jobid}", handler=quarantine.drop, role=_OPERATOR,
        answers=shapes.Empty, status=202,
        errors=(*_JOB, 409),
    ),
    _get("/whoami", tokens.whoami, of_tokens.CallerInfo, errors=(503,)),
    _get("/tokens", tokens.list_tokens, of_tokens.TokenListing, errors=(503,), role=_ADMIN),
    Route(
        method="POST", path="/tokens", handler=tokens.create, role=_ADMIN, answers=of_tokens.CreatedToken, status=201,
        body=_JSON, takes=of_tokens.CreateTokenRequest, errors=(400, 409, 413, 503),
    ),
    Route(
        method="DELETE", path="/tokens/{tokenid}", handler=tokens.revoke, role=_ADMIN, answers=shapes.Empty,
        errors=(404, 503),
    ),
    Route(
        method="POST", path="/login/codes", handler=login.make_code, role=_VIEWER, answers=of_tokens.LoginCode,
        status=201, errors=(409, 503),
    ),
    Route(
        method="POST", path="/login", handler=login.log_in, role=None, answers=of_tokens.CallerInfo, body=_JSON,
        takes=of_tokens.LoginRequest, errors=(400, 401, 403, 409, 413, 503),
    ),
    Route(
        method="GET", path="/login", handler=login.page, role=None, answers=str, html=True, errors=(403,),
        served_by=_ANY,
    ),
    Route(
        method="POST", path="/logout", handler=login.log_out, role=_VIEWER, answers=shapes.Empty, errors=(409,),
        served_by=_ANY,
    ),
    _get("/jobmanagers", cluster.job_managers, of_cluster.JobManagersResponse, errors=(503,)),
    _get("/taskmanagers", cluster.task_managers, of_cluster.TaskManagersResponse, errors=(503,), follow_s=2.0),
    _get(
        "/taskmanagers/metrics", metrics.task_managers, _AGGREGATED, _GET, _AGG, _TASK_MANAGERS, errors=(400, 404, 503)
    ),
    _get(f"{_TASK_MANAGER}/metrics", metrics.task_manager, _METRICS, _GET, errors=(404, 503), follow_s=5.0),
    _get(_TASK_MANAGER, cluster.task_manager, of_cluster.TaskManagerDetails, errors=(404, 503), follow_s=2.0),
    _get(
        f"{_TASK_MANAGER}/thread-dump", taskmanager.thread_dump, of_process.ThreadDump, errors=(404, 503),
        role=_OPERATOR,
    ),
    _get(f"{_TASK_MANAGER}/config", taskmanager.config, list[of_cluster.ConfigEntry], errors=(404, 503)),
    _get(f"{_TASK_MANAGER}/logs", taskmanager.logs, of_process.LogFiles, errors=(404, 503), role=_OPERATOR),
    _get(f"{_TASK_MANAGER}/logs/{{file}}", taskmanager.log_file, str, errors=(404, 503), role=_OPERATOR),
    _get(f"{_TASK_MANAGER}/log", taskmanager.log, str, errors=(404, 503), role=_OPERATOR),
    _get(f"{_TASK_MANAGER}/engine-log", taskmanager.engine_log, str, errors=(404, 503), role=_OPERATOR),
    _get(f"{_TASK_MANAGER}/stdout", taskmanager.stdout, str, errors=(404, 503), role=_OPERATOR),
    Route(
        method="POST", path=f"{_TASK_MANAGER}/spark-ui", handler=spark_ui.make_link, role=_OPERATOR,
        answers=of_cluster.SparkUiLink, status=201, errors=(404, 503),
    ),
    Route(
        method="GET", path="/spark-ui/{pass}", handler=spark_ui.page, role=None, answers=str, html=True,
        errors=(403, 404, 409, 503), below=True, any_page=True,
    ),
    _get("/resources", cluster.resources, of_cluster.ClusterResources, errors=(503,)),
    _get("/jobmanager/config", cluster.jobmanager_config, list[of_cluster.ConfigEntry], served_by=_ANY),
    _get("/jobmanager/environment", process.environment, of_process.Environment, served_by=_ANY, role=_OPERATOR),
    _get("/jobmanager/metrics", metrics.jobmanager, _METRICS, _GET, served_by=_ANY),
    _get("/jobmanager/logs", process.logs, of_process.LogFiles, served_by=_ANY, role=_OPERATOR),
    _get("/jobmanager/logs/{file}", process.log_file, str, errors=(404,), served_by=_ANY, role=_OPERATOR),
    _get("/jobmanager/log", process.log, str, errors=(404,), served_by=_ANY, role=_OPERATOR),
    _get("/jobmanager/stdout", process.stdout, str, errors=(404,), served_by=_ANY, role=_OPERATOR),
    _get("/jobmanager/thread-dump", process.thread_dump, of_process.ThreadDump, served_by=_ANY, role=_OPERATOR),
    _get("/versions", cluster.versions, Versions, served_by=_ANY),
    _get("/healthz", cluster.healthz, of_cluster.Health, served_by=_ANY, role=None),
    _get("/readyz", cluster.readyz, of_cluster.Health, errors=(503,), role=None),
    _get("/metrics", metrics.prometheus, str, served_by=_ANY),
    Route(
        method="GET", path="/events", handler=event_stream.events, role=_VIEWER,
        answers=str, query=(_EVENTS_OF, _EVENTS_OF_CLUSTER, _FOLLOW, _LAST_EVENT), errors=_JOB,
        streams=True,
    ),
    _get("/openapi.json", _describe, dict[str, Any], served_by=_ANY),
)  # fmt: skip

TABLE: Final = RouteTable(ROUTES)

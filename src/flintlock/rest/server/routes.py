"""The endpoints, as data: routes, OpenAPI and the reference page are all made from this table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from flintlock.api import cluster as of_cluster
from flintlock.api import jobs as shapes
from flintlock.api import process as of_process
from flintlock.api import vertices as of_vertices
from flintlock.model.jobspec import JobSpec
from flintlock.rest.cluster import handlers as cluster
from flintlock.rest.cluster import process_handlers as process
from flintlock.rest.jobs import bodies
from flintlock.rest.jobs import handlers as jobs
from flintlock.rest.metrics import handlers as metrics
from flintlock.rest.server.http import ARROW, Call, Handler
from flintlock.rest.vertices import handlers as vertices


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A query parameter or header."""

    name: str
    description: str
    where: str = "query"
    kind: str = "string"
    least: int | None = None
    longest: int | None = None


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One row: a method, a path, who answers and what with."""

    method: str
    path: str
    handler: Handler
    answers: Any
    status: int = 200
    summary: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: tuple[str, ...] = ()
    takes: Any = JobSpec  # what a JSON body is
    errors: tuple[int, ...] = ()
    also: str | None = None  # another content type that it answers in, if asked to

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return self.summary or (self.handler.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True, kw_only=True)
class EventStream:
    """A row whose answer does not end: server-sent events."""

    path: str
    source: Callable[[Call], AsyncIterator[bytes]]


_JOB: Final = (400, 404, 503)
_VERTEX: Final = "/jobs/{jobid}/vertices/{vertexid}"
_WAIT = Parameter(name="wait", description="Hold the answer until the job ends, at most this long, such as `30s`.")
_MODE = Parameter(name="mode", description="Only `cancel`.")
_MAX = Parameter(name="maxExceptions", description="At most so many entries.", kind="integer", least=0)
_REGION = Parameter(name="region", description="Only this region.", kind="integer", least=0)
_ATTEMPT = Parameter(name="attempt", description="Only this attempt.", kind="integer", least=0)
_GET = Parameter(name="get", description="The values of these ids, with commas between them; without it, all ids.")
_AGG = Parameter(name="agg", description="Only these of `min`, `max`, `avg`, `sum`.")
_JOBS = Parameter(name="jobs", description="Only these jobs, ended ones too.")
_TASK_MANAGERS = Parameter(name="taskmanagers", description="Only these TaskManagers.")
_OFFSET = Parameter(name="offset", description="From this byte on; negative counts from the end.", kind="integer")
_KEY = Parameter(
    name="Idempotency-Key",
    where="header",
    longest=255,
    description="The client's own key: the same key and graph is the same job, however often it is sent.",
)


_METRICS: Final = list[of_cluster.Metric]
_AGGREGATED: Final = list[of_cluster.AggregatedMetric]
_JSON: Final = ("application/json",)


def _get(path: str, handler: Handler, answers: Any, *parameters: Parameter, errors: tuple[int, ...] = ()) -> Endpoint:
    return Endpoint(method="GET", path=path, handler=handler, answers=answers, parameters=parameters, errors=errors)


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _get("/config", cluster.config, of_cluster.DashboardConfig),
    _get("/overview", cluster.overview, of_cluster.ClusterOverview, errors=(503,)),
    _get("/jobs", jobs.list_ids, shapes.JobIds, errors=(503,)),
    _get("/jobs/overview", jobs.overview, shapes.JobsOverviewAnswer, errors=(503,)),
    Endpoint(
        method="POST", path="/jobs", handler=jobs.submit, answers=shapes.Jobid, status=202, parameters=(_KEY,),
        body=("multipart/form-data", "application/json"), errors=(400, 409, 413, 422, 502, 503),
    ),
    _get("/jobs/metrics", metrics.jobs, _AGGREGATED, _GET, _AGG, _JOBS, errors=_JOB),
    _get("/jobs/{jobid}", jobs.details, shapes.JobDetails, errors=_JOB),
    Endpoint(
        method="PATCH", path="/jobs/{jobid}", handler=jobs.cancel, answers=shapes.Empty, status=202,
        parameters=(_MODE,), errors=(*_JOB, 408, 409),
    ),
    Endpoint(
        method="GET", path="/jobs/{jobid}/yarn-cancel", handler=jobs.cancel, answers=shapes.Empty, status=202,
        errors=(*_JOB, 408, 409),
    ),
    _get("/jobs/{jobid}/resource-requirements", jobs.requirements, bodies.Requirements, errors=_JOB),
    Endpoint(
        method="PUT", path="/jobs/{jobid}/resource-requirements", handler=jobs.update_requirements,
        answers=shapes.Empty, body=_JSON, takes=bodies.Requirements, errors=(*_JOB, 409, 413, 500),
    ),
    Endpoint(
        method="PATCH", path="/jobs/{jobid}/clientHeartbeat", handler=jobs.client_heartbeat, answers=shapes.Empty,
        status=202, body=_JSON, takes=bodies.ClientHeartbeatBody, errors=(*_JOB, 413),
    ),
    _get("/jobs/{jobid}/metrics", metrics.job, _METRICS, _GET, errors=_JOB),
    _get("/jobs/{jobid}/jobmanager/config", cluster.job_jobmanager_config, list[of_cluster.ConfigEntry], errors=_JOB),
    _get("/jobs/{jobid}/plan", jobs.plan, shapes.PlanAnswer, errors=_JOB),
    _get("/jobs/{jobid}/config", jobs.config, shapes.JobConfigAnswer, errors=_JOB),
    _get("/jobs/{jobid}/status", jobs.status, shapes.JobStatusAnswer, errors=_JOB),
    _get("/jobs/{jobid}/exceptions", jobs.exceptions, shapes.ExceptionsAnswer, _MAX, errors=_JOB),
    _get("/jobs/{jobid}/execution-result", jobs.execution_result, shapes.ExecutionResultAnswer, _WAIT, errors=_JOB),
    _get("/jobs/{jobid}/attempts", jobs.attempts, shapes.AttemptsAnswer, errors=_JOB),
    _get("/jobs/{jobid}/logs", jobs.logs, shapes.LogsAnswer, _REGION, _ATTEMPT, _OFFSET, errors=_JOB),
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
    _get(f"{_VERTEX}/subtasks/{{subtaskindex}}/metrics", metrics.subtask, _METRICS, _GET, errors=_JOB),
    _get("/jobs/{jobid}/results", jobs.results, shapes.ResultNames, errors=_JOB),
    Endpoint(
        method="GET", path="/jobs/{jobid}/results/{name}", handler=jobs.result, answers=shapes.ResultAnswer,
        errors=(*_JOB, 409), also=ARROW,
    ),
    Endpoint(
        method="POST", path="/blobs", handler=jobs.upload_blob, answers=shapes.BlobAnswer, status=201,
        body=("application/octet-stream",), errors=(400, 413, 503),
    ),
    _get("/taskmanagers", cluster.task_managers, of_cluster.TaskManagersAnswer, errors=(503,)),
    _get(
        "/taskmanagers/metrics", metrics.task_managers, _AGGREGATED, _GET, _AGG, _TASK_MANAGERS, errors=(400, 404, 503)
    ),
    _get("/taskmanagers/{taskmanagerid}/metrics", metrics.task_manager, _METRICS, _GET, errors=(404, 503)),
    _get("/taskmanagers/{taskmanagerid}", cluster.task_manager, of_cluster.TaskManagerDetails, errors=(404, 503)),
    _get("/resources", cluster.resources, of_cluster.ResourcesAnswer, errors=(503,)),
    _get("/jobmanager/config", cluster.jobmanager_config, list[of_cluster.ConfigEntry]),
    _get("/jobmanager/environment", process.environment, of_process.Environment),
    _get("/jobmanager/metrics", metrics.jobmanager, _METRICS, _GET),
    _get("/jobmanager/logs", process.logs, of_process.LogFiles),
    _get("/jobmanager/logs/{file}", process.log_file, str, errors=(404,)),
    _get("/jobmanager/log", process.log, str, errors=(404,)),
    _get("/jobmanager/stdout", process.stdout, str, errors=(404,)),
    _get("/jobmanager/thread-dump", process.thread_dump, of_process.ThreadDump),
    _get("/versions", cluster.versions, of_cluster.VersionsAnswer),
    _get("/healthz", cluster.healthz, of_cluster.Health),
    _get("/readyz", cluster.readyz, of_cluster.Health, errors=(503,)),
    _get("/metrics", metrics.prometheus, str),
)  # fmt: skip

EVENTS: Final = EventStream(path="/events", source=jobs.events)

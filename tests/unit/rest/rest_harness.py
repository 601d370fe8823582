"""The REST application with fakes behind it: one call at a time, responses as clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import uvicorn
from msgspec import structs
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from flintlock.config.configuration import Configuration
from flintlock.gateways.leader import JobManagerInfo
from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.model.access.principals import Principal
from flintlock.model.ids import Epoch, InstanceId, JobId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, Versions, vertex_id
from flintlock.model.jobs import ExceptionEntry, ExecutionInfo, JobSnapshot
from flintlock.model.operations import Result, Sink, Source, Sql
from flintlock.model.regions import regions_of
from flintlock.model.slots import AllocatedSlot, Hardware, ResourceOverview, TaskManagerInfo, WaitingRequest
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind, Frame, StepOutput, TaskMetrics
from flintlock.rest.server.access import AccessControl
from flintlock.rest.server.app import rest_app
from flintlock.rest.server.http import RestServices
from flintlock.rest.server.remote_principals import TokensOfLeader
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.audit import AuditRecord
from flintlock.security.authentication import Authentication
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.local_credentials import LocalAuthenticator, local_credential
from flintlock.security.sessions import Sessions
from flintlock.security.spark_ui_links import SparkUiLinks
from flintlock.testing.fakes.fake_blobs import FakeBlobs
from flintlock.testing.fakes.fake_dispatcher import FakeDispatcher
from flintlock.testing.fakes.fake_resourcemanager import FakeResourceManager

SAMPLES: Final = Path(__file__).parents[2] / "data" / "flink-rest"
T0: Final = 1_794_713_100_000
NEW_ID: Final = JobId("e" * 32)
A: Final = JobId("a" * 32)
B: Final = JobId("b" * 32)
SECRET: Final = ClusterSecret(b"secret of the tests, 32 bytes or ")
VERSIONS: Final = Versions(flintlock="0.1.0", python="3.11", pyspark="4.3.0")
FAILURE: Final = Failure(
    kind=FailureKind.USER_CODE,
    message="division by zero",
    exception="ZeroDivisionError",
    step=StepName("clean"),
    frames=(Frame("job.py", 7, "clean", "1 / 0"),),
    stack_trace="Traceback …",
)


class AuditRecords:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def write(self, record: AuditRecord) -> None:
        """Remember it."""
        self.records.append(record)


class RestHarness:
    """The REST application, its fake gateways, and a clock that the test moves."""

    def __init__(self, logs: ProcessLogs | None = None, dashboard: Path | None = None, /, **settings: str) -> None:
        self.registry = CollectorRegistry()
        self.dispatcher = FakeDispatcher(T0)
        self.resource_manager = FakeResourceManager()
        self.blobs = FakeBlobs()
        self.now_ms = T0 + 10_000
        self.job_managers: tuple[JobManagerInfo, ...] = ()
        self.ids = iter([NEW_ID, *(JobId(f"{number:032x}") for number in range(1000))])
        self.services = RestServices(
            dispatcher=self.dispatcher,
            resource_manager=self.resource_manager,
            blobs=self.blobs,
            configuration=Configuration(settings),
            versions=VERSIONS,
            clock_ms=lambda: self.now_ms,
            new_job_id=lambda: next(self.ids),
            revision="abc1234",
            registry=self.registry,
            logs=logs or ProcessLogs(),
            dashboard=dashboard or Path("/nowhere"),
            job_managers=lambda: self.job_managers,
        )
        self.ask_leader: Callable[[str], Awaitable[Principal]] | None = None  # of a standby; None: this one leads
        tokens = TokensOfLeader(self.dispatcher, self._leading, self._ask_leader)
        self.sessions = Sessions(SECRET, tokens.check_session)
        self.authentication = Authentication((LocalAuthenticator(SECRET), tokens, self.sessions), lambda: self.now_ms)
        self.services = replace(self.services, forget_credentials=self.authentication.forget, sessions=self.sessions)
        self.services = replace(self.services, spark_ui_links=SparkUiLinks(SECRET))
        self.audit = AuditRecords()
        self.bare_app = rest_app(self.services)
        self.app = self.protected(self.bare_app)

    def protected(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind access control."""
        return AccessControl(
            app,
            authentication=self.authentication,
            web=WebPolicy(hosts=frozenset({"flintlock"})),
            cookie=self.sessions.cookie,
            audit=self.audit,
            clock_ms=lambda: self.now_ms,
        )

    def _leading(self) -> Epoch | None:
        return Epoch(1) if self.ask_leader is None else None

    async def _ask_leader(self, credential: str) -> Principal:
        assert self.ask_leader is not None
        return await self.ask_leader(credential)

    @property
    def credential(self) -> str:
        """What an administrator sends."""
        return local_credential(SECRET, "maria", self.now_ms)

    @property
    def auth(self) -> dict[str, str]:
        """The header of an administrator."""
        return {"Authorization": f"Bearer {self.credential}"}

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that every request of an administrator has, as a server passes them on."""
        return [(b"host", b"flintlock"), (b"authorization", self.auth["Authorization"].encode())]

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send one request."""
        return asyncio.run(self.request(method, path, **arguments))

    async def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send one request from within a loop."""
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flintlock", headers=self.auth) as client:
            return await client.request(method, path, **arguments)

    def get(self, path: str, **arguments: Any) -> Any:
        """Return the JSON that a path answers."""
        response = self.call("GET", path, **arguments)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json; charset=UTF-8"
        return response.json()

    def refused(self, status: int, method: str, path: str, **arguments: Any) -> list[str]:
        """Return the errors that a call is refused with."""
        response = self.call(method, path, **arguments)
        assert response.status_code == status, response.text
        body = response.json()
        assert [*body] == ["errors"]
        assert all(isinstance(line, str) and line for line in body["errors"])
        return body["errors"]

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[httpx.AsyncClient]:
        """Serve on a real socket, and give a client to it."""
        server = uvicorn.Server(
            uvicorn.Config(self.app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        )
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            try:
                async with httpx.AsyncClient(
                    base_url=f"http://{host}:{port}", trust_env=False, timeout=20, headers=self.auth
                ) as client:
                    yield client
            finally:
                server.should_exit = True
                await serving


def sample(name: str) -> Any:
    """What Flink answered."""
    return msgspec.json.decode((SAMPLES / f"{name}.json").read_bytes())


def step(
    job_id: JobId, name: str, operation: Source | Sql | Sink | Result, *inputs: str, blocking: bool = False
) -> JobVertex:
    return JobVertex(
        id=vertex_id(job_id, name),
        name=StepName(name),
        operation=operation,
        inputs=tuple(StepName(source) for source in inputs),
        exchange=Exchange.BLOCKING if blocking else Exchange.PIPELINED,
    )


def graph(job_id: JobId = A, name: str = "revenue") -> JobGraph:
    """A graph of two regions: orders and clean, then priced with out and top."""
    return JobGraph(
        job_id=job_id,
        name=name,
        parallelism=2,
        config={"spark.sql.ansi.enabled": "true"},
        vertices=(
            step(job_id, "orders", Source(format="csv", paths=("in",))),
            step(job_id, "clean", Sql(query="SELECT * FROM orders"), "orders", blocking=True),
            step(job_id, "priced", Sql(query="SELECT * FROM clean"), "clean"),
            step(job_id, "out", Sink(format="parquet", path="out"), "priced"),
            step(job_id, "top", Result(), "priced"),
        ),
    )


def running(job_id: JobId = A, name: str = "revenue") -> JobSnapshot:
    """A job whose first region has finished at its second attempt, and whose second one runs."""
    made = graph(job_id, name)
    e = ExecutionState
    return JobSnapshot(
        graph=made,
        regions=regions_of(made),
        status=JobStatus.RUNNING,
        timestamps={JobStatus.INITIALIZING: T0, JobStatus.CREATED: T0 + 5, JobStatus.RUNNING: T0 + 10},
        end_ms=-1,
        last_modified_ms=T0 + 5000,
        executions=(
            execution(0, 0, e.FAILED, {e.DEPLOYING: T0 + 20, e.FAILED: T0 + 90}, failure=FAILURE),
            execution(
                0,
                1,
                e.FINISHED,
                {e.DEPLOYING: T0 + 100, e.RUNNING: T0 + 200, e.FINISHED: T0 + 1100},
                outputs=(StepOutput(step=StepName("clean"), rows=7, bytes=70),),
            ),
            execution(
                1,
                0,
                e.RUNNING,
                {e.DEPLOYING: T0 + 1200, e.RUNNING: T0 + 1300},
                metrics=TaskMetrics(read_records=7, stages_done=1, stages_total=2, tasks_done=3, tasks_total=4),
            ),
        ),
        exceptions=(ExceptionEntry(failure=FAILURE, timestamp_ms=T0 + 90, region=RegionId(0), task_name="orders"),),
        result_names=(),
    )


def execution(
    region: int,
    attempt: int,
    state: ExecutionState,
    timestamps: dict[ExecutionState, int],
    *,
    outputs: tuple[StepOutput, ...] = (),
    metrics: TaskMetrics | None = None,
    failure: Failure | None = None,
) -> ExecutionInfo:
    return ExecutionInfo(
        region=RegionId(region),
        attempt=attempt,
        state=state,
        timestamps=timestamps,
        task_manager=TaskManagerId("tm-1"),
        address="127.0.0.1:4711",
        slots=2,
        outputs=outputs,
        metrics=metrics or TaskMetrics(),
        activity="writing out" if state is ExecutionState.RUNNING else "",
        failure=failure,
    )


def ended(snapshot: JobSnapshot, status: JobStatus, *, at_ms: int = T0 + 9000) -> JobSnapshot:
    """The job, ended so."""
    return structs.replace(
        snapshot, status=status, end_ms=at_ms, timestamps={**snapshot.timestamps, status: at_ms}, last_modified_ms=at_ms
    )


RESOURCES: Final = ResourceOverview(
    task_managers=(
        TaskManagerInfo(
            id=TaskManagerId("tm-1"),
            instance=InstanceId("instance-1"),
            address="127.0.0.1:4711",
            slots=4,
            free_slots=2,
            last_heartbeat_ms=T0 + 9_500,
            hardware=Hardware(cpu_cores=4, physical_memory=8 << 30, free_memory=4 << 30, managed_memory=1 << 30),
            allocated=(AllocatedSlot(job_id=A, slots=2),),
            metrics={"runner-memory": 1024.0, "engine.memory": 2048.5},
        ),
    ),
    waiting=(
        WaitingRequest(job_id=B, request=RequestId("r-1"), slots=2, since_ms=T0 + 8_000, name="other", priority=5),
    ),
    starting=1,
)

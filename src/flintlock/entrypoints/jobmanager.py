"""The JobManager process: REST, Dispatcher, JobMasters, ResourceManager and BlobServer over one state directory."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final, Protocol, TypeVar

import structlog
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from flintlock.blob.server import BlobServer
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.runner import DispatcherRunner, LeaderDoor
from flintlock.dispatcher.services import DispatcherServices
from flintlock.entrypoints.doors import ResourceManagerDoor
from flintlock.entrypoints.high_availability import ha_services, work_dir
from flintlock.entrypoints.local_workers import local_workers
from flintlock.entrypoints.process import Settings, cluster_versions, own_pid, start, write_json
from flintlock.entrypoints.term import TermParts
from flintlock.gateways.blobs import BlobGateway
from flintlock.jobmaster.enrichers import load_enrichers
from flintlock.jobmaster.metrics import JobMasterMetrics
from flintlock.model.configuration import Configuration
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.options import (
    CLUSTER_ID,
    FAILURE_ENRICHERS,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    MAX_TASK_MANAGERS,
    REST_ADDRESS,
    REST_PORT,
)
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.rest.app import rest_app
from flintlock.rest.calls import RestServices
from flintlock.rest.process import ProcessLogs
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.server import RpcServer

_BACKLOG: Final = 1024
log = structlog.get_logger()
T = TypeVar("T")


class Instrument(Protocol):
    """Wraps parts of the JobManager as they are put together; the kill matrix dies at their borders."""

    def __call__(self, name: str, part: T) -> T:
        """Return the part to use in its place."""
        ...


def plain(name: str, part: T) -> T:  # noqa: ARG001 (the name is for instruments that tell parts apart)
    """Wrap nothing."""
    return part


async def serve(settings: Settings, instrument: Instrument = plain) -> None:
    """Serve as JobManager until cancelled: contend for leadership, lead, answer."""
    configuration, state_dir = settings.configuration, settings.state_dir
    versions = cluster_versions()
    registry = CollectorRegistry()  # what this process counts; every room that counts is given it
    ProcessCollector(registry=registry)
    async with (
        ha_services(settings, clock_ms) as ha,
        RpcServer(configuration.get(JM_RPC_ADDRESS), configuration.get(JM_RPC_PORT)) as rpc,
        RpcChannels() as channels,
    ):
        blobs = instrument("blobs", BlobServer(state_dir / "blobs"))
        await blobs.start()
        rpc.serve(BlobGateway, blobs)
        dispatcher, resource_manager = LeaderDoor(), ResourceManagerDoor()
        term = TermParts(
            host=instrument("host", rpc),
            connector=instrument("connector", channels),
            resource_manager_door=resource_manager,
            configuration=configuration,
            versions=versions,
            work_dir=work_dir(settings),
            clock_ms=clock_ms,
            random=Random(secrets.randbits(64)),  # noqa: S311 (jitter, not secrets)
            workers=(lambda token: local_workers(settings, token.epoch))
            if configuration.get(MAX_TASK_MANAGERS)
            else None,
            resource_manager_metrics=ResourceManagerMetrics(registry),
            job_master_metrics=JobMasterMetrics(registry),
            enrichers=load_enrichers(configuration.get(FAILURE_ENRICHERS)),
        )
        runner = DispatcherRunner(
            ha=instrument("ha", ha),
            services=DispatcherServices(
                blobs=blobs,
                configuration=configuration,
                versions=versions,
                clock_ms=clock_ms,
                metrics=DispatcherMetrics(registry),
            ),
            open_term=term.open,
            door=dispatcher,
        )
        services = RestServices(
            dispatcher=dispatcher,
            resource_manager=resource_manager,
            blobs=blobs,
            configuration=configuration,
            versions=versions,
            clock_ms=clock_ms,
            new_job_id=lambda: JobId(uuid.uuid4().hex),
            registry=registry,
            logs=ProcessLogs.of(state_dir / "log"),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run(), name="dispatcher-runner")
            async with _rest(services, configuration) as rest_url:
                await _announced(state_dir, configuration, rest_url, rpc.address)


@asynccontextmanager
async def _rest(services: RestServices, configuration: Configuration) -> AsyncGenerator[str]:
    """Serve REST while the context lasts; yields its address."""
    listening = _listen(configuration.get(REST_ADDRESS), configuration.get(REST_PORT))
    server = _Uvicorn(
        uvicorn.Config(
            rest_app(services),
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=_BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]), name="rest")
        try:
            host, port = listening.getsockname()[:2]
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """Signals are the process's business, not uvicorn's."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(f"cannot listen on {host}:{port} (rest.address, rest.port): {error.strerror}") from error
    return listening


async def _announced(state_dir: Path, configuration: Configuration, rest_url: str, rpc_address: str) -> None:
    """Tell where this JobManager listens, until cancelled."""
    announcement = state_dir / "cluster.json"
    pid_file = state_dir / "run" / "jobmanager.json"
    write_json(pid_file, own_pid())
    write_json(
        announcement,
        {"cluster-id": configuration.get(CLUSTER_ID), "rest": rest_url, "rpc": rpc_address, **own_pid()},
    )
    log.info("listening", rest=rest_url, rpc=rpc_address)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        for path in (announcement, pid_file):
            with suppress(FileNotFoundError):
                path.unlink()


def clock_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(start("jobmanager", serve, uvloop.new_event_loop))

"""The JobManager process: REST, Dispatcher, JobMasters, ResourceManager and BlobServer over one state directory."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
import uuid
from random import Random
from typing import Protocol, TypeVar

import structlog
import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from flintlock.blob.server import BlobServer
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.runner import DispatcherRunner, LeaderDoor
from flintlock.dispatcher.services import DispatcherServices
from flintlock.entrypoints.announcements import Announcement, Announcements, LeaderFile
from flintlock.entrypoints.doors import ResourceManagerDoor
from flintlock.entrypoints.high_availability import ha_services, work_dir
from flintlock.entrypoints.local_workers import local_workers
from flintlock.entrypoints.process import Settings, cluster_versions, start
from flintlock.entrypoints.rest_server import serving_rest
from flintlock.entrypoints.term import TermParts
from flintlock.gateways.blobs import BlobGateway
from flintlock.ha.protocols import LeaderElection
from flintlock.jobmaster.enrichers import load_enrichers
from flintlock.jobmaster.metrics import JobMasterMetrics
from flintlock.model.ids import Epoch, JobId
from flintlock.model.options import (
    CLUSTER_ID,
    FAILURE_ENRICHERS,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    MAX_TASK_MANAGERS,
)
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.rest.calls import RestServices
from flintlock.rest.process import ProcessLogs
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.server import RpcServer

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
            paused=ha.election.paused,
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
        leaders = LeaderFile(state_dir)
        async with (
            asyncio.TaskGroup() as tasks,
            serving_rest(services, lambda: _epoch(dispatcher), leaders) as rest_url,
        ):
            announcements = Announcements(
                state_dir,
                "jobmanager" if settings.index == 0 else f"jobmanager-{settings.index}",
                Announcement(cluster_id=configuration.get(CLUSTER_ID), rest=rest_url, rpc=rpc.address),
            )
            watching = tasks.create_task(leaders.run(), name="leader-file")
            running = tasks.create_task(runner.run(), name="dispatcher-runner")
            log.info("listening", rest=rest_url, rpc=rpc.address)
            try:
                await _announced(announcements, dispatcher)
            finally:
                _leave(dispatcher, announcements, ha.election)
                running.cancel()
                watching.cancel()


def _epoch(dispatcher: LeaderDoor) -> Epoch | None:
    token = dispatcher.leading
    return None if token is None else token.epoch


async def _announced(announcements: Announcements, dispatcher: LeaderDoor) -> None:
    """Tell where this JobManager listens, and when it leads, until cancelled."""
    announcements.listen()
    while True:
        token = await dispatcher.opened()
        announcements.lead(token.epoch)
        await dispatcher.closed(token)


def _leave(dispatcher: LeaderDoor, announcements: Announcements, election: LeaderElection) -> None:
    """Hand leadership over before anything that takes time; what is still under way is fenced off by the next term."""
    token = dispatcher.leading
    if token is not None:
        dispatcher.withdraw(token)
        announcements.step_down()
    election.resign()


def clock_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(start("jobmanager", serve, uvloop.new_event_loop))

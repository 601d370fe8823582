"""The JobManager process: REST, Dispatcher, JobMasters, ResourceManager and BlobServer over one state directory."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
import uuid
from random import Random
from typing import Final, Protocol, TypeVar

import structlog
import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from flintlock.blob.server import BlobServer
from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    CLUSTER_ID,
    FAILURE_ENRICHERS,
    JM_BIND_HOST,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    MAX_TASK_MANAGERS,
)
from flintlock.dispatcher.leader_watch import LeaderWatch, is_loopback
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.runner import CurrentDispatcher, DispatcherRunner
from flintlock.dispatcher.services import DispatcherServices
from flintlock.entrypoints.announcements import Announcement, Announcements
from flintlock.entrypoints.high_availability import ha_services, work_dir
from flintlock.entrypoints.local_workers import local_workers
from flintlock.entrypoints.process import Settings, cluster_versions, start
from flintlock.entrypoints.rest_server import serving_rest
from flintlock.entrypoints.term import CurrentResourceManager, TermParts
from flintlock.gateways.blobs import BlobGateway
from flintlock.gateways.leader import LeaderGateway
from flintlock.ha.leader_info import KnownLeader, LeaderAddresses
from flintlock.ha.protocols import LeaderElection
from flintlock.ha.zookeeper.settings import uses_zookeeper
from flintlock.host.addresses import reached_at
from flintlock.jobmaster.enrichers import load_enrichers
from flintlock.jobmaster.metrics import JobMasterMetrics
from flintlock.model import log_events
from flintlock.model.ids import Epoch, JobId
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.rest.cluster.process import ProcessLogs
from flintlock.rest.server.http import RestServices
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.liveness import LIVENESS_CALL_TIMEOUT_S
from flintlock.rpc.server import RpcServer

log = structlog.get_logger()
T = TypeVar("T")
_ONLY_HERE: Final = (
    f"{JM_RPC_ADDRESS.key} is a loopback address: JobManagers and TaskManagers of other machines cannot reach this one"
)


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
        _rpc_server(configuration) as rpc,
        RpcChannels() as channels,
    ):
        blobs = instrument("blobs", BlobServer(state_dir / "blobs", ha.blobs))
        await blobs.start()
        rpc.serve(BlobGateway, blobs)
        dispatcher, resource_manager, leader = (
            CurrentDispatcher(ha.election.paused),
            CurrentResourceManager(),
            KnownLeader(),
        )
        term = TermParts(
            host=instrument("host", rpc),
            connector=instrument("connector", channels),
            resource_manager=resource_manager,
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
        services = RestServices(
            dispatcher=dispatcher.gateway,
            resource_manager=resource_manager.gateway,
            blobs=blobs,
            configuration=configuration,
            versions=versions,
            clock_ms=clock_ms,
            new_job_id=lambda: JobId(uuid.uuid4().hex),
            registry=registry,
            logs=ProcessLogs.of(state_dir / "log"),
        )
        async with asyncio.TaskGroup() as tasks, serving_rest(services, lambda: _epoch(dispatcher), leader) as rest_url:
            log.info(log_events.JOBMANAGER_LISTENING, rest=rest_url, rpc=rpc.address)
            if uses_zookeeper(configuration) and is_loopback(rpc.address):
                log.warning(log_events.RPC_ADDRESS_IS_LOOPBACK, reason=_ONLY_HERE)
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
                dispatcher=dispatcher,
                listening=LeaderAddresses(rest=rest_url, rpc=rpc.address, host=socket.gethostname()),
            )
            rpc.serve(LeaderGateway, runner)
            watch = LeaderWatch(
                known=leader,
                register=ha.leader,
                connect=lambda address: channels.connect(LeaderGateway, address, timeout_s=LIVENESS_CALL_TIMEOUT_S),
                is_own=runner.is_in,
                host=socket.gethostname(),
            )
            announcements = Announcements(
                state_dir,
                "jobmanager" if settings.index == 0 else f"jobmanager-{settings.index}",
                Announcement(cluster_id=configuration.get(CLUSTER_ID), rest=rest_url, rpc=rpc.address),
            )
            running = [
                tasks.create_task(leader.follow(ha.leader.changes()), name="known-leader"),
                tasks.create_task(watch.run(), name="leader-watch"),
                tasks.create_task(runner.run(), name="dispatcher-runner"),
            ]
            try:
                await _announced(announcements, dispatcher)
            finally:
                _leave(dispatcher, announcements, ha.election)
                for task in running:
                    task.cancel()


def _rpc_server(configuration: Configuration) -> RpcServer:
    host = configuration.get(JM_RPC_ADDRESS)
    return RpcServer(reached_at(host), configuration.get(JM_RPC_PORT), bind=configuration.get(JM_BIND_HOST) or host)


def _epoch(dispatcher: CurrentDispatcher) -> Epoch | None:
    token = dispatcher.acting()
    return None if token is None else token.epoch


async def _announced(announcements: Announcements, dispatcher: CurrentDispatcher) -> None:
    """Tell where this JobManager listens, and when it leads, until cancelled."""
    announcements.listen()
    while True:
        token = await dispatcher.wait_for_leader()
        announcements.lead(token.epoch)
        await dispatcher.wait_until_over(token)
        announcements.step_down()


def _leave(dispatcher: CurrentDispatcher, announcements: Announcements, election: LeaderElection) -> None:
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

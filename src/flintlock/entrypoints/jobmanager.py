"""The JobManager process: REST, Dispatcher, JobMasters, ResourceManager and BlobServer over one state directory."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

import structlog
import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from flintlock.blob.server import BlobServer
from flintlock.config.options import (
    CLUSTER_ID,
    ENDED_JOB_BLOBS,
    FAILURE_ENRICHERS,
    JM_BIND_HOST,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    RUNNER_USER,
)
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.leadership.leader_watch import is_loopback
from flintlock.entrypoints.components import DeploymentMode, JobManagerComponents, JobManagerParts
from flintlock.entrypoints.high_availability import (
    blocking_jobs_dir,
    checkpoints_dir,
    ha_services,
    process_name,
    savepoints_dir,
    unshared_checkpoints,
    work_dir,
)
from flintlock.entrypoints.log_files import rotating_logs
from flintlock.entrypoints.log_metrics import DroppedLogLines
from flintlock.entrypoints.own_job import deployment_mode
from flintlock.entrypoints.platform import MachinePlatform, Platform
from flintlock.entrypoints.process import ProcessSettings, cluster_versions, start
from flintlock.entrypoints.serving.announcements import Announcements, keep_announced
from flintlock.entrypoints.serving.rest_server import serving_rest
from flintlock.entrypoints.serving.rpc_security import UnauthenticatedCalls, rpc_security
from flintlock.gateways.blobs import BlobGateway
from flintlock.ha.backends import ha_backend
from flintlock.ha.leader_info import LeaderAddresses
from flintlock.ha.protocols import HaServices
from flintlock.host.addresses import reached_at
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.cluster_spec import remove_cluster_spec
from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.jobmaster.enrichers import load_enrichers
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.ids import Epoch, JobId
from flintlock.monitoring.blocking_jobs import BlockingJobRecords, BlockingJobs
from flintlock.monitoring.current_job import CurrentJob
from flintlock.monitoring.loop_monitor import BlockingJobWatcher, LoopMonitor
from flintlock.monitoring.standstill import StandstillLimit
from flintlock.rest.server.http import RestServices
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.savepoints.service import SavepointFiles
from flintlock.security.audit import audit_log

log = structlog.get_logger()
T = TypeVar("T")
_LOOPBACK: Final = (
    f"{JM_RPC_ADDRESS.key} is a loopback address: JobManagers and TaskManagers of other machines cannot reach this one"
)


class Instrument(Protocol):
    """Wraps parts of the JobManager as they are put together; the kill matrix kills the process at their borders."""

    def __call__(self, name: str, part: T) -> T:
        """Return the part to use in its place."""
        ...


def plain(name: str, part: T) -> T:  # noqa: ARG001 (the name is for instruments that tell parts apart)
    """Wrap nothing."""
    return part


class ClusterEntrypoint:
    """A JobManager process: opens its services, then runs its components in the mode of its state directory."""

    def __init__(
        self, settings: ProcessSettings, instrument: Instrument = plain, platform: Platform | None = None
    ) -> None:
        self._settings: Final = settings
        self._platform: Final = platform or MachinePlatform(settings)
        self._configuration: Final = settings.configuration
        self._name: Final = "jobmanager" if settings.index == 0 else f"jobmanager-{settings.index}"
        self._instrument: Final = instrument
        self._registry: Final = CollectorRegistry()  # what this process measures; every component gets it
        self._current: Final = CurrentJob()

    async def run(self) -> ApplicationStatus:
        """Serve until cancelled, or until the cluster shuts down; return the status then."""
        ProcessCollector(registry=self._registry)
        self._registry.register(DroppedLogLines(self._settings.log_output))
        security = self._rpc_security()
        audit_file = self._settings.state_dir / "log" / f"{self._name}-audit.log"
        async with (
            rotating_logs(self._configuration, self._settings.state_dir / "log", audit_file),
            audit_log(audit_file) as audit,
            RpcChannels(security=security) as channels,
            ha_services(self._settings, clock_ms, channels) as ha,
            self._rpc_server(security) as rpc,
            self._loop_monitor(ha),  # last: a start imports much
        ):
            self._registry.register(UnauthenticatedCalls(rpc))
            ended_bytes = self._configuration.get(ENDED_JOB_BLOBS)
            server = BlobServer(self._settings.state_dir / "blobs", ha.blobs, ended_bytes=ended_bytes)
            blobs = self._instrument("blobs", server)
            await blobs.start()
            rpc.serve(BlobGateway, blobs)
            mode = deployment_mode(self._settings, blobs, self._platform)
            mode = replace(mode, removes_ha_data=mode.removes_ha_data or self._platform.ends_for_good)
            components = JobManagerComponents(self._parts(mode, ha, rpc, channels, blobs))
            rest = serving_rest(
                self._rest_services(mode, components, blobs),
                lambda: _epoch(components.dispatcher),
                components.known_leader,
                self._settings.secret,
                audit,
            )
            async with rest as rest_url:
                log.info(log_events.JOBMANAGER_LISTENING, rest=rest_url, rpc=rpc.address)
                if ha_backend(self._configuration).spans_hosts and is_loopback(rpc.address):
                    log.warning(log_events.RPC_ADDRESS_IS_LOOPBACK, reason=_LOOPBACK)
                async with self._platform.serving(rest_url):
                    status = await self._run_announced(components, rest_url, rpc.address)
                    if status.is_final:
                        await self._platform.finish(status)
        if mode.removes_ha_data and status.is_final:  # nothing is left to start again
            await asyncio.to_thread(remove_cluster_spec, self._settings.state_dir)
        return status

    def _loop_monitor(self, ha: HaServices) -> LoopMonitor:
        """Return the monitor; it ends this process where a loop that stands still would keep the leadership."""

        def limit_s() -> float:
            granted_s = ha.standstill_limit_s
            return math.inf if granted_s is None else granted_s

        return LoopMonitor(
            self._registry,
            watcher=BlockingJobWatcher(self._current, self._blocking_jobs(ha)),
            limit=StandstillLimit(limit_s, self._settings.abort),
        )

    def _parts(
        self, mode: DeploymentMode, ha: HaServices, rpc: RpcServer, channels: RpcChannels, blobs: BlobServer
    ) -> JobManagerParts:
        return JobManagerParts(
            ha=self._instrument("ha", ha),
            host=self._instrument("host", rpc),
            connector=self._instrument("connector", channels),
            blobs=blobs,
            configuration=self._configuration,
            versions=cluster_versions(),
            work_dir=work_dir(self._settings),
            checkpoints_dir=checkpoints_dir(self._settings),
            savepoints=SavepointFiles(
                checkpoints_dir(self._settings),
                savepoints_dir(self._settings),
                spark=cluster_versions().pyspark,
                clock_ms=clock_ms,
                confined=bool(self._configuration.get(RUNNER_USER)),
            ),
            unshared_checkpoints=unshared_checkpoints(self._settings),
            clock_ms=clock_ms,
            boot_time_s=boot_time_s,
            random=Random(secrets.randbits(64)),  # noqa: S311 (jitter, not secrets)
            hostname=socket.gethostname(),
            mode=mode,
            workers=self._platform.workers(rpc.address),
            enrichers=load_enrichers(self._configuration.get(FAILURE_ENRICHERS)),
            registry=self._registry,
            current_job=self._current,
            lost_leaders=partial(_lost_leaders, self._blocking_jobs(ha)),
            count_lost_leader=partial(_count_lost_leader, self._blocking_jobs(ha)),
        )

    def _blocking_jobs(self, ha: HaServices) -> BlockingJobRecords:
        """Return the records that all JobManagers of the cluster see."""
        return ha.blocking_jobs or BlockingJobs(blocking_jobs_dir(self._settings), process_name(os.getpid()))

    def _rest_services(self, mode: DeploymentMode, components: JobManagerComponents, blobs: BlobServer) -> RestServices:
        return RestServices(
            dispatcher=components.dispatcher.gateway,
            resource_manager=components.resource_manager.gateway,
            blobs=blobs,
            configuration=self._configuration,
            versions=cluster_versions(),
            clock_ms=clock_ms,
            new_job_id=lambda: JobId(secrets.token_hex(16)),
            application=mode.application,
            registry=self._registry,
            logs=ProcessLogs.of(self._settings.state_dir / "log"),
            job_managers=components.job_managers.current,
        )

    async def _run_announced(self, components: JobManagerComponents, rest: str, rpc: str) -> ApplicationStatus:
        """Run the components, and announce in the state directory where they listen and when they lead."""
        announcements = Announcements(
            self._settings.state_dir,
            self._name,
            cluster_id=self._configuration.get(CLUSTER_ID),
            rest=rest,
            rpc=rpc,
        )
        async with asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(keep_announced(announcements, components.dispatcher), name="announcements")
            try:
                host, attempt = socket.gethostname(), self._platform.attempt
                return await components.run(LeaderAddresses(rest=rest, rpc=rpc, host=host, attempt=attempt))
            finally:
                announcing.cancel()

    def _rpc_security(self) -> RpcSecurity:
        bind = self._configuration.get(JM_BIND_HOST)
        option = JM_BIND_HOST if bind else JM_RPC_ADDRESS
        return rpc_security(self._settings, bind or self._configuration.get(JM_RPC_ADDRESS), option)

    def _rpc_server(self, security: RpcSecurity) -> RpcServer:
        host, port = self._configuration.get(JM_RPC_ADDRESS), self._configuration.get(JM_RPC_PORT)
        bind = self._configuration.get(JM_BIND_HOST) or host
        return RpcServer(reached_at(host), port, security=security, bind=bind)


async def serve(settings: ProcessSettings, instrument: Instrument = plain) -> ApplicationStatus:
    """Serve as a JobManager."""
    return await ClusterEntrypoint(settings, instrument).run()


async def _lost_leaders(records: BlockingJobRecords, job_ids: Collection[JobId]) -> Mapping[JobId, int]:
    return await asyncio.to_thread(records.lost_leaders, job_ids)


async def _count_lost_leader(records: BlockingJobRecords, job_id: JobId) -> None:
    await asyncio.to_thread(records.write, records.name(job_id))


def _epoch(dispatcher: CurrentDispatcher) -> Epoch | None:
    token = dispatcher.acting()
    return None if token is None else token.epoch


def clock_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(start("jobmanager", serve, uvloop.new_event_loop))

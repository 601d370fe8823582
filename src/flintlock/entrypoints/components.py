"""The components of one JobManager, put together from parts: Dispatcher, ResourceManager, JobMasters, leader watch.

The same objects compose real processes (gRPC, HA services, local workers) and simulated ones (a network in memory,
stores in memory, virtual time): what differs is in `JobManagerParts`. What differs between deployment modes is in
`DeploymentMode`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.leadership.leader_process import DispatcherLeaderProcessFactory, SessionLeaderProcessFactory
from flintlock.dispatcher.leadership.leader_watch import LeaderWatch
from flintlock.dispatcher.leadership.members import JobManagers
from flintlock.dispatcher.leadership.runner import DispatcherRunner
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.services import (
    BlobReferences,
    CountLostLeader,
    DispatcherServices,
    LostLeaders,
    NoSavepoints,
    Savepoints,
    TermOpener,
    TermServices,
    count_no_leader,
    no_lost_leaders,
)
from flintlock.entrypoints.term import CurrentResourceManager, TermParts
from flintlock.entrypoints.workers.providers import WorkerDriverOpener
from flintlock.gateways.leader import LeaderGateway, StandbyAddresses
from flintlock.ha.leader_info import KnownLeader, LeaderAddresses
from flintlock.ha.protocols import HaServices, Stores
from flintlock.jobmaster.enrichers import FailureEnricher
from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.model.application import ApplicationStatus
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobgraph import Versions
from flintlock.monitoring.current_job import CurrentJob
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.rpc.liveness import LIVENESS_CALL_TIMEOUT_S
from flintlock.rpc.transport import Connector, Host


@dataclass(frozen=True, kw_only=True)
class DeploymentMode:
    """What a cluster is for. It decides what a leader does, and what is left when the cluster has ended."""

    name: str
    leader_processes: Callable[[DispatcherServices, TermOpener], DispatcherLeaderProcessFactory]
    removes_ha_data: bool  # once the cluster has shut down with a final status
    application: JobId | None = None  # the program of an application cluster


#: A cluster that takes jobs from clients and outlives them. Shutting it down suspends its jobs; their data stays, so
#: that they go on when it is started again. `own_job` has the mode of a cluster for one job.
SESSION: Final = DeploymentMode(name="session", leader_processes=SessionLeaderProcessFactory, removes_ha_data=False)


@dataclass(frozen=True, kw_only=True)
class JobManagerParts:
    """What one JobManager is built from."""

    ha: HaServices
    host: Host
    connector: Connector
    blobs: BlobReferences
    configuration: Configuration
    versions: Versions
    work_dir: str
    checkpoints_dir: str
    clock_ms: Callable[[], int]  # the wall clock
    boot_time_s: Callable[[], float]  # only grows, also while the machine sleeps
    random: Random
    hostname: str
    mode: DeploymentMode = SESSION
    workers: WorkerDriverOpener | None = None  # active mode
    enrichers: tuple[FailureEnricher, ...] = ()
    registry: CollectorRegistry | None = None  # None: nothing is measured
    term_transport: Callable[[FencingToken], tuple[Host, Connector]] | None = None  # None: host and connector as above
    current_job: CurrentJob = field(default_factory=CurrentJob)  # which job the loop works on
    lost_leaders: LostLeaders = no_lost_leaders
    count_lost_leader: CountLostLeader = count_no_leader
    savepoints: Savepoints = field(default_factory=NoSavepoints)
    unshared_checkpoints: str = ""  # the directory of checkpoints, if it is one of this machine that was not chosen
    watches_leader: bool = True  # False: a dead leader is replaced when its session has expired, not before


class JobManagerComponents:
    """One JobManager: the gateways that it offers from the beginning, and `run`, which contends and leads."""

    def __init__(self, parts: JobManagerParts) -> None:
        self.dispatcher: Final = CurrentDispatcher(parts.ha.election.paused)
        self.resource_manager: Final = CurrentResourceManager()
        self.known_leader: Final = KnownLeader()
        self.job_managers: Final = JobManagers(parts.clock_ms)
        self._parts: Final = parts
        registry = parts.registry
        self._services: Final = DispatcherServices(
            blobs=parts.blobs,
            configuration=parts.configuration,
            versions=parts.versions,
            clock_ms=parts.clock_ms,
            boot_time_s=parts.boot_time_s,
            metrics=None if registry is None else DispatcherMetrics(registry),
            lost_leaders=parts.lost_leaders,
            count_lost_leader=parts.count_lost_leader,
            savepoints=parts.savepoints,
            unshared_checkpoints=parts.unshared_checkpoints,
        )
        self._term: Final = TermParts(
            host=parts.host,
            connector=parts.connector,
            resource_manager=self.resource_manager,
            configuration=parts.configuration,
            versions=parts.versions,
            work_dir=parts.work_dir,
            checkpoints_dir=parts.checkpoints_dir,
            clock_ms=parts.clock_ms,
            random=parts.random,
            workers=parts.workers,
            resource_manager_metrics=None if registry is None else ResourceManagerMetrics(registry),
            job_master_metrics=None if registry is None else JobMasterMetrics(registry),
            has_gone_on=parts.savepoints.has_gone_on,
            enrichers=parts.enrichers,
            current_job=parts.current_job,
            paused=parts.ha.election.paused,
        )

    async def run(self, addresses: LeaderAddresses) -> ApplicationStatus:
        """Contend for leadership and lead, until cancelled or until the cluster shuts down; return the status then.

        Raises (in a group) what is fatal to the process. However it ends, leadership is handed over first: before
        anything that takes time, and what is still under way is fenced off by the next term.
        """
        parts = self._parts
        runner = DispatcherRunner(
            parts.ha,
            parts.mode.leader_processes(self._services, self._open_term),
            self.dispatcher,
            addresses,
            members=self.job_managers,
            removes_ha_data=parts.mode.removes_ha_data,
        )
        withdraw = parts.host.serve(LeaderGateway, runner)
        status = ApplicationStatus.UNKNOWN
        try:
            async with asyncio.TaskGroup() as tasks:
                ends = [tasks.create_task(runner.run(), name="dispatcher-runner")]
                following = tasks.create_task(self.known_leader.follow(parts.ha.leader.changes()), name="known-leader")
                if parts.watches_leader:
                    ends.append(tasks.create_task(self._watch(runner, addresses).run(), name="leader-watch"))
                try:
                    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if all(task.exception() is None for task in done):  # else the group raises it
                        status = done.pop().result()
                finally:
                    self._hand_over()
                    for task in (*ends, following):
                        task.cancel()
        finally:
            withdraw()
        return status

    def _watch(self, runner: DispatcherRunner, addresses: LeaderAddresses) -> LeaderWatch:
        parts = self._parts
        return LeaderWatch(
            known=self.known_leader,
            register=parts.ha.leader,
            connect=lambda address: parts.connector.connect(LeaderGateway, address, None, LIVENESS_CALL_TIMEOUT_S),
            is_own=runner.is_in,
            own=StandbyAddresses(rest=addresses.rest, rpc=addresses.rpc, host=parts.hostname),
            attempt=addresses.attempt,
        )

    def _hand_over(self) -> None:
        token = self.dispatcher.leading
        if token is not None:
            self.dispatcher.withdraw(token)
        self._parts.ha.election.resign()

    def _open_term(self, token: FencingToken, stores: Stores) -> AbstractAsyncContextManager[TermServices]:
        if self._parts.term_transport is None:
            return self._term.open(token, stores)
        host, connector = self._parts.term_transport(token)
        return replace(self._term, host=host, connector=connector).open(token, stores)

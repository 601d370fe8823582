"""One term of leadership, put together: the ResourceManager, the JobMasters and their ways to the TaskManagers.

The same composition serves real processes (gRPC) and the simulated cluster (a network in memory): it knows a `Host`
that serves gateways and a `Connector` that reaches them, not which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import structlog

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.services import TermServices
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerConnector, TaskManagerGateway
from flintlock.gateways.workers import WorkerDriver, WorkerEnded
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.jobmaster.directory import JobMasterDirectory
from flintlock.jobmaster.endpoint import job_master_factory
from flintlock.jobmaster.enrichers import FailureEnricher
from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.jobmaster.services import HasGoneOn, JobMasterServices, never_gone_on
from flintlock.model import log_events
from flintlock.model.application import ShutDownCluster
from flintlock.model.errors import Fenced, FlintlockError, Unavailable
from flintlock.model.ids import FencingToken, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions
from flintlock.model.slots import TaskManagerInfo
from flintlock.monitoring.current_job import CurrentJob
from flintlock.monitoring.garbage import visit_everything_again
from flintlock.resourcemanager.endpoint import ResourceManager
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.rpc.description import Message
from flintlock.rpc.liveness import LIVENESS_CALL_TIMEOUT_S
from flintlock.rpc.routing import gated, routed
from flintlock.rpc.transport import DEFAULT_TIMEOUT_S, Connector, Host

log = structlog.get_logger()


class CurrentResourceManager:
    """The ResourceManager of the current term. Calls of its `gateway` raise Unavailable while there is no term."""

    def __init__(self) -> None:
        self.gateway: Final[ResourceManagerGateway] = routed(ResourceManagerGateway, self._resolve)
        self._current: ResourceManagerGateway | None = None  # written by `leads`, for the time of a term

    @contextmanager
    def leads(self, resource_manager: ResourceManagerGateway) -> Generator[None]:
        """Forward calls to this one while the context lasts."""
        self._current = resource_manager
        try:
            yield
        finally:
            self._current = None

    def _resolve(self, _message: Message) -> ResourceManagerGateway:
        if self._current is None:
            raise Unavailable("no JobManager leads this cluster at the moment")
        return self._current


class GatedWorkerDriver:
    """A WorkerDriver that starts and releases no worker while the leader must not act.

    Not a `gated` gateway: a driver is a part of this process, with properties and arguments that no message carries.
    """

    def __init__(self, driver: WorkerDriver, gate: LeaderGate) -> None:
        self._driver: Final = driver
        self._gate: Final = gate

    @property
    def slots(self) -> int:
        """How many slots a worker offers."""
        return self._driver.slots

    @property
    def resources(self) -> Resources:
        """What a worker has beside slots."""
        return self._driver.resources

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """Return the workers that an earlier leader started."""
        return await self._driver.taken_over()

    async def found(self) -> TaskManagerId:
        """Wait until a worker of an earlier leader becomes known later than those."""
        return await self._driver.found()

    async def start(self) -> TaskManagerId | None:
        """Start a worker."""
        await self._gate.wait_until_active()
        return await self._driver.start()

    def withdraw_start(self) -> bool:
        """Withdraw a start of this leader; that needs no leadership."""
        return self._driver.withdraw_start()

    async def release(self, worker: TaskManagerId) -> None:
        """End a worker."""
        await self._gate.wait_until_active()
        await self._driver.release(worker)

    async def release_all(self) -> None:
        """End all workers."""
        await self._gate.wait_until_active()
        await self._driver.release_all()

    async def ended(self) -> WorkerEnded:
        """Wait until a worker has ended by itself."""
        return await self._driver.ended()


@dataclass(frozen=True, kw_only=True)
class TermParts:
    """What the terms of one JobManager process are made from."""

    host: Host
    connector: Connector
    resource_manager: CurrentResourceManager
    configuration: Configuration
    versions: Versions
    work_dir: str
    checkpoints_dir: str
    clock_ms: Callable[[], int]
    random: Random
    workers: Callable[[FencingToken], AbstractAsyncContextManager[WorkerDriver]] | None = None  # active mode
    resource_manager_metrics: ResourceManagerMetrics | None = None
    job_master_metrics: JobMasterMetrics | None = None
    has_gone_on: HasGoneOn = never_gone_on
    enrichers: tuple[FailureEnricher, ...] = ()
    current_job: CurrentJob = field(default_factory=CurrentJob)
    paused: Callable[[FencingToken], str | None] = lambda _: None  # see LeaderElection.paused

    def open(self, token: FencingToken, stores: Stores) -> AbstractAsyncContextManager[TermServices]:
        """Open one term; leaving the scope ends all of it."""
        return _leading(self, token, stores)


@asynccontextmanager
async def _leading(parts: TermParts, token: FencingToken, stores: Stores) -> AsyncGenerator[TermServices]:
    directory = JobMasterDirectory()
    gate = LeaderGate(lambda: parts.paused(token))

    def connect(address: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TaskManagerGateway:
        target = parts.connector.connect(TaskManagerGateway, address, lambda: token, timeout_s)
        return gated(TaskManagerGateway, target, gate.wait_until_active, partial(_doubt, address, stores))

    def fence(presented: FencingToken | None) -> None:
        if presented is not None and presented != token:
            raise Fenced(f"epoch {presented.epoch} is over: epoch {token.epoch} leads")
        gate.check()  # a leader that does not know whether it leads registers no TaskManager and renews no lease

    async with AsyncExitStack() as term:
        term.callback(visit_everything_again)
        driver = None if parts.workers is None else await term.enter_async_context(parts.workers(token))
        workers = None if driver is None else GatedWorkerDriver(driver, gate)
        resource_manager = ResourceManager(
            job_masters=directory.gateway,
            task_managers=connect,
            liveness_connector=partial(connect, timeout_s=LIVENESS_CALL_TIMEOUT_S),
            token=token,
            versions=parts.versions,
            configuration=parts.configuration,
            clock_ms=parts.clock_ms,
            workers=workers,
            metrics=parts.resource_manager_metrics,
        )
        job_masters = job_master_factory(
            JobMasterServices(
                progress=stores.progress,
                resource_manager=resource_manager,
                task_managers=connect,
                directory=directory,
                configuration=parts.configuration,
                work_dir=parts.work_dir,
                checkpoints_dir=parts.checkpoints_dir,
                clock_ms=parts.clock_ms,
                random=parts.random,
                has_gone_on=parts.has_gone_on,
                enrichers=parts.enrichers,
                metrics=parts.job_master_metrics,
                gate=gate,
                current_job=parts.current_job,
            )
        )

        def admit() -> None:
            term.callback(parts.host.serve(ResourceManagerGateway, resource_manager, fence))
            term.callback(parts.host.serve(JobMasterGateway, directory.gateway, fence))

        async def stop_task_managers() -> None:
            seen = await resource_manager.task_managers()
            await asyncio.gather(*(_shut_down(connect, manager) for manager in seen.task_managers))
            if workers is not None:
                await workers.release_all()

        term.enter_context(parts.resource_manager.leads(resource_manager))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(resource_manager.run(), name=f"resourcemanager-{token.epoch}")
            try:
                yield TermServices(
                    stores=stores,
                    job_masters=job_masters,
                    resource_manager=resource_manager,
                    admit=admit,
                    stop_task_managers=stop_task_managers,
                    gate=gate,
                )
            finally:
                running.cancel()


async def _doubt(address: str, stores: Stores, error: FlintlockError) -> None:
    """Ask the store before a TaskManager's word ends the term. Raises Fenced if the store agrees, else Unavailable."""
    if isinstance(error, Fenced):
        await stores.confirm_term()
        log.warning(log_events.LEADER_NOT_FENCED, address=address, reason=error.public)
        raise Unavailable(
            f"the TaskManager at {address} follows another leader, which the store does not know: {error.public}"
        ) from error


async def _shut_down(connect: TaskManagerConnector, manager: TaskManagerInfo) -> None:
    """Have a TaskManager end. One that cannot be reached waits for the next leader, as it does after a crash."""
    try:
        await connect(manager.address).shut_down(ShutDownCluster())
    except FlintlockError as error:
        log.warning(log_events.TASKMANAGER_NOT_SHUT_DOWN, task_manager=manager.id, reason=error.public)

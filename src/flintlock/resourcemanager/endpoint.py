"""The ResourceManager's shell, for one term: hears everybody, tells JobMasters what its core decided.

The calls of the gateway answer as soon as the decision is made; nobody waits for a courier. Only a heartbeat that
tells of running attempts waits, for a moment, for the JobMasters' word on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

import structlog
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.taskmanager import TaskManagerConnector
from flintlock.gateways.workers import WorkerDriver
from flintlock.model import log_events
from flintlock.model.errors import Fenced, FlintlockError, Refused, Unavailable
from flintlock.model.ids import FencingToken, JobId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LogQuery, RemoveFiles
from flintlock.resourcemanager.active import ActiveWorkers, worker_rules
from flintlock.resourcemanager.attendance import attend
from flintlock.resourcemanager.capacity import Capacity
from flintlock.resourcemanager.core import Effect, ResourceManagerCore, TaskManagerEntered, TaskManagerLeft
from flintlock.resourcemanager.jobmaster_outbox import JobMasterOutbox, unwanted
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.resourcemanager.slot_manager import SlotRules

log: FilteringBoundLogger = structlog.get_logger()


class ResourceManager:
    """Implements ResourceManagerGateway. It hears everybody from the beginning, and speaks while `run` runs.

    `attending` gives gateways whose calls may stay open for long. With `workers`, TaskManagers are started when jobs
    wait for slots, and released when they are idle (active mode). Once `run` has ended, every call raises Unavailable.
    """

    def __init__(
        self,
        *,
        job_masters: JobMasterGateway,
        task_managers: TaskManagerConnector,
        attending: TaskManagerConnector,
        clock_ms: Callable[[], int],
        token: FencingToken,
        versions: Versions,
        configuration: Configuration,
        workers: WorkerDriver | None = None,
        metrics: ResourceManagerMetrics | None = None,
    ) -> None:
        self._job_masters = job_masters
        self._connect = task_managers
        self._connect_attending = attending
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._answer: Final = RegistrationAnswer(
            token=token,
            heartbeat_interval_s=configuration.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=configuration.get(options.HEARTBEAT_TIMEOUT),
        )
        self._core: Final = ResourceManagerCore(
            versions, self._answer.heartbeat_timeout_s, _slot_rules(configuration, workers)
        )
        self._couriers: Final = JobMasterOutbox(job_masters, self._core.slots.is_granted, self._forget_job)
        self._workers: Final = (
            None
            if workers is None
            else ActiveWorkers(workers, worker_rules(configuration), self._core.slots, self._lose)
        )
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._over = False  # it has run
        self._due_s = 0.0  # when `_watch` looks next
        self._sooner = asyncio.Event()  # set when it has to look before that
        self._lives: dict[TaskManagerId, TaskManagerEntered] = {}  # those that count
        self._attendants: dict[TaskManagerId, asyncio.Task[None]] = {}  # one for each of them, while it runs

    async def run(self) -> None:
        """Serve for a term. Ends only by being cancelled, or with Fenced if a newer leader was met."""
        try:
            with ExitStack() as shown:
                if self._metrics is not None:
                    shown.enter_context(self._metrics.reading(self._core.slots.counts, self._starting))
                async with asyncio.TaskGroup() as scope:
                    self._begin(scope)
                    try:
                        await self._watch()
                    finally:
                        self._scope, self._over = None, True
                        self._couriers.close()
        except* Fenced as group:
            raise Fenced("a JobMaster follows a newer leader") from group

    # For TaskManagers

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Take a TaskManager's offer; its slots are given out from its first heartbeat on.

        Asking again changes nothing. Raises Refused for one that does not fit.
        """
        self._require_term()
        if self._workers is not None and self._workers.is_leaving(message.id):
            raise Refused(f"TaskManager {message.id!r} is being released")
        try:
            self._core.register(message, _now_s())
        except Refused as error:
            log.warning(
                log_events.TASKMANAGER_REFUSED, task_manager=message.id, instance=message.instance, reason=error.public
            )
            raise
        return self._answer

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Note that a TaskManager lives; one that is not known has to register. Tell it what nobody waits for."""
        self._require_term()
        silence_s = self._core.silence_s(message, _now_s())
        if silence_s is not None and self._metrics is not None:
            self._metrics.heartbeat(silence_s - self._answer.heartbeat_interval_s)
        known, effects = self._core.heartbeat(message, _now_s())
        if effects:
            self._perform(effects)
        if not known:
            return HeartbeatAnswer(known=False)
        holders = self._core.slots.holders(message.id)
        found = await unwanted(self._job_masters, message, holders, self._answer.heartbeat_interval_s)
        return HeartbeatAnswer(known=True, unwanted=found)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Let a TaskManager go at once. Harmless if it is not known."""
        self._require_term()
        self._perform(self._core.unregister(message, _now_s()))

    # For JobMasters

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Replace all that a job wants. Idempotent."""
        self._require_term()
        self._perform(self._core.declare(message, self._clock_ms(), _now_s()))

    # For everybody

    async def overview(self) -> ResourceOverview:
        """Return TaskManagers and the queue."""
        self._require_term()
        return structs.replace(self._core.overview(_now_s(), self._clock_ms()), starting=self._starting())

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Ask the TaskManager that has it. Raises NotFound if that is not registered."""
        self._require_term()
        return await self._connect(self._core.address(message.task_manager)).read_log(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Have one TaskManager after another try it, until one has done it.

        Raises Unavailable if there is none, Refused if the last one refused.
        """
        self._require_term()
        problem: FlintlockError = Unavailable("no TaskManager is registered that could remove files")
        for address in self._core.addresses():
            try:
                await self._connect(address).remove_files(message)
                return
            except Fenced:
                raise
            except FlintlockError as error:
                log.warning(log_events.FILES_NOT_REMOVED, job_id=message.job_id, address=address, reason=error.public)
                problem = error
        if isinstance(problem, Refused | Unavailable):
            raise problem
        raise Unavailable(f"no TaskManager could remove the files of job {message.job_id}") from problem

    # Inside

    def _begin(self, scope: asyncio.TaskGroup) -> None:
        self._scope = scope
        self._core.slots.begin(_now_s())
        self._couriers.open(scope)
        for life in self._lives.values():
            self._attend(scope, life)
        if self._workers is not None:
            scope.create_task(self._workers.run(), name="workers")

    async def _watch(self) -> None:
        """Do what becomes due by itself. Who registers meanwhile cannot be overdue before this looks again."""
        while True:
            self._sooner.clear()
            self._due_s = _now_s() + self._core.next_due_s(_now_s()) + 0.001
            try:
                async with asyncio.timeout_at(self._due_s):
                    await self._sooner.wait()
            except TimeoutError:
                self._perform(self._core.hear_time(_now_s()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case TaskManagerEntered():
                    self._entered(effect)
                case TaskManagerLeft():
                    self._left(effect)
                case _:
                    self._couriers.tell(effect)
        if self._core.slots.next_give_up_s() < self._due_s:
            self._sooner.set()
        if self._workers is not None:
            self._workers.look()

    def _entered(self, life: TaskManagerEntered) -> None:
        log.info(log_events.TASKMANAGER_REGISTERED, task_manager=life.id, instance=life.instance)
        self._lives[life.id] = life
        if self._scope is not None:
            self._attend(self._scope, life)
        if self._workers is not None:
            self._workers.entered(life.id)

    def _left(self, left: TaskManagerLeft) -> None:
        del self._lives[left.id]
        attendant = self._attendants.pop(left.id, None)
        if attendant is not None:
            attendant.cancel()
        if self._workers is not None and self._workers.is_leaving(left.id):
            log.info(log_events.TASKMANAGER_RELEASED, task_manager=left.id, instance=left.instance, reason=left.reason)
            return
        log.warning(log_events.TASKMANAGER_LOST, task_manager=left.id, instance=left.instance, reason=left.reason)
        if self._metrics is not None:
            self._metrics.lost()
        if self._workers is not None:
            self._workers.left(left.id, left.reason, returns=left.returns)

    def _attend(self, scope: asyncio.TaskGroup, life: TaskManagerEntered) -> None:
        task = scope.create_task(self._attend_to(life), name=f"attend-{life.id}")
        self._attendants[life.id] = task

    async def _attend_to(self, life: TaskManagerEntered) -> None:
        try:
            gone = await attend(self._connect_attending(life.address), life)
        except FlintlockError as error:  # its silence will tell
            log.warning(
                log_events.TASKMANAGER_LIVENESS_CHECK_FAILED,
                task_manager=life.id,
                instance=life.instance,
                reason=error.public,
            )
            return
        self._perform(self._core.lose(life.id, life.instance, gone.reason, _now_s(), returns=gone.returns))

    def _lose(self, task_manager: TaskManagerId, reason: str) -> None:
        """Give up whatever life of that TaskManager counts: its process has ended, or is about to."""
        life = self._lives.get(task_manager)
        if life is not None:
            self._perform(self._core.lose(task_manager, life.instance, reason, _now_s()))

    def _forget_job(self, job_id: JobId) -> None:
        self._perform(self._core.declare(ResourceRequirements(job_id=job_id), self._clock_ms(), _now_s()))

    def _starting(self) -> int:
        return 0 if self._workers is None else self._workers.starting()

    def _require_term(self) -> None:
        if self._over:
            raise Unavailable("this ResourceManager's term is over")


def _slot_rules(configuration: Configuration, workers: WorkerDriver | None) -> SlotRules:
    return SlotRules(
        spread=configuration.get(options.LOAD_BALANCE) == "SLOTS",
        most=Capacity(
            configuration.get(options.MAX_SLOTS),
            configuration.get(options.MAX_CPU),
            configuration.get(options.MAX_MEMORY),
        ),
        patience_s=configuration.get(options.STANDALONE_START_UP),
        fresh=None if workers is None else Capacity(workers.slots, workers.resources.cpu, workers.resources.memory),
    )


def _now_s() -> float:
    """Return the loop's own time: it never jumps."""
    return asyncio.get_running_loop().time()

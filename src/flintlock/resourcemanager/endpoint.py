"""The ResourceManager's shell, for one leadership term: performs what its core decides.

The calls of the gateway return as soon as the decision is made; messages to JobMasters are delivered afterwards. Only a
heartbeat with attempts waits, briefly, for the JobMasters to say which of them are unwanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from msgspec import structs
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.taskmanager import TaskManagerConnector, TaskManagerGateway
from flintlock.gateways.workers import WorkerDriver
from flintlock.model import log_events
from flintlock.model.causes import caused_by, internal_cause
from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Refused, Unavailable
from flintlock.model.ids import FencingToken, JobId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegisteredTaskManagers,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LoggedJobs, LoggedJobsQuery, LogQuery, RemoveFiles, RemoveLogs
from flintlock.resourcemanager.active import ActiveWorkers, worker_rules
from flintlock.resourcemanager.capacity import Capacity
from flintlock.resourcemanager.core import (
    ResourceManagerCore,
    ResourceManagerEffect,
    TaskManagerEntered,
    TaskManagerLeft,
)
from flintlock.resourcemanager.jobmaster_outbox import JobMasterOutbox, find_unwanted
from flintlock.resourcemanager.liveness import SILENCE_MARGIN_S, watch_liveness
from flintlock.resourcemanager.metrics import ResourceManagerMetrics
from flintlock.resourcemanager.slot_manager import SlotRules

log: FilteringBoundLogger = structlog.get_logger()


class ResourceManager:
    """Implements ResourceManagerGateway. It accepts calls from the beginning, and sends messages while `run` runs.

    `liveness_connector` gives gateways whose calls may stay open for long. With `workers`, TaskManagers are started
    when jobs wait for slots, and released when they are idle (active mode). Once `run` has ended, every call raises
    Unavailable.
    """

    def __init__(
        self,
        *,
        job_masters: JobMasterGateway,
        task_managers: TaskManagerConnector,
        liveness_connector: TaskManagerConnector,
        clock_ms: Callable[[], int],
        token: FencingToken,
        versions: Versions,
        configuration: Configuration,
        workers: WorkerDriver | None = None,
        metrics: ResourceManagerMetrics | None = None,
    ) -> None:
        self._job_masters = job_masters
        self._connect = task_managers
        self._connect_for_liveness = liveness_connector
        self._clock_ms = clock_ms
        self._metrics = metrics or ResourceManagerMetrics(CollectorRegistry())  # else one that is never scraped
        self._answer: Final = RegistrationAnswer(
            token=token,
            heartbeat_interval_s=configuration.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=configuration.get(options.HEARTBEAT_TIMEOUT),
        )
        self._core: Final = ResourceManagerCore(
            versions, self._answer.heartbeat_timeout_s, _slot_rules(configuration, workers)
        )
        self._outbox: Final = JobMasterOutbox(job_masters, self._core.slots.is_granted, self._forget_job)
        self._workers: Final = (
            None
            if workers is None
            else ActiveWorkers(workers, worker_rules(configuration), self._core.slots, self._lose, self._gateway_of)
        )
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._over = False  # it has run
        self._timeouts = 0  # so far: their number is part of their cause ids
        self._due_s = 0.0  # when `_watch_timers` wakes next
        self._sooner = asyncio.Event()  # set when it has to wake before that
        self._of_higher_epochs: Final[set[TaskManagerId]] = set()  # that a warning was logged for
        self._registered: dict[TaskManagerId, TaskManagerEntered] = {}  # the incarnations that count
        self._liveness_watches: dict[TaskManagerId, asyncio.Task[None]] = {}  # one for each of them, while it runs

    async def run(self) -> None:
        """Serve for a term. Ends only by being cancelled, or with Fenced if a JobMaster follows a newer leader."""
        try:
            with self._metrics.reading(self._core.slots.counts, self._starting):
                async with asyncio.TaskGroup() as scope:
                    self._begin(scope)
                    try:
                        await self._watch_timers()
                    finally:
                        self._scope, self._over = None, True
                        self._outbox.close()
        except* Fenced as group:
            raise Fenced("a JobMaster follows a newer leader") from group

    # For TaskManagers

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Register a TaskManager; its slots are allocated from its first heartbeat on.

        Idempotent. Raises Refused for one that is incompatible or over.
        """
        self._require_term()
        if self._workers is not None and self._workers.is_being_released(message.id):
            raise Refused(f"TaskManager {message.id!r} is being released")
        self._compare_epochs(message)
        try:
            self._core.register(message, _now_s())
        except Refused as error:
            log.warning(
                log_events.TASKMANAGER_REFUSED, task_manager=message.id, instance=message.instance, reason=error.public
            )
            raise
        return self._answer

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Record a heartbeat and return which attempts are unwanted; an unknown TaskManager has to register."""
        self._require_term()
        silence_s = self._core.silence_s(message.id, message.instance, _now_s())
        if silence_s is not None:
            self._metrics.heartbeat(silence_s - self._answer.heartbeat_interval_s)
        known, effects = self._core.heartbeat(message, _now_s())
        if effects:
            self._perform(effects)
        if not known:
            return HeartbeatAnswer(known=False)
        holders = self._core.slots.holders(message.id)
        unwanted = await find_unwanted(self._job_masters, message, holders, self._answer.heartbeat_interval_s)
        self._core.heartbeat_answered(message, _now_s())
        return HeartbeatAnswer(known=True, unwanted=unwanted)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Remove a TaskManager without waiting for its timeout. Harmless if it is not known."""
        self._require_term()
        self._perform(self._core.unregister(message, _now_s()))

    # For JobMasters

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Replace all requests of a job. Idempotent."""
        self._require_term()
        self._perform(self._core.declare(message, _now_s()))

    # For other components

    async def task_managers(self) -> RegisteredTaskManagers:
        """Return TaskManagers, and the length of the queue."""
        self._require_term()
        return structs.replace(self._core.registered(_now_s(), self._clock_ms()), starting=self._starting())

    async def overview(self) -> ResourceOverview:
        """Return TaskManagers and the queue."""
        self._require_term()
        for _ in self._core.slots.waiting.describe_some(_now_s(), self._clock_ms()):
            await asyncio.sleep(0)
        self._require_term()
        return structs.replace(self._core.overview(_now_s(), self._clock_ms()), starting=self._starting())

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Read from the TaskManager that ran the attempt; if it is not registered, from one that has the log."""
        self._require_term()
        try:
            address = self._core.address(message.task_manager)
        except NotFound:
            return await self._read_log_anywhere(message)
        return await self._connect(address).read_log(message)

    async def _read_log_anywhere(self, message: LogQuery) -> LogChunk:
        """Read from whichever TaskManager has the log: those of one state directory share it. Raises NotFound."""
        for address in self._core.addresses():
            with suppress(NotFound, Unavailable):
                return await self._connect(address).read_log(message)
        raise NotFound(f"no TaskManager has the output of attempt {message.attempt}")

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Merge the pages of all registered TaskManagers: however many there are, no more is held than two pages."""
        self._require_term()
        found: list[JobId] = []
        for address in self._core.addresses():
            with suppress(Refused, Unavailable):  # Refused: another version
                page = (await self._connect(address).logged_jobs(message)).job_ids
                found = sorted({*found, *page})[: message.limit]
        return LoggedJobs(job_ids=tuple(found))

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Pass it on to all registered TaskManagers."""
        self._require_term()
        for address in self._core.addresses():
            with suppress(Refused, Unavailable):
                await self._connect(address).remove_logs(message)

    async def query_task_manager(self, message: ProcessQuery) -> ProcessAnswer:
        """Have the TaskManager answer. Raises NotFound if it is not registered."""
        self._require_term()
        return await self._connect(self._core.address(message.task_manager)).query_process(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Have one TaskManager after another try it, until one succeeds.

        Raises Unavailable if there is none, or while an attempt of the job that no JobMaster claims still runs: it
        would write after the removal. Refused if the last one refused.
        """
        self._require_term()
        carried = self._core.slots.find_carried(message.job_id)
        if carried is not None:
            attempt, task_manager = carried
            raise Unavailable(f"attempt {attempt} has not ended yet on TaskManager {task_manager!r}")
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

    def _compare_epochs(self, message: TaskManagerRegistration) -> None:
        """Warn of a TaskManager that follows a higher epoch: this leader's store was removed, or restored."""
        followed, own = message.followed_epoch, self._answer.token.epoch
        if followed is None or followed <= own or message.id in self._of_higher_epochs:
            return
        self._of_higher_epochs.add(message.id)
        log.warning(
            log_events.TASKMANAGER_FOLLOWS_HIGHER_EPOCH,
            task_manager=message.id,
            followed=followed,
            epoch=own,
            follows_after_s=self._answer.heartbeat_timeout_s,
        )

    def _begin(self, scope: asyncio.TaskGroup) -> None:
        self._scope = scope
        self._core.slots.begin(_now_s())
        self._outbox.open(scope)
        for incarnation in self._registered.values():
            self._start_liveness_watch(scope, incarnation)
        if self._workers is not None:
            scope.create_task(self._workers.run(), name="workers")

    async def _watch_timers(self) -> None:
        """Do what becomes due. A TaskManager that registers meanwhile cannot be overdue before the next wake-up."""
        while True:
            self._sooner.clear()
            self._due_s = _now_s() + self._core.next_due_s(_now_s()) + 0.001
            try:
                async with asyncio.timeout_at(self._due_s):
                    await self._sooner.wait()
            except TimeoutError:
                self._timeouts += 1
                with caused_by(internal_cause("resourcemanager-timeout", self._answer.token.epoch, self._timeouts)):
                    self._perform(self._core.on_tick(_now_s()))

    def _perform(self, effects: Iterable[ResourceManagerEffect]) -> None:
        for effect in effects:
            match effect:
                case TaskManagerEntered():
                    self._entered(effect)
                case TaskManagerLeft():
                    self._left(effect)
                case _:
                    self._outbox.send(effect)
        if self._core.slots.next_give_up_s() < self._due_s:
            self._sooner.set()
        if self._workers is not None:
            self._workers.wake()

    def _gateway_of(self, task_manager: TaskManagerId) -> TaskManagerGateway | None:
        known = self._registered.get(task_manager)
        return None if known is None else self._connect(known.address)

    def _entered(self, incarnation: TaskManagerEntered) -> None:
        log.info(log_events.TASKMANAGER_REGISTERED, task_manager=incarnation.id, instance=incarnation.instance)
        self._registered[incarnation.id] = incarnation
        if self._scope is not None:
            self._start_liveness_watch(self._scope, incarnation)
        if self._workers is not None:
            self._workers.entered(incarnation.id, is_worker=incarnation.worker)

    def _left(self, left: TaskManagerLeft) -> None:
        del self._registered[left.id]
        watch = self._liveness_watches.pop(left.id, None)
        if watch is not None:
            watch.cancel()
        if self._workers is not None and self._workers.is_being_released(left.id):
            log.info(log_events.TASKMANAGER_RELEASED, task_manager=left.id, instance=left.instance, reason=left.reason)
            return
        write = log.info if left.returns else log.warning  # one that shuts down, or comes back, needs no attention
        write(log_events.TASKMANAGER_LOST, task_manager=left.id, instance=left.instance, reason=left.reason)
        self._metrics.lost()
        if self._workers is not None:
            self._workers.left(left.id, left.reason, returns=left.returns)

    def _start_liveness_watch(self, scope: asyncio.TaskGroup, incarnation: TaskManagerEntered) -> None:
        task = scope.create_task(self._watch_liveness(incarnation), name=f"liveness-{incarnation.id}")
        self._liveness_watches[incarnation.id] = task

    async def _watch_liveness(self, incarnation: TaskManagerEntered) -> None:
        try:
            gone = await watch_liveness(
                self._connect_for_liveness(incarnation.address),
                incarnation,
                is_silent=partial(self._is_silent, incarnation),
                set_reachable=partial(self._set_reachable, incarnation),
            )
        except FlintlockError as error:  # its heartbeat timeout decides
            log.warning(
                log_events.TASKMANAGER_LIVENESS_CHECK_FAILED,
                task_manager=incarnation.id,
                instance=incarnation.instance,
                reason=error.public,
            )
            return
        with caused_by(internal_cause("taskmanager-lost", incarnation.id)):
            self._perform(
                self._core.lose(incarnation.id, incarnation.instance, gone.reason, _now_s(), returns=gone.returns)
            )

    def _is_silent(self, incarnation: TaskManagerEntered) -> bool:
        silence_s = self._core.silence_s(incarnation.id, incarnation.instance, _now_s())
        return silence_s is None or silence_s > self._answer.heartbeat_interval_s + SILENCE_MARGIN_S

    def _set_reachable(self, incarnation: TaskManagerEntered, reachable: bool) -> None:
        if reachable:
            log.info(log_events.TASKMANAGER_REACHABLE_AGAIN, task_manager=incarnation.id, address=incarnation.address)
        else:
            log.warning(log_events.TASKMANAGER_UNREACHABLE, task_manager=incarnation.id, address=incarnation.address)
        self._perform(self._core.set_reachable(incarnation.id, incarnation.instance, reachable, _now_s()))

    def _lose(self, task_manager: TaskManagerId, reason: str) -> None:
        """Remove the incarnation of that TaskManager that counts, if any: its process has ended, or is about to."""
        incarnation = self._registered.get(task_manager)
        if incarnation is not None:
            with caused_by(internal_cause("taskmanager-lost", task_manager)):
                self._perform(self._core.lose(task_manager, incarnation.instance, reason, _now_s()))

    def _forget_job(self, job_id: JobId) -> None:
        self._perform(self._core.declare(ResourceRequirements(job_id=job_id), _now_s()))

    def _starting(self) -> int:
        return 0 if self._workers is None else self._workers.starting()

    def _require_term(self) -> None:
        if self._over:
            raise Unavailable("this ResourceManager's term is over")


def _slot_rules(configuration: Configuration, workers: WorkerDriver | None) -> SlotRules:
    return SlotRules(
        spread=configuration.get(options.LOAD_BALANCE) == "SLOTS",
        limit=Capacity(
            configuration.get(options.MAX_SLOTS),
            configuration.get(options.MAX_CPU),
            configuration.get(options.MAX_MEMORY),
        ),
        start_up_s=configuration.get(options.STANDALONE_START_UP),
        fresh=None if workers is None else Capacity(workers.slots, workers.resources.cpu, workers.resources.memory),
    )


def _now_s() -> float:
    """Return the loop's own time, which never jumps."""
    return asyncio.get_running_loop().time()

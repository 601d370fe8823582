"""Active mode, performed: has workers started and released as `workers` decides, and reports their ends to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.gateways.workers import WorkerDriver
from flintlock.model import log_events
from flintlock.model.application import ShutDownCluster
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.resourcemanager.slot_manager import SlotManager
from flintlock.resourcemanager.workers import (
    ReleaseWorker,
    StartWorker,
    WithdrawStart,
    WorkerOrder,
    WorkerRules,
    Workers,
)

log: FilteringBoundLogger = structlog.get_logger()


_PAUSE_S: Final = 0.02  # events that come together are decided together
_RELEASE_RETRY_S: Final = 1.0


class ActiveWorkers:
    """Keeps as many workers as the queue needs, while `run` runs."""

    def __init__(
        self,
        driver: WorkerDriver,
        rules: WorkerRules,
        slots: SlotManager,
        lose: Callable[[TaskManagerId, str], None],
        gateway_of: Callable[[TaskManagerId], TaskManagerGateway | None],
    ) -> None:
        self._driver = driver
        self._workers: Final = Workers(rules)
        self._slots = slots
        self._lose = lose  # declares a TaskManager lost whose process has ended or is about to
        self._gateway_of = gateway_of  # of a registered TaskManager
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._changed = asyncio.Event()  # decide again

    async def run(self) -> None:
        """Start and release workers until cancelled. Those that run then are the next leader's."""
        async with asyncio.TaskGroup() as scope:
            self._scope = scope
            scope.create_task(self._watch_ends(), name="worker-ends")
            scope.create_task(self._watch_found(), name="workers-found")
            try:
                await self._take_over()
                while True:
                    self._changed.clear()
                    self._perform(self._workers.decide(self._slots.missing_workers, self._slots.idle_since_s, _now_s()))
                    await asyncio.sleep(_PAUSE_S)
                    await self._wait()
            finally:
                self._scope = None

    def wake(self) -> None:
        """Decide again soon: the queue may have changed."""
        self._changed.set()

    def starting(self) -> int:
        """Return how many workers are starting."""
        return self._workers.coming()

    def is_being_released(self, task_manager: TaskManagerId) -> bool:
        """Return whether that is a worker that is being released."""
        return self._workers.is_being_released(task_manager)

    def entered(self, task_manager: TaskManagerId, *, is_worker: bool) -> None:
        """A TaskManager has registered, a worker or not."""
        self._workers.entered(task_manager, _now_s(), is_worker=is_worker)

    def left(self, task_manager: TaskManagerId, reason: str, *, returns: bool) -> None:
        """A TaskManager was lost, a worker or not."""
        self._perform(self._workers.left(task_manager, reason, returns=returns, now_s=_now_s()))

    # Inside

    async def _take_over(self) -> None:
        """Expect the workers of earlier leaders: until they are known, none is started in their place."""
        found = await self._driver.taken_over()
        if found:
            log.info(log_events.WORKERS_TAKEN_OVER, task_managers=found)
        self._workers.take_over(found, _now_s())

    async def _wait(self) -> None:
        due_s = self._workers.next_due_s(self._slots.idle_since_s, _now_s())
        try:
            async with asyncio.timeout(None if due_s == float("inf") else due_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _perform(self, orders: Iterable[WorkerOrder]) -> None:
        for order in orders:
            if self._scope is None:
                continue  # the term is over, and so are its workers
            match order:
                case StartWorker():
                    self._scope.create_task(self._start(), name="start-worker")
                case WithdrawStart():
                    self._withdraw_start()
                case ReleaseWorker(id=worker, reason=reason):
                    gateway = self._gateway_of(worker)
                    self._lose(worker, reason)
                    self._scope.create_task(self._release(worker, reason, gateway), name=f"release-{worker}")

    async def _start(self) -> None:
        try:
            worker = await self._driver.start()
        except Unavailable as error:
            log.error(log_events.WORKER_NOT_STARTED, reason=error.public)
            self._workers.start_failed(_now_s())
        else:
            if worker is None:
                return  # withdrawn, and counted as that
            log.info(log_events.WORKER_STARTED, task_manager=worker)
            self._workers.started(worker, _now_s())
        self.wake()

    def _withdraw_start(self) -> None:
        if self._driver.withdraw_start():
            log.info(log_events.WORKER_START_WITHDRAWN)
            self._workers.withdrawn()

    async def _release(self, worker: TaskManagerId, reason: str, gateway: TaskManagerGateway | None) -> None:
        log.info(log_events.WORKER_RELEASED, task_manager=worker, reason=reason)
        if gateway is not None:  # the driver cannot end one on another machine
            with suppress(FlintlockError):
                await gateway.shut_down(ShutDownCluster())
        while True:
            try:
                await self._driver.release(worker)
                break
            except FlintlockError as error:
                log.warning(log_events.WORKER_NOT_RELEASED, task_manager=worker, reason=error.public)
                await asyncio.sleep(_RELEASE_RETRY_S)
        self._workers.released(worker)
        self.wake()

    async def _watch_found(self) -> None:
        while True:
            found = await self._driver.found()
            log.info(log_events.WORKERS_TAKEN_OVER, task_managers=(found,))
            self._workers.take_over((found,), _now_s())
            self.wake()

    async def _watch_ends(self) -> None:
        while True:
            ended = await self._driver.ended()
            log.warning(log_events.WORKER_ENDED, task_manager=ended.id, reason=ended.reason)
            self._workers.ended(ended.id, _now_s())
            self._lose(ended.id, ended.reason)
            self.wake()


def worker_rules(configuration: Configuration) -> WorkerRules:
    """Return the rules as configured."""
    return WorkerRules(
        limit=configuration.get(options.MAX_TASK_MANAGERS),
        idle_s=configuration.get(options.TASK_MANAGER_IDLE),
        retry_s=configuration.get(options.START_RETRY),
        registration_s=configuration.get(options.REGISTRATION_TIMEOUT),
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()

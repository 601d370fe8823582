"""Active mode, done: has workers started and released as `workers` decides, and hears of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.gateways.workers import WorkerDriver
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.resourcemanager.slot_manager import SlotManager
from flintlock.resourcemanager.workers import Order, ReleaseWorker, StartWorker, WorkerRules, Workers

log: FilteringBoundLogger = structlog.get_logger()


_PAUSE_S: Final = 0.02  # what happens together is looked at together
_RELEASE_AGAIN_S: Final = 1.0


class ActiveWorkers:
    """Keeps as many workers as the queue needs, while `run` runs."""

    def __init__(
        self,
        driver: WorkerDriver,
        rules: WorkerRules,
        slots: SlotManager,
        lose: Callable[[TaskManagerId, str], None],
    ) -> None:
        self._driver = driver
        self._workers: Final = Workers(rules)
        self._slots = slots
        self._lose = lose  # gives up a TaskManager whose process has ended or is about to
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._news = asyncio.Event()  # something has happened: look again

    async def run(self) -> None:
        """Look after workers until cancelled. What was started is the driver's to end."""
        async with asyncio.TaskGroup() as scope:
            self._scope = scope
            scope.create_task(self._hear_ends(), name="worker-ends")
            try:
                while True:
                    self._news.clear()
                    self._perform(self._workers.decide(self._slots.missing_workers, self._slots.idle_since_s, _now_s()))
                    await asyncio.sleep(_PAUSE_S)
                    await self._wait()
            finally:
                self._scope = None

    def look(self) -> None:
        """Look again soon: the queue may have changed."""
        self._news.set()

    def starting(self) -> int:
        """Return how many workers are on their way."""
        return self._workers.coming()

    def is_leaving(self, task_manager: TaskManagerId) -> bool:
        """Tell whether that is a worker that is being released."""
        return self._workers.is_leaving(task_manager)

    def entered(self, task_manager: TaskManagerId) -> None:
        """Hear that a TaskManager has registered, a worker or not."""
        self._workers.entered(task_manager, _now_s())

    def left(self, task_manager: TaskManagerId, reason: str, *, returns: bool) -> None:
        """Hear that a TaskManager was lost, a worker or not."""
        self._perform(self._workers.left(task_manager, reason, returns=returns, now_s=_now_s()))

    # Inside

    async def _wait(self) -> None:
        due_s = self._workers.next_due_s(self._slots.idle_since_s, _now_s())
        try:
            async with asyncio.timeout(None if due_s == float("inf") else due_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _perform(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if self._scope is None:
                continue  # the term is over, and so are its workers
            match order:
                case StartWorker():
                    self._scope.create_task(self._start(), name="start-worker")
                case ReleaseWorker(id=worker, reason=reason):
                    self._lose(worker, reason)
                    self._scope.create_task(self._release(worker, reason), name=f"release-{worker}")

    async def _start(self) -> None:
        try:
            worker = await self._driver.start()
        except Unavailable as error:
            log.error(log_events.WORKER_NOT_STARTED, reason=error.public)
            self._workers.start_failed(_now_s())
        else:
            log.info(log_events.WORKER_STARTED, task_manager=worker)
            self._workers.started(worker, _now_s())
        self.look()

    async def _release(self, worker: TaskManagerId, reason: str) -> None:
        log.info(log_events.WORKER_RELEASED, task_manager=worker, reason=reason)
        while True:
            try:
                await self._driver.release(worker)
                break
            except FlintlockError as error:
                log.warning(log_events.WORKER_NOT_RELEASED, task_manager=worker, reason=error.public)
                await asyncio.sleep(_RELEASE_AGAIN_S)
        self._workers.released(worker)
        self.look()

    async def _hear_ends(self) -> None:
        while True:
            ended = await self._driver.ended()
            log.warning(log_events.WORKER_ENDED, task_manager=ended.id, reason=ended.reason)
            self._workers.ended(ended.id, _now_s())
            self._lose(ended.id, ended.reason)
            self.look()


def worker_rules(configuration: Configuration) -> WorkerRules:
    """Return the rules as configured."""
    return WorkerRules(
        most=configuration.get(options.MAX_TASK_MANAGERS),
        idle_s=configuration.get(options.TASK_MANAGER_IDLE),
        retry_s=configuration.get(options.START_RETRY),
        registration_s=configuration.get(options.REGISTRATION_TIMEOUT),
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()

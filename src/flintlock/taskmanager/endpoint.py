"""The TaskManager's shell: keeps an engine alive, stays registered, and passes orders to the engine's life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from msgspec import structs

from flintlock.gateways.engine import SparkHouse
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model.errors import Fenced, NotFound, Refused, Unavailable
from flintlock.model.ids import AttemptId, BlobKey, FencingToken, InstanceId
from flintlock.model.slots import Heartbeat, RegistrationAnswer, TaskManagerRegistration
from flintlock.model.tasks import (
    CancelTask,
    DeployTask,
    LogChunk,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    TaskNews,
    TaskReport,
)
from flintlock.taskmanager.core import TaskManagerCore
from flintlock.taskmanager.life import EngineLife, HoldBlobs
from flintlock.taskmanager.outbox import Outbox
from flintlock.taskmanager.registration import Registration

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_LAST_REPORTS_S: Final = 5.0
log = structlog.get_logger()


def make_log_directory(path: Path) -> None:
    """Make the directory that an attempt's output goes to. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class TaskManagerServices:
    """What a TaskManager is made of; the leader's gateways are looked up anew for each call."""

    offer: TaskManagerRegistration
    house: SparkHouse
    resource_manager: Callable[[], ResourceManagerGateway]
    job_masters: Callable[[], JobMasterGateway]
    fetch_blob: Callable[[BlobKey], Awaitable[Path]]
    log_directory: Path
    new_instance: Callable[[], InstanceId]
    free_memory: Callable[[], int] = lambda: 0
    hold_blobs: HoldBlobs = lambda _: nullcontext()
    prepare_log: Callable[[Path], None] = make_log_directory  # before each attempt; a simulation has no disk


class TokenGuard:
    """Whom this TaskManager follows. A lower epoch is refused, a higher one adopted; checked before any handler."""

    def __init__(self) -> None:
        self.token: FencingToken | None = None

    def check(self, token: FencingToken | None) -> None:
        """Let the caller pass, or raise Fenced."""
        if token is None:
            raise Fenced("a command to a TaskManager must carry its leader's token")
        if self.token is not None and token.epoch < self.token.epoch:
            raise Fenced(f"epoch {token.epoch} is over: this TaskManager follows epoch {self.token.epoch}")
        if self.token is not None and token.epoch == self.token.epoch and token.session != self.token.session:
            raise Fenced(f"epoch {token.epoch} belongs to another leader")
        self.token = token

    def adopt(self, answer: RegistrationAnswer) -> None:
        """Follow the leader who took us in. Raises Fenced if a newer one was heard of."""
        self.check(answer.token)


class TaskManager:
    """Implements TaskManagerGateway. `run` is its whole life; cancelled, it ends everything that it started."""

    def __init__(self, services: TaskManagerServices, guard: TokenGuard) -> None:
        self._services = services
        self._guard = guard
        self._life: EngineLife | None = None  # written by run: None while there is no warm engine
        self._registration: Registration | None = None  # written together with it
        self._ended: tuple[AttemptId, ...] = ()  # written as each engine's life ends, for the next one

    async def run(self) -> None:
        """Keep an engine running and registered; start another when it dies, with growing pauses if it cannot start."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                cause = await self._live()
                backoff_s = _FIRST_BACKOFF_S
                log.error("engine-died", cause=cause)
            except Unavailable as error:
                log.error("engine-cannot-start", reason=error.public, retry_s=backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)

    async def deploy(self, message: DeployTask) -> None:
        """Take the attempt; what happens to it is reported."""
        life = self._living()
        instance = self._registration.instance if self._registration is not None else None
        if message.instance not in (None, instance):
            raise Refused(f"attempt {message.attempt} is meant for an earlier life of this TaskManager")
        life.deploy(message)

    async def cancel(self, message: CancelTask) -> None:
        """Begin to end an attempt."""
        self._living().cancel(message)

    async def publish(self, message: PublishFiles) -> None:
        """Begin to publish an accepted attempt."""
        self._living().publish(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Remove directories that are Flintlock's own."""
        await self._living().remove_files(message)

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return a piece of an attempt's output."""
        path = self.log_path(message.attempt)
        running = self._life is not None and message.attempt in self._life.running()
        return await asyncio.to_thread(_read_log, path, message, running)

    def log_path(self, attempt: AttemptId) -> Path:
        """Return where an attempt's output is captured."""
        return self._services.log_directory / attempt.job_id / f"{attempt.region}-{attempt.attempt}.log"

    async def _live(self) -> str:
        """Live one engine's life and return why it ended.

        When it is over, the engine is gone before its attempts are reported, and they before good-bye is said: whoever
        tries again never meets them still alive. A TaskManager that is to stop takes the same way, without reports.
        """
        services = self._services
        async with AsyncExitStack() as house:
            engine, runners = await house.enter_async_context(services.house.open())
            async with asyncio.TaskGroup() as tasks:
                outbox = Outbox(tasks, services.job_masters)
                core = TaskManagerCore(services.offer.slots, self._ended)
                life = EngineLife(
                    core=core,
                    engine=engine,
                    runners=runners,
                    tasks=tasks,
                    fetch_blob=services.fetch_blob,
                    hold_blobs=services.hold_blobs,
                    log_path=self.log_path,
                    prepare_log=services.prepare_log,
                    report=lambda attempt, news: self._send(outbox, registration, attempt, news),
                )
                registration = self._registration_of(life, outbox)
                self._life, self._registration = life, registration
                registered = tasks.create_task(registration.keep(), name="registration")
                cause = "the TaskManager stops"
                try:
                    cause = await life.ended()
                except asyncio.CancelledError:
                    outbox.close()
                    raise
                finally:
                    self._life = None
                    life.doom(cause)
                    await house.aclose()
                    await life.finish()
                    self._ended = core.ended()
                    await _within(outbox.drained(), _LAST_REPORTS_S)
                    outbox.close()
                    registered.cancel()
                    await registration.leave()
        return cause

    def _registration_of(self, life: EngineLife, outbox: Outbox) -> Registration:
        services = self._services

        async def end_everything() -> None:
            outbox.clear()
            await life.end_all()
            outbox.clear()

        return Registration(
            offer=structs.replace(services.offer, instance=services.new_instance()),
            resource_manager=services.resource_manager,
            adopt=self._guard.adopt,
            heartbeat=lambda instance: self._heartbeat(life, instance),
            end_everything=end_everything,
            new_instance=services.new_instance,
        )

    def _send(self, outbox: Outbox, registration: Registration, attempt: AttemptId, news: TaskNews) -> None:
        outbox.send(
            TaskReport(
                attempt=attempt,
                task_manager=self._services.offer.id,
                instance=registration.instance,
                news=news,
            )
        )

    def _heartbeat(self, life: EngineLife, instance: InstanceId) -> Heartbeat:
        return Heartbeat(
            id=self._services.offer.id,
            instance=instance,
            running=life.running(),
            free_memory=self._services.free_memory(),
        )

    def _living(self) -> EngineLife:
        if self._life is None:
            raise Unavailable("this TaskManager has no Spark engine at the moment")
        return self._life


async def _within(work: Awaitable[None], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning("reports-undelivered")


def _read_log(path: Path, query: LogQuery, running: bool) -> LogChunk:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = max(size + query.offset, 0) if query.offset < 0 else min(query.offset, size)
            file.seek(offset)
            return LogChunk(data=file.read(query.limit), offset=offset, size=size, complete=not running)
    except FileNotFoundError:
        raise NotFound(f"no output of attempt {query.attempt} is here") from None

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

from flintlock.gateways.engine import EngineLauncher, ProcessTable
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model import log_events
from flintlock.model.errors import Fenced, NotFound, Refused, Unavailable
from flintlock.model.ids import AttemptId, BlobKey, FencingToken, InstanceId
from flintlock.model.slots import Attendance, RegistrationAnswer, TaskManagerRegistration
from flintlock.model.tasks import (
    CancelTask,
    DeployTask,
    LogChunk,
    LogQuery,
    PublishFiles,
    RemoveFiles,
)
from flintlock.taskmanager.core import TaskManagerCore
from flintlock.taskmanager.engine_session import EngineSession, HoldBlobs
from flintlock.taskmanager.outbox import Outbox
from flintlock.taskmanager.registration import Registration
from flintlock.taskmanager.work import LeasedWork

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_LAST_REPORTS_S: Final = 5.0
log = structlog.get_logger()


def loop_s() -> float:
    """Return the loop's own time: the clock of leases where nobody needs one that runs while the machine sleeps."""
    return asyncio.get_running_loop().time()


async def never() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


def make_log_directory(path: Path) -> None:
    """Make the directory that an attempt's output goes to. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, kw_only=True)
class TaskManagerServices:
    """What a TaskManager is made of; the leader's gateways are looked up anew for each call."""

    offer: TaskManagerRegistration
    house: EngineLauncher
    resource_manager: Callable[[], ResourceManagerGateway]
    job_masters: Callable[[], JobMasterGateway]
    fetch_blob: Callable[[BlobKey], Awaitable[Path]]
    log_directory: Path
    new_instance: Callable[[], InstanceId]
    free_memory: Callable[[], int] = lambda: 0
    hold_blobs: HoldBlobs = lambda _: nullcontext()
    prepare_log: Callable[[Path], None] = make_log_directory  # before each attempt; a simulation has no disk
    clock_s: Callable[[], float] = loop_s  # of leases
    watch: Callable[[float], None] = lambda _: None  # tells the watchdog until when all work has to have ended
    processes: ProcessTable | None = None  # None: there are none to look at
    moved: Callable[[], Awaitable[None]] = never  # returns when another leads than `resource_manager` found last


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
        self._life: EngineSession | None = None  # written by run: None while there is no warm engine
        self._work: LeasedWork | None = None  # written together with it
        self._ended: tuple[AttemptId, ...] = ()  # written as each engine's life ends, for the next one
        self._engines = 0  # started so far
        self._alive: InstanceId | None = None  # the life whose work may be here; written by _begin
        self._turned = asyncio.Event()  # set, and replaced, whenever another life begins or this one is over

    async def run(self) -> None:
        """Keep an engine running and registered; start another when it dies, with growing pauses if it cannot start."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                cause = await self._live()
                backoff_s = _FIRST_BACKOFF_S
                log.error(log_events.ENGINE_DIED, cause=cause)
            except Unavailable as error:
                log.error(log_events.ENGINE_START_FAILED, reason=error.public, retry_s=backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _LONGEST_BACKOFF_S)

    async def deploy(self, message: DeployTask) -> None:
        """Take the attempt; what happens to it is reported."""
        life = self._living()
        work = self._work
        if work is None or message.instance not in (None, work.registration.instance):
            raise Refused(f"attempt {message.attempt} is meant for an earlier life of this TaskManager")
        if not work.registration.is_open():
            raise Unavailable("this TaskManager has no lease to run anything: it has lost its leader")
        life.deploy(message)
        work.watch()

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

    async def attend(self, message: Attendance) -> None:
        """Answer when that life is over, with all its work."""
        while self._alive == message.instance:
            await self._turned.wait()

    async def _live(self) -> str:
        """Live one engine's life and return why it ended.

        When it is over, the engine is gone before its attempts are reported, and they before good-bye is said: whoever
        tries again never meets them still alive. A TaskManager that is to stop takes the same way, without reports, and
        so does one whose lease has ended: nobody waits for its word.
        """
        services = self._services
        async with AsyncExitStack() as house:
            engine, runners = await house.enter_async_context(services.house.open())
            async with asyncio.TaskGroup() as tasks:
                work = self._leased_work(Outbox(tasks, services.job_masters))
                core = TaskManagerCore(services.offer.slots, self._ended)
                life = EngineSession(
                    core=core,
                    engine=engine,
                    runners=runners,
                    tasks=tasks,
                    fetch_blob=services.fetch_blob,
                    hold_blobs=services.hold_blobs,
                    log_path=self.log_path,
                    prepare_log=services.prepare_log,
                    report=work.report,
                    emptied=work.watch,
                    processes=services.processes,
                )
                work.cover(life, self._registration(work))
                self._life, self._work = life, work
                self._begin(work.registration.instance)
                errands = (
                    tasks.create_task(work.registration.keep(), name="registration"),
                    tasks.create_task(work.registration.mind_news(), name="news-of-the-leader"),
                    tasks.create_task(life.look_after_processes(), name="processes"),
                )
                cause = "the TaskManager stops"
                try:
                    cause = await life.ended()
                except asyncio.CancelledError:
                    work.outbox.close()
                    raise
                finally:
                    self._life = None
                    life.doom(cause)
                    await house.aclose()
                    await life.finish()
                    self._ended = core.ended()
                    await self._say_good_bye(work, errands)
        return cause

    async def _say_good_bye(self, work: LeasedWork, errands: tuple[asyncio.Task[None], ...]) -> None:
        """Nothing runs any more: tell what is still to be told, then leave."""
        try:
            if work.registration.has_lapsed():
                work.outbox.clear()  # whoever was to hear it has given us up
            await _within(work.outbox.drained(), _LAST_REPORTS_S)
            work.outbox.close()
            for errand in errands:
                errand.cancel()
            await work.registration.leave()
        finally:
            self._begin(None)

    def _leased_work(self, outbox: Outbox) -> LeasedWork:
        services, engines = self._services, self._engines
        self._engines += 1
        return LeasedWork(
            task_manager=services.offer.id,
            outbox=outbox,
            begin=self._begin,
            watch=services.watch,
            clock_s=services.clock_s,
            free_memory=services.free_memory,
            processes=services.processes,
            engine_restarts=engines,
        )

    def _registration(self, work: LeasedWork) -> Registration:
        services = self._services
        return Registration(
            offer=structs.replace(services.offer, instance=services.new_instance()),
            resource_manager=services.resource_manager,
            adopt=self._guard.adopt,
            work=work,
            new_instance=services.new_instance,
            clock_s=services.clock_s,
            moved=services.moved,
        )

    def _begin(self, instance: InstanceId | None) -> None:
        """Note whose life it is from now on, and answer those who attended to another."""
        self._alive = instance
        self._turned.set()
        self._turned = asyncio.Event()

    def _living(self) -> EngineSession:
        if self._life is None:
            raise Unavailable("this TaskManager has no Spark engine at the moment")
        return self._life


async def _within(work: Awaitable[None], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning(log_events.REPORTS_UNDELIVERED)


def _read_log(path: Path, query: LogQuery, running: bool) -> LogChunk:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = max(size + query.offset, 0) if query.offset < 0 else min(query.offset, size)
            file.seek(offset)
            return LogChunk(data=file.read(query.limit), offset=offset, size=size, complete=not running)
    except FileNotFoundError:
        raise NotFound(f"no output of attempt {query.attempt} is here") from None

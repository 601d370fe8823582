"""A TaskManager with an engine and runners that the test controls, and a record of what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.gateways.engine import Engine, RunnerPool, SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand, TaskQuery
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import AttemptId, BlobKey, InstanceId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import Heartbeat, HeartbeatAnswer, RegistrationAnswer, TaskManagerRegistration
from flintlock.model.tasks import (
    DeployTask,
    FilesPublished,
    SinkFiles,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskProgress,
    TaskReport,
    TaskRunning,
)
from flintlock.taskmanager.endpoint import TaskManager
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.testing.fakes.fake_jobmaster import FakeJobMaster
from flintlock.testing.fakes.fake_resourcemanager import FakeResourceManager

Message = TaskRunning | TaskProgress | TaskFinished | TaskFailed
WARM_UP_S: Final = 1.0
ENGINE: Final = 2
JVM: Final = 3
TEMPLATE: Final = 4
FIRST_RUNNER_PID: Final = 100  # and the attempt's number


class ScriptedRunner:
    """Sends the messages that the test gives it."""

    def __init__(self, harness: TaskManagerHarness, attempt: AttemptId) -> None:
        self._harness = harness
        self._attempt = attempt
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self.session: SparkSessionKey | None = SparkSessionKey(user_id="u", session_id=str(attempt))
        self.artifacts: Mapping[str, str] = {}
        self.pid: int | None = FIRST_RUNNER_PID + attempt.attempt
        self.interrupted = False
        self.queries: list[TaskQuery] = []
        self.answer: asyncio.Future[TaskAnswer] = asyncio.get_running_loop().create_future()  # to every query
        self.killed = False

    def send(self, *messages: Message) -> None:
        """Have it send these; after an outcome it ends."""
        for message in messages:
            self._messages.put_nowait(message)

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[Message]:
        """Send the messages of the test."""
        self.artifacts = artifacts
        self._harness.record(f"run {self._attempt.attempt}")
        while (message := await self._messages.get()) is not None:
            yield message
            if isinstance(message, TaskFinished | TaskFailed):
                return

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Carry out a command: stop, if it obeys."""
        match command:
            case CancelTask():
                self.interrupted = True
                if self._harness.stops_on_interrupt:
                    self._messages.put_nowait(None)
                return CommandAccepted()
            case query:
                self.queries.append(query)
                return await self.answer

    async def kill(self) -> None:
        """Stop."""
        if not self.killed:
            self._harness.record(f"kill {self._attempt.attempt}")
        self.killed = True
        while not self._harness.runners_die:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
        self._messages.put_nowait(None)


class ScriptedEngine:
    """Runs until the test ends it."""

    def __init__(self, harness: TaskManagerHarness) -> None:
        self._harness = harness
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.release: Callable[[], bool | FlintlockError] = lambda: True
        self.release_s = 0.1
        self.published: list[tuple[SinkFiles, ...]] = []
        self.publications_left = 0  # before they were complete
        self.removed: list[tuple[str, ...]] = []
        self.moves: asyncio.Queue[FilesPublished | FlintlockError] = asyncio.Queue()

    @property
    def remote_url(self) -> str:
        """An address that is never used."""
        return "sc://scripted"

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process and its JVM."""
        return (ENGINE, JVM)

    def die(self, cause: str) -> None:
        """Die."""
        self._harness.record("engine dies")
        self._death.set_result(cause)

    async def died(self) -> str:
        """Return the cause once it is dead."""
        return await asyncio.shield(self._death)

    async def release_session(self, session: SparkSessionKey) -> bool:
        """Take a while, and return what the test has set."""
        await asyncio.sleep(self.release_s)
        answer = self.release()
        if isinstance(answer, FlintlockError):
            raise answer
        self._harness.record(f"release {session.session_id.rpartition('#')[2]}: {answer}")
        return answer

    async def publish(self, sinks: tuple[SinkFiles, ...]) -> AsyncIterator[FilesPublished]:
        """Do the moves that the test gives."""
        self.published.append(sinks)
        complete = False
        try:
            while not complete:
                step = await self.moves.get()
                if isinstance(step, FlintlockError):
                    raise step
                complete = step.complete
                yield step
        finally:
            self.publications_left += not complete

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Record the request."""
        self.removed.append(directories)

    async def read_ui(self, path: str, root: str) -> EngineUiPage:
        """Return a page with its path."""
        return EngineUiPage(status=200, content_type="text/html", body=f"{root}{path}".encode())


class ScriptedProcesses:
    """A table of processes in which some are stopped."""

    def __init__(self, harness: TaskManagerHarness) -> None:
        self._harness = harness
        self.stopped: set[int] = set()
        self.observations = 0
        self.broken = False  # nothing can be measured

    def is_stopped(self, pid: int) -> bool:
        """Return whether the test has stopped it."""
        self.observations += 1
        return pid in self.stopped

    def resident_bytes(self, pid: int) -> int:
        """A runner has 10 bytes, the others 100."""
        if self.broken:
            raise OSError("no /proc")
        return 10 if pid >= FIRST_RUNNER_PID else 100

    def kill(self, pid: int) -> None:
        """Record it."""
        self._harness.record(f"SIGKILL {pid}")
        self.stopped.discard(pid)


class ScriptedPool:
    """Hands out scripted runners."""

    pids = (TEMPLATE,)

    def __init__(self, harness: TaskManagerHarness) -> None:
        self._harness = harness

    async def take(self, task: DeployTask) -> ScriptedRunner:
        """Return a runner after a while."""
        await asyncio.sleep(self._harness.take_s)
        runner = self._harness.runners[task.attempt] = ScriptedRunner(self._harness, task.attempt)
        return runner


class RecordingJobMasters(FakeJobMaster):
    """Records the reports that it answers."""

    def __init__(self, harness: TaskManagerHarness) -> None:
        super().__init__()
        self._harness = harness

    async def report(self, message: TaskReport) -> None:
        """Record it."""
        await super().report(message)
        self._harness.record(f"report {message.attempt.attempt}: {type(message.news).__name__}")


class RecordingResourceManager(FakeResourceManager):
    """Records registrations and unregistrations."""

    def __init__(self, harness: TaskManagerHarness) -> None:
        super().__init__()
        self._harness = harness
        self.answer_s = 0.0  # how long its answer to a heartbeat is under way
        self.sent_s: list[float] = []  # when each heartbeat was sent
        self.unwanted: tuple[AttemptId, ...] = ()

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Answer after a while."""
        self.sent_s.append(asyncio.get_running_loop().time())
        answer = await super().heartbeat(message)
        await asyncio.sleep(self.answer_s)
        return structs.replace(answer, unwanted=self.unwanted)

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Accept it."""
        answer = await super().register_task_manager(message)
        self._harness.record(f"registered {message.instance}")
        return answer

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Record it."""
        await super().unregister_task_manager(message)
        self._harness.record(f"unregistered {message.instance}")


class TaskManagerHarness:
    """All that a TaskManager needs, and what happened in and around it."""

    def __init__(self, logs: Path, *, slots: int = 2) -> None:
        self.resource_manager = RecordingResourceManager(self)
        self.job_masters = RecordingJobMasters(self)
        self.engines: list[ScriptedEngine] = []
        self.runners: dict[AttemptId, ScriptedRunner] = {}
        self.events: list[str] = []  # what happened in and around the engine, in order
        self.stops_on_interrupt = True
        self.runners_die = True  # when they are killed
        self.aborts: list[str] = []  # reasons why the process was to be ended at once
        self.take_s = 0.01
        self.close_s = 0.5
        self.warm_up_s = WARM_UP_S
        self.no_engine: list[str] = []  # reasons why the next engines cannot start
        self.processes = ScriptedProcesses(self)
        self.watched: list[float] = []  # deadlines that the watchdog was sent
        self.asleep_s = 0.0  # how far the lease's clock is ahead of the loop's
        self.starts_s: list[float] = []  # when an engine was to be started
        self.blobs: dict[BlobKey, Path | FlintlockError] = {}
        self.fetch_s = 0.0
        self.moved: asyncio.Event | None = None  # set when another leads
        self._instances = 0
        self.services = TaskManagerServices(
            offer=TaskManagerRegistration(
                id=TaskManagerId("tm"),
                instance=InstanceId("unused"),
                address="tm:1",
                slots=slots,
                versions=Versions(flintlock="0", python="3", pyspark="4"),
            ),
            launcher=self,
            resource_manager=lambda: self.resource_manager,
            job_masters=lambda: self.job_masters,
            fetch_blob=self._fetch,
            log_directory=logs,
            prepare_log=_make_log_directory,
            new_instance=self._new_instance,
            clock_s=lambda: asyncio.get_running_loop().time() + self.asleep_s,
            set_watchdog_deadline=self.watched.append,
            end_process=self.aborts.append,
            processes=self.processes,
            leader_moved=self._until_moved,
        )
        self.guard = TokenGuard(self.services.clock_s)
        self.task_manager = TaskManager(self.services, self.guard)

    def record(self, what: str) -> None:
        """Add to the events."""
        self.events.append(what)

    @property
    def engine(self) -> ScriptedEngine:
        """The current engine."""
        return self.engines[-1]

    def news(self, attempt: AttemptId) -> list[TaskNews]:
        """What the JobMaster received about the attempt."""
        return [report.news for report in self.job_masters.reports_of(attempt)]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Engine, RunnerPool]]:
        """Start an engine: the harness is the EngineLauncher."""
        self.starts_s.append(asyncio.get_running_loop().time())
        if self.no_engine:
            raise Unavailable(self.no_engine.pop(0))
        await asyncio.sleep(self.warm_up_s)
        self.engines.append(ScriptedEngine(self))
        try:
            yield self.engine, ScriptedPool(self)
        finally:
            await asyncio.sleep(self.close_s)
            self.record("engine gone")

    async def _fetch(self, key: BlobKey) -> Path:
        await asyncio.sleep(self.fetch_s)
        found = self.blobs[key]
        if isinstance(found, FlintlockError):
            raise found
        return found

    async def _until_moved(self) -> None:
        self.moved = asyncio.Event()
        await self.moved.wait()

    def _new_instance(self) -> InstanceId:
        self._instances += 1
        return InstanceId(f"instance-{self._instances}")

    @property
    def instance(self) -> InstanceId:
        """The latest incarnation."""
        return InstanceId(f"instance-{self._instances}")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[TaskManager]:
        """Run the TaskManager; it is registered when the body begins, and stopped when it ends."""
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(self.task_manager.run(), name="taskmanager")
            await until(lambda: bool(self.resource_manager.heartbeats))
            try:
                yield self.task_manager
            finally:
                run.cancel()

    async def runner(self, attempt: AttemptId) -> ScriptedRunner:
        """Return the attempt's runner once it has one that runs."""
        await until(lambda: f"run {attempt.attempt}" in self.events)
        return self.runners[attempt]


async def _make_log_directory(path: Path) -> None:
    """As in a real process, but without a thread: the tests are on virtual time."""
    path.parent.mkdir(parents=True, exist_ok=True)


async def until(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    """Wait, on virtual time, for a condition."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 virtual time costs nothing
            await asyncio.sleep(0.01)

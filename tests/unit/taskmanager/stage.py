"""The stage that TaskManager tests play on: an engine and runners that do what the test says, and a story of it all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.gateways.engine import Engine, RunnerPool, SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
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
from flintlock.taskmanager.endpoint import TaskManager, TokenGuard
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.testing.fake_gateways import FakeJobMasters, FakeResourceManager

Word = TaskRunning | TaskProgress | TaskFinished | TaskFailed
WARM_UP_S: Final = 1.0
ENGINE: Final = 2
JVM: Final = 3
TEMPLATE: Final = 4
PIDS_OF_RUNNERS: Final = 100  # and the attempt's number


class ScriptedRunner:
    """Says what the test makes it say."""

    def __init__(self, stage: Stage, attempt: AttemptId) -> None:
        self._stage = stage
        self._attempt = attempt
        self._words: asyncio.Queue[Word | None] = asyncio.Queue()
        self.session: SparkSessionKey | None = SparkSessionKey(user_id="u", session_id=str(attempt))
        self.artifacts: Mapping[str, str] = {}
        self.pid: int | None = PIDS_OF_RUNNERS + attempt.attempt
        self.interrupted = False
        self.killed = False

    def say(self, *words: Word) -> None:
        """Have it say these; after a last word it ends."""
        for word in words:
            self._words.put_nowait(word)

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[Word]:
        """Say what it is told to say."""
        self.artifacts = artifacts
        self._stage.tell(f"run {self._attempt.attempt}")
        while (word := await self._words.get()) is not None:
            yield word
            if isinstance(word, TaskFinished | TaskFailed):
                return

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Carry out a command: stop, if it obeys."""
        match command:
            case CancelTask():
                self.interrupted = True
                if self._stage.obedient:
                    self._words.put_nowait(None)
                return CommandAccepted()

    async def kill(self) -> None:
        """Stop."""
        if not self.killed:
            self._stage.tell(f"kill {self._attempt.attempt}")
        self.killed = True
        self._words.put_nowait(None)


class ScriptedEngine:
    """Incarnations until it is told to die."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.release: Callable[[], bool | FlintlockError] = lambda: True
        self.release_s = 0.1
        self.published: list[tuple[SinkFiles, ...]] = []
        self.removed: list[tuple[str, ...]] = []
        self.moves: asyncio.Queue[FilesPublished | FlintlockError] = asyncio.Queue()

    @property
    def remote_url(self) -> str:
        """Where nobody listens."""
        return "sc://scripted"

    @property
    def pids(self) -> tuple[int, ...]:
        """Its process and its JVM."""
        return (ENGINE, JVM)

    def die(self, cause: str) -> None:
        """Die."""
        self._stage.tell("engine dies")
        self._death.set_result(cause)

    async def died(self) -> str:
        """Return the cause once it is dead."""
        return await asyncio.shield(self._death)

    async def release_session(self, session: SparkSessionKey) -> bool:
        """Take a while, and answer what the test wants."""
        await asyncio.sleep(self.release_s)
        answer = self.release()
        if isinstance(answer, FlintlockError):
            raise answer
        self._stage.tell(f"release {session.session_id.rpartition('#')[2]}: {answer}")
        return answer

    async def publish(self, sinks: tuple[SinkFiles, ...]) -> AsyncIterator[FilesPublished]:
        """Do the moves that the test gives."""
        self.published.append(sinks)
        while True:
            step = await self.moves.get()
            if isinstance(step, FlintlockError):
                raise step
            yield step
            if step.complete:
                return

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Note the wish."""
        self.removed.append(directories)


class ScriptedProcesses:
    """A table of processes in which some are stopped."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.stopped: set[int] = set()
        self.looks = 0
        self.broken = False  # nothing can be measured

    def is_stopped(self, pid: int) -> bool:
        """Tell whether the test has stopped it."""
        self.looks += 1
        return pid in self.stopped

    def resident_bytes(self, pid: int) -> int:
        """A runner has 10 bytes, the others 100."""
        if self.broken:
            raise OSError("no /proc")
        return 10 if pid >= PIDS_OF_RUNNERS else 100

    def kill(self, pid: int) -> None:
        """Note it."""
        self._stage.tell(f"SIGKILL {pid}")
        self.stopped.discard(pid)


class ScriptedPool:
    """Hands out scripted runners."""

    pids = (TEMPLATE,)

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def take(self, task: DeployTask) -> ScriptedRunner:
        """Return a runner after a while."""
        await asyncio.sleep(self._stage.take_s)
        runner = self._stage.runners[task.attempt] = ScriptedRunner(self._stage, task.attempt)
        return runner


class ToldJobMasters(FakeJobMasters):
    """Puts the reports that it answers into the story."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    async def report(self, message: TaskReport) -> None:
        """Keep it."""
        await super().report(message)
        self._stage.tell(f"report {message.attempt.attempt}: {type(message.news).__name__}")


class ToldResourceManager(FakeResourceManager):
    """Puts coming and going into the story."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
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
        """Take it in."""
        answer = await super().register_task_manager(message)
        self._stage.tell(f"registered {message.instance}")
        return answer

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Forget it."""
        await super().unregister_task_manager(message)
        self._stage.tell(f"good-bye {message.instance}")


class Stage:
    """All that a TaskManager needs, and what happened on it."""

    def __init__(self, logs: Path, *, slots: int = 2) -> None:
        self.resource_manager = ToldResourceManager(self)
        self.job_masters = ToldJobMasters(self)
        self.guard = TokenGuard()
        self.engines: list[ScriptedEngine] = []
        self.runners: dict[AttemptId, ScriptedRunner] = {}
        self.story: list[str] = []  # what happened in and around the engine, in order
        self.obedient = True
        self.take_s = 0.01
        self.close_s = 0.5
        self.no_engine: list[str] = []  # reasons why the next engines cannot start
        self.processes = ScriptedProcesses(self)
        self.watched: list[float] = []  # what the watchdog was told
        self.asleep_s = 0.0  # for how long the lease's clock went on without the loop's
        self.starts_s: list[float] = []  # when it was tried to start one
        self.blobs: dict[BlobKey, Path | FlintlockError] = {}
        self.fetch_s = 0.0
        self.moved: asyncio.Event | None = None  # set when another leads
        self._lives = 0
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
            new_instance=self._new_instance,
            clock_s=lambda: asyncio.get_running_loop().time() + self.asleep_s,
            set_watchdog_deadline=self.watched.append,
            processes=self.processes,
            leader_moved=self._until_moved,
        )
        self.task_manager = TaskManager(self.services, self.guard)

    def tell(self, what: str) -> None:
        """Add to the story."""
        self.story.append(what)

    @property
    def engine(self) -> ScriptedEngine:
        """The engine of now."""
        return self.engines[-1]

    def news(self, attempt: AttemptId) -> list[TaskNews]:
        """What the JobMaster heard of the attempt."""
        return [report.news for report in self.job_masters.of(attempt)]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Engine, RunnerPool]]:
        """Start an engine: this is the EngineLauncher."""
        self.starts_s.append(asyncio.get_running_loop().time())
        if self.no_engine:
            raise Unavailable(self.no_engine.pop(0))
        await asyncio.sleep(WARM_UP_S)
        self.engines.append(ScriptedEngine(self))
        try:
            yield self.engine, ScriptedPool(self)
        finally:
            await asyncio.sleep(self.close_s)
            self.tell("engine gone")

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
        self._lives += 1
        return InstanceId(f"life-{self._lives}")

    @asynccontextmanager
    async def playing(self) -> AsyncGenerator[TaskManager]:
        """Run the TaskManager; it is registered when the body begins, and told to stop when it ends."""
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(self.task_manager.run(), name="taskmanager")
            await until(lambda: bool(self.resource_manager.heartbeats))
            try:
                yield self.task_manager
            finally:
                run.cancel()

    async def runner(self, attempt: AttemptId) -> ScriptedRunner:
        """Return the attempt's runner once it has one that runs."""
        await until(lambda: f"run {attempt.attempt}" in self.story)
        return self.runners[attempt]


async def until(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    """Wait, on virtual time, for a condition."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 virtual time costs nothing
            await asyncio.sleep(0.01)

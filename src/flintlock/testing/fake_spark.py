"""Spark without Spark: engines, runners and a file system on virtual time, for the simulated cluster.

The files outlive every process, as a real file system does. A runner writes files and reads its task's inputs; an
engine moves files one by one, with time passing between any two, so that a crash can fall in between. What each attempt
did is recorded in a ledger that the simulation's checks read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.gateways.engine import Engine, RunnerPool, SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import JobFailed, Unavailable
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.operations import Result, SaveMode, Sink
from flintlock.model.regions import region_outputs
from flintlock.model.staging import ANY_ATTEMPT, staging_directory
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    FileMove,
    FilesPublished,
    ResultRows,
    SinkFiles,
    StepOutput,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)

FILES_OF_A_SINK: Final = 3
_Report: TypeAlias = TaskRunning | TaskProgress | TaskFinished | TaskFailed
_NO_ROWS: Final = b'{"columns":[],"rows":[]}'


class FakeFiles:
    """A file system in memory: content by path. Shared by all TaskManagers; no crash touches it."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}

    def below(self, directory: str) -> list[str]:
        """Return the paths under a directory."""
        return sorted(path for path in self.content if path.startswith(directory.rstrip("/") + "/"))

    def matching(self, directory: str) -> list[str]:
        """Return the paths under a directory, or under all staging directories that a pattern names."""
        if not directory.endswith(ANY_ATTEMPT):
            return self.below(directory)
        return sorted(path for path in self.content if path.startswith(directory[:-1]))

    def visible(self, directory: str) -> list[str]:
        """Return the data files of a target, without hidden files and markers."""
        head = len(directory.rstrip("/")) + 1
        return [path for path in self.below(directory) if not path[head:].startswith((".", "_"))]


class Ran(Struct, frozen=True):
    """The runner of an attempt has finished its work."""

    attempt: AttemptId


class FakeSpark:
    """The whole data plane: its files, what was run, and how fast and how often it fails."""

    def __init__(self, random: Random, *, work_s: float = 2.0, failures: float = 0.0) -> None:
        self.random = random
        self.files = FakeFiles()
        self.ledger: list[Ran] = []  # appended by runners, read by checks
        self.work_s = work_s
        self.failures = failures  # probability that an attempt's Spark work fails
        self.context = Context()  # engines and runners are processes of their own
        self.starts: Counter[tuple[JobId, RegionId]] = Counter()  # runners that began, by task
        self.overlaps: list[str] = []  # attempts at one task that were alive at one time
        self._alive: dict[tuple[JobId, RegionId], list[AttemptId]] = {}  # runners by task

    @contextmanager
    def alive(self, task: DeployTask) -> Generator[None]:
        """Count a runner as alive while the context lasts; two at one task are an overlap."""
        attempt = task.attempt
        runners = self._alive.setdefault((attempt.job_id, attempt.region), [])
        self.overlaps += [f"{attempt} began while {other} was alive" for other in runners]
        runners.append(attempt)
        self.starts[attempt.job_id, attempt.region] += 1
        try:
            yield
        finally:
            runners.remove(attempt)

    def launcher(self) -> FakeEngineLauncher:
        """Return the launcher of one TaskManager's engines."""
        return FakeEngineLauncher(self)


class FakeEngineLauncher:
    """Opens engines that are ready after some seconds."""

    def __init__(self, spark: FakeSpark) -> None:
        self._spark = spark
        self.engines: list[FakeEngine] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Engine, RunnerPool]]:
        """Start an engine."""
        await asyncio.sleep(self._spark.random.uniform(0.5, 3.0))
        engine = FakeEngine(self._spark)
        self.engines.append(engine)
        yield engine, FakeRunnerPool(self._spark, engine)


class FakeEngine:
    """One Spark application; `crash` ends it."""

    def __init__(self, spark: FakeSpark) -> None:
        self._spark = spark
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._runners: list[FakeRunner] = []  # those that work on it

    @contextmanager
    def serving(self, runner: FakeRunner) -> Generator[None]:
        """Let a runner work on it while the context lasts."""
        self._runners.append(runner)
        try:
            yield
        finally:
            self._runners.remove(runner)

    def kill(self, cause: str) -> None:
        """End it with all runners that work on it, as a watchdog does."""
        self.crash(cause)
        for runner in list(self._runners):
            runner.end()

    @property
    def remote_url(self) -> str:
        """An address at which nothing listens."""
        return "sc://simulated"

    @property
    def pids(self) -> tuple[int, ...]:
        """It has no process."""
        return ()

    @property
    def dead(self) -> bool:
        """Whether it has crashed."""
        return self._death.done()

    def crash(self, cause: str) -> None:
        """End it."""
        if not self._death.done():
            self._death.set_result(cause)

    async def died(self) -> str:
        """Return the cause once it is dead."""
        return await asyncio.shield(self._death)

    async def release_session(self, session: SparkSessionKey) -> bool:
        """End a session."""
        await asyncio.sleep(0.01)
        if self.dead:
            raise Unavailable("the engine is dead")
        return True

    async def publish(self, sinks: tuple[SinkFiles, ...]) -> AsyncIterator[FilesPublished]:
        """Move file by file; time passes between any two."""
        files = self._spark.files.content
        total = sum(len(sink.moves) + len(sink.removes) + (sink.success_marker is not None) for sink in sinks)
        done = 0
        for sink in sinks:
            for move in sink.moves:
                await self._pause()
                if move.source in files:
                    files[move.target] = files.pop(move.source)
                elif move.target not in files:
                    raise JobFailed(f"{move.source} is gone, and {move.target} does not exist")
                done += 1
                yield FilesPublished(done=done, total=total)
            for path in sink.removes:
                await self._pause()
                files.pop(path, None)
                done += 1
                yield FilesPublished(done=done, total=total)
            if sink.success_marker is not None:
                await self._pause()
                files[sink.success_marker] = ""
                done += 1
                yield FilesPublished(done=done, total=total)
        yield FilesPublished(done=total, total=total, complete=True)

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Remove all files under each."""
        for directory in directories:
            await self._pause()
            for path in self._spark.files.matching(directory):
                del self._spark.files.content[path]

    async def _pause(self) -> None:
        await asyncio.sleep(self._spark.random.uniform(0.001, 0.2))
        if self.dead:
            raise Unavailable("the engine is dead")


class FakeRunnerPool:
    """Hands out fake runners."""

    def __init__(self, spark: FakeSpark, engine: FakeEngine) -> None:
        self._spark = spark
        self._engine = engine

    @property
    def pids(self) -> tuple[int, ...]:
        """It has no process."""
        return ()

    async def take(self, task: DeployTask) -> FakeRunner:
        """Return a runner."""
        await asyncio.sleep(0.01)
        return FakeRunner(self._spark, self._engine, task)


class _Outputs(Struct):
    """What a task has written so far."""

    sinks: list[SinkFiles] = []
    materialised: dict[StepName, str] = {}
    results: list[ResultRows] = []


class FakeRunner:
    """Runs one task: checks its inputs, lets time pass, writes its files.

    It is a process of its own: it goes on while its TaskManager is frozen. It ends with its engine, or by `kill`.
    """

    def __init__(self, spark: FakeSpark, engine: FakeEngine, task: DeployTask) -> None:
        self._spark = spark
        self._engine = engine
        self._task = task
        self._stop = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None  # written by run
        self.session = SparkSessionKey(user_id="simulated", session_id=str(task.attempt))

    @property
    def pid(self) -> int | None:
        """It has no process."""
        return None

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Carry out a command; one cancel in four is ignored."""
        match command:
            case CancelTask():
                if self._spark.random.random() > 0.25:
                    self._stop.set()
                return CommandAccepted()
            case _:
                return await self._answer()

    async def _answer(self) -> TaskAnswer:
        """Answer a query after a while, if the process is still alive then."""
        await asyncio.sleep(self._spark.random.uniform(0.0, 0.5))
        if self._worker is None or self._worker.done():
            raise Unavailable("the runner has ended its task")
        return CommandAccepted()

    async def kill(self) -> None:
        """End it by force."""
        self._stop.set()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})

    async def run(
        self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]
    ) -> AsyncIterator[TaskRunning | TaskProgress | TaskFinished | TaskFailed]:
        """Run the task."""
        reports: asyncio.Queue[_Report | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._worker = loop.create_task(
            self._process(reports), name=f"runner-{task.attempt}", context=self._spark.context.copy()
        )
        self._worker.add_done_callback(lambda _: reports.put_nowait(None))
        try:
            last: _Report | None = None
            while (item := await reports.get()) is not None:
                last = item
                yield item
            if not isinstance(last, TaskFinished | TaskFailed):
                yield _failed(FailureKind.RUNNER_LOST, "the runner ended without a result")
        finally:
            self._worker.cancel()

    async def _process(self, reports: asyncio.Queue[_Report | None]) -> None:
        """Run as the process, which is alive until the end of this coroutine."""
        with self._spark.alive(self._task), self._engine.serving(self):
            async for item in self._run():
                reports.put_nowait(item)

    def end(self) -> None:
        """End it without waiting, as it ends with its engine: nothing more is written."""
        if self._worker is not None:
            self._worker.cancel()

    async def _run(self) -> AsyncIterator[_Report]:
        task = self._task
        yield TaskRunning()
        missing = tuple(step for step, path in task.inputs.items() if not self._spark.files.below(path))
        if missing:
            yield _failed(FailureKind.MISSING_INPUT, f"the result of {missing[0]} is gone", missing)
            return
        outputs = [vertex.name for vertex in region_outputs(task.graph, task.region)]
        if task.outputs is not None:
            outputs = [name for name in outputs if name in task.outputs]
        outputs_so_far = _Outputs()
        for name in outputs:
            if not await self._work():
                yield _failed(FailureKind.RUNNER_LOST, "killed")
                return
            if self._engine.dead:
                yield _failed(FailureKind.ENGINE_LOST, "connection lost")
                return
            if self._spark.random.random() < self._spark.failures:
                yield _failed(FailureKind.SPARK_TASK, f"a Spark task of {name} failed")
                return
            yield TaskProgress(metrics=TaskMetrics(), activity=f"writing {name}")
            self._write(task, name, outputs_so_far)
        self._spark.ledger.append(Ran(task.attempt))
        written = tuple(StepOutput(step=name, rows=1) for name in outputs)
        yield TaskFinished(
            outputs=written,
            materialised=outputs_so_far.materialised,
            results=tuple(outputs_so_far.results),
            sinks=tuple(outputs_so_far.sinks),
        )

    def _write(self, task: DeployTask, name: StepName, outputs_so_far: _Outputs) -> None:
        files = self._spark.files
        match task.graph.vertex(name).operation:
            case Sink(path=str(target), mode=mode):
                staging = staging_directory(target, task.attempt)
                names = [f"part-{number}-{task.attempt.attempt}" for number in range(FILES_OF_A_SINK)]
                for file in names:
                    files.content[f"{staging}/{file}"] = str(task.attempt)
                outputs_so_far.sinks.append(
                    SinkFiles(
                        step=name,
                        target=target,
                        staging=staging,
                        moves=tuple(FileMove(f"{staging}/{file}", f"{target}/{file}") for file in names),
                        removes=tuple(files.visible(target)) if mode is SaveMode.OVERWRITE else (),
                        success_marker=f"{target}/_SUCCESS",
                    )
                )
            case Result():
                outputs_so_far.results.append(ResultRows(name=name, rows=1, truncated=False, arrow=b"", json=_NO_ROWS))
            case _:
                path = f"{task.work_dir}/{name}/{task.attempt.attempt}"
                files.content[f"{path}/part-0"] = str(task.attempt)
                outputs_so_far.materialised[name] = path

    async def _work(self) -> bool:
        """Let time pass; return False if it was stopped."""
        try:
            async with asyncio.timeout(self._spark.random.uniform(0.0, self._spark.work_s)):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False


def _failed(kind: FailureKind, message: str, missing: tuple[StepName, ...] = ()) -> TaskFailed:
    return TaskFailed(failure=Failure(kind=kind, message=message, exception="Simulated", missing=missing))

"""Spark without Spark: engines, runners and a file system on virtual time, for the simulated cluster.

The files outlive every process, as a real file system does. A runner writes files and reads its task's inputs; an
engine moves files one by one, with time passing between any two, so that a crash can fall in between. What each attempt
did is recorded in a ledger that the simulation's checks read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct, structs

from flintlock.gateways.engine import Engine, RunnerPool, SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, DrainTask, TaskAnswer, TaskCommand
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.errors import JobFailed, Unavailable
from flintlock.model.files.staging import ANY_ATTEMPT, staging_directory
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobgraph import JobType, Resources
from flintlock.model.operations import Result, Sink
from flintlock.model.regions import region_outputs
from flintlock.model.slots import Hardware
from flintlock.model.streaming.checkpoints import StateRescaled
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
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
from flintlock.spark.engine.handle import publication
from flintlock.spark.engine.publication.publish_plan import FileListing, MaterialisedStep, StagedSink, UnsharedPath
from flintlock.spark.engine.publication.publish_steps import publish_steps, step_count
from flintlock.spark.runner.task_files import TaskFiles
from flintlock.testing.fakes.fake_streams import FakeQuery, checkpoint_of, sink_of

FILES_OF_A_SINK: Final = 3
FILES_OF_A_RESULT: Final = 3
#: The content of each file of a blocking result.
WHOLE: Final = "rows"
#: Part of what a sink writes if it was computed from less than all rows.
ROWS_MISSING: Final = "rows missing"
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

    def is_whole(self, result: str) -> bool:
        """Return whether a blocking result has all of its files, with all of their content."""
        return [self.content[path] for path in self.below(result)] == [WHOLE] * FILES_OF_A_RESULT

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""
        return path in self.content

    def move(self, source: str, target: str) -> None:
        """Move a file; one that was moved already stays as it is."""
        if source in self.content:
            self.content[target] = self.content.pop(source)
        elif target not in self.content:
            raise JobFailed(f"{source} is gone, and {target} does not exist")

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.content.pop(path, None)

    def mark(self, path: str) -> None:
        """Make an empty file."""
        self.content[path] = ""

    def sync(self, directories: Iterable[str], files: Iterable[str] = ()) -> None:
        """All is durable at once."""

    def remove_staging(self, path: str) -> None:
        """There are no directories."""

    def remove_empty(self, path: str) -> None:
        """There are no directories."""

    def visible(self, directory: str) -> list[str]:
        """Return the data files of a target, without hidden files and markers."""
        head = len(directory.rstrip("/")) + 1
        return [path for path in self.below(directory) if not path[head:].startswith((".", "_"))]


class Ran(Struct, frozen=True):
    """The runner of an attempt has finished its work."""

    attempt: AttemptId


class FakeSpark:
    """The whole data plane: its files, what was run, and how fast and how often it fails."""

    def __init__(
        self,
        random: Random,
        *,
        work_s: float = 2.0,
        failures: float = 0.0,
        publication_failures: float = 0.0,
        publication_step_s: float = 0.2,
    ) -> None:
        self.random = random
        self.files = FakeFiles()
        self.ledger: list[Ran] = []  # appended by runners, read by checks
        self.work_s = work_s
        self.failures = failures  # probability that an attempt's Spark work fails
        self.stream_failures = 0.0  # probability that a step of a streaming query fails
        self.rescaling = Random(0)  # its own: runs without rescales are left as they are
        self.rescale_failures = 0.0  # probability that the state of a query cannot be repartitioned
        self.stream_failed: list[AttemptId] = []  # of which attempts one did
        self.failing_streams: set[JobId] = set()  # jobs whose queries fail at their first step
        self.publication_failures = publication_failures  # probability that a step of a publication fails
        self.publication_step_s = publication_step_s  # what a step of a publication takes at most
        self.hardware: Hardware | None = None  # of each TaskManager; None: without limits
        self.slots = 0  # of each TaskManager with limits
        self.on_start: Callable[[DeployTask], None] = _ignore  # called when a runner begins
        self.context = Context()  # engines and runners are processes of their own
        self.starts: Counter[tuple[JobId, RegionId]] = Counter()  # runners that began, by task
        self.overlaps: list[str] = []  # attempts at one task, or in one slot, that were alive at one time
        self.false_markers: list[str] = []  # targets with a success marker beside less than all of a run
        self.endless: set[AttemptId] = set()  # whose work does not end by itself; they count as no attempt at a task
        self._alive: dict[tuple[JobId, RegionId], list[AttemptId]] = {}  # runners by task
        self._writers: dict[str, list[AttemptId]] = {}  # runners of queries by sink

    def running(self) -> list[AttemptId]:
        """Return the attempts whose runners are alive."""
        return [attempt for runners in self._alive.values() for attempt in runners]

    @contextmanager
    def alive(self, task: DeployTask) -> Generator[None]:
        """Count a runner as alive while the context lasts; two at one task are an overlap."""
        attempt = task.attempt
        self.on_start(task)
        runners = self._alive.setdefault((attempt.job_id, attempt.region), [])
        if attempt not in self.endless:
            others = [other for other in runners if other not in self.endless]
            self.overlaps += [f"{attempt} began while {other} was alive" for other in others]
            self.starts[attempt.job_id, attempt.region] += 1
        runners.append(attempt)
        try:
            with self._writing(task):
                yield
        finally:
            runners.remove(attempt)
            if not runners:
                self._alive.pop((attempt.job_id, attempt.region), None)

    def fails(self, attempt: AttemptId) -> bool:
        """Draw whether the next step of a query fails."""
        if attempt.job_id in self.failing_streams:
            return True
        if self.stream_failures and self.random.random() < self.stream_failures:
            self.stream_failed.append(attempt)
            return True
        return False

    @contextmanager
    def _writing(self, task: DeployTask) -> Generator[None]:
        """Count the runner of a query as a writer of its sink; those of two jobs are an overlap."""
        if task.graph.job_type is not JobType.STREAMING or task.attempt in self.endless:
            yield
            return
        (vertex,) = region_outputs(task.graph, task.region)
        writers = self._writers.setdefault(sink_of(vertex), [])
        others = [other for other in writers if other.job_id != task.attempt.job_id]
        self.overlaps += [f"{task.attempt} began while {other} wrote to the same sink" for other in others]
        writers.append(task.attempt)
        try:
            yield
        finally:
            writers.remove(task.attempt)

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
        """Let a runner work on it while the context lasts. Two of them in one slot are an overlap."""
        self._spark.overlaps += [
            f"{runner.task.attempt} began in the slots {runner.task.slots}, of which {other.task.attempt} has some"
            for other in self._runners
            if set(other.task.slots) & set(runner.task.slots)
        ]
        self._runners.append(runner)
        self._check_resources(runner)
        try:
            yield
        finally:
            self._runners.remove(runner)

    def _check_resources(self, runner: FakeRunner) -> None:
        """Note if the runners together may use more than their TaskManager has: what they ask for, or their share."""
        hardware, slots = self._spark.hardware, self._spark.slots
        if hardware is None:
            return
        tasks = [other.task for other in self._runners if other.task.attempt not in self._spark.endless]
        asked = [(task.resources or Resources(), len(task.slots)) for task in tasks]
        cpu = sum(one.cpu or hardware.cpu_cores * taken / slots for one, taken in asked)
        memory = sum(one.memory or hardware.physical_memory * taken // slots for one, taken in asked)
        if cpu > hardware.cpu_cores or memory > hardware.physical_memory:
            together = [str(task.attempt) for task in tasks]
            self._spark.overlaps.append(
                f"{runner.task.attempt} began, and {together} use {cpu:g} cores and {memory} bytes"
            )

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
        """Publish in the same steps as a real engine; time passes between any two."""
        order = publication(sinks)
        total, longest_s = step_count(order), self._spark.publication_step_s
        await self._pause(longest_s)
        for done, _ in enumerate(publish_steps(order, self._spark.files), start=1):
            self._spark.false_markers += [target for sink in sinks if (target := self._falsely_marked(sink))]
            yield FilesPublished(done=done, total=total)
            await self._pause(longest_s)
            if self._spark.publication_failures and self._spark.random.random() < self._spark.publication_failures:
                raise JobFailed("a file could not be moved: simulated")
        yield FilesPublished(done=total, total=total, complete=True)

    def _falsely_marked(self, sink: SinkFiles) -> str | None:
        """Return the target of a sink that has a success marker beside less than all of a run, or files of two."""
        files = self._spark.files.content
        moved = [move.target in files for move in sink.moves]
        mixed = any(moved) and (not all(moved) or any(path in files for path in sink.removes))
        return sink.target if mixed and sink.success_marker in files else None

    async def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        """Return the files under a path, which are always durable."""
        await self._pause()
        files, head = self._spark.files, len(path.rstrip("/")) + 1
        found = files.below(path)
        return FileListing(
            files=tuple(name[head:] for name in found),
            sizes=tuple(len(files.content[name]) for name in found) if with_sizes else (),
        )

    async def make_durable(self, path: str) -> None:
        """Do nothing: all files are durable."""

    async def find_unshared(self, targets: tuple[str, ...], sources: tuple[str, ...]) -> UnsharedPath | None:
        """Return None: all machines share all files."""
        return None

    async def remove_directories(self, directories: tuple[str, ...]) -> None:
        """Remove all files under each."""
        for directory in directories:
            await self._pause()
            for path in self._spark.files.matching(directory):
                del self._spark.files.content[path]

    async def read_ui(self, path: str, root: str) -> EngineUiPage:
        """Return a page with its path."""
        await self._pause()
        return EngineUiPage(status=200, content_type="text/html", body=f"{root}{path}".encode())

    async def _pause(self, longest_s: float = 0.2) -> None:
        await asyncio.sleep(self._spark.random.uniform(0.001, longest_s))
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

    materialised: dict[StepName, str] = {}
    results: list[ResultRows] = []
    bytes: dict[StepName, int] = {}  # as Spark counts what it writes


class FakeRunner:
    """Runs one task: checks its inputs, lets time pass, writes its files.

    It is a process of its own: it goes on while its TaskManager is frozen. It ends with its engine, or by `kill`.
    """

    def __init__(self, spark: FakeSpark, engine: FakeEngine, task: DeployTask) -> None:
        self._spark = spark
        self._engine = engine
        self.task = task
        self._stop = asyncio.Event()
        self._drain = asyncio.Event()  # set when its query is to end after the batch that it has begun
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
            case DrainTask():
                self._drain.set()
                return await self._answer()
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
        with self._spark.alive(self.task), self._engine.serving(self):
            async with asyncio.TaskGroup() as tasks:
                files = TaskFiles(self.task, self._engine, tasks)
                async for item in self._run(files):
                    reports.put_nowait(item)

    def end(self) -> None:
        """End it without waiting, as it ends with its engine: nothing more is written."""
        if self._worker is not None:
            self._worker.cancel()

    async def _run(self, files: TaskFiles) -> AsyncIterator[_Report]:
        """Do what a runner and its TaskManager do: compare the inputs, write, list what was written."""
        task = self.task
        changed = await files.changed_inputs()
        if changed is not None:
            yield TaskFailed(failure=changed)
            return
        yield TaskRunning()
        if task.graph.job_type is JobType.STREAMING:
            async for item in self._stream():
                yield item
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
                # Strategies decide about both in the same way.
                in_user_code = task.attempt.attempt % 2 == 1
                yield _failed(FailureKind.USER_CODE if in_user_code else FailureKind.SPARK_TASK, f"{name} failed")
                return
            yield TaskProgress(metrics=TaskMetrics(), activity=f"writing {name}")
            written = self._write(task, name, outputs_so_far)
            if written is not None:
                files.begin_listing(written)
        self._spark.ledger.append(Ran(task.attempt))
        finished = TaskFinished(
            outputs=tuple(StepOutput(step=name, rows=1, bytes=outputs_so_far.bytes.get(name, 0)) for name in outputs),
            materialised=outputs_so_far.materialised,
            results=tuple(outputs_so_far.results),
        )
        yield await files.complete(finished, _no_counts())

    async def _stream(self) -> AsyncIterator[_Report]:
        """Run a query until it is drained, stopped, or fails."""
        task = self.task
        (vertex,) = region_outputs(task.graph, task.region)
        query = FakeQuery(
            self._spark.files.content,
            checkpoint_of(task.checkpoint_dir, vertex.uid),
            sink_of(vertex),
            str(task.attempt),
        )
        rescale, rescaled = task.rescale, False
        known, reported = query.progress(), None
        while not (self._drain.is_set() and query.is_complete):
            if not await self._work():
                yield _failed(FailureKind.RUNNER_LOST, "killed")
                return
            if self._engine.dead:
                yield _failed(FailureKind.ENGINE_LOST, "connection lost")
                return
            fails = self._spark.fails(task.attempt)
            progress = query.progress(known, ended=fails)
            if progress != reported and task.graph.upgrade_of:  # what it does if it fails depends on this
                yield TaskProgress(metrics=TaskMetrics(), activity="streaming", query=progress)
                reported = progress
            if fails:
                yield _failed(FailureKind.USER_CODE, f"{vertex.name} failed")
                return
            if rescale is not None and not rescaled and query.is_complete:  # a batch that is planned is completed first
                rescaled, fails = True, self._spark.rescaling.random() < self._spark.rescale_failures
                found = query.rescale(rescale.partitions, fails=fails)
                failure = "the disk is full" if fails else ""
                outcome = StateRescaled(trigger_id=rescale.trigger_id, partitions=found, failure=failure)
                known = structs.replace(known, rescaled=outcome)
                yield TaskProgress(metrics=TaskMetrics(), activity="streaming", query=known)
            query.step()
        self._spark.ledger.append(Ran(task.attempt))
        yield TaskFinished(outputs=(StepOutput(step=vertex.name),))

    def _write(
        self, task: DeployTask, name: StepName, outputs_so_far: _Outputs
    ) -> StagedSink | MaterialisedStep | None:
        """Write one output, from all that is there of the inputs at this instant."""
        files = self._spark.files
        match task.graph.vertex(name).operation:
            case Sink(path=str(target), mode=mode):
                read = {**task.inputs, **outputs_so_far.materialised}.values()
                whole = all(files.is_whole(path) for path in read)
                staging = staging_directory(target, task.attempt)
                for number in range(FILES_OF_A_SINK):
                    files.content[f"{staging}/part-{number}-{task.attempt.attempt}"] = (
                        str(task.attempt) if whole else f"{task.attempt}: {ROWS_MISSING}"
                    )
                return StagedSink(step=name, target=target, staging=staging, mode=mode)
            case Result():
                outputs_so_far.results.append(ResultRows(name=name, rows=1, truncated=False, arrow=b"", json=_NO_ROWS))
                return None
            case _:
                path = f"{task.work_dir}/{name}/{task.attempt.attempt}"
                for number in range(FILES_OF_A_RESULT):
                    files.content[f"{path}/part-{number}-{task.attempt.attempt}"] = WHOLE
                outputs_so_far.bytes[name] = FILES_OF_A_RESULT * len(WHOLE)
                outputs_so_far.materialised[name] = path
                return MaterialisedStep(step=name, path=path)

    async def _work(self) -> bool:
        """Let time pass; return False if it was stopped."""
        limit_s = (
            None if self.task.attempt in self._spark.endless else self._spark.random.uniform(0, self._spark.work_s)
        )
        try:
            async with asyncio.timeout(limit_s):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False


def _ignore(_: DeployTask) -> None:
    """Do nothing."""


async def _no_counts() -> dict[StepName, TaskMetrics]:
    return {}


def _failed(kind: FailureKind, message: str) -> TaskFailed:
    return TaskFailed(failure=Failure(kind=kind, message=message, exception="Simulated"))

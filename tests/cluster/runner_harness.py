"""An engine and a pool of runners for the tests of both: real processes, one Spark, one loop in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import cloudpickle
from msgspec import Struct

from flintlock.config.files import cache_directory
from flintlock.model.ids import AttemptId, BlobKey, JobId, RegionId, StepName
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, Exchange, JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Function, Operation, Program
from flintlock.model.regions import regions_of
from flintlock.model.tasks import DeployTask, Failure, TaskFailed, TaskFinished, TaskProgress, TaskRunning
from flintlock.security.job_secrets import SecretFiles
from flintlock.spark.engine.handle import EngineSettings, SparkEngine
from flintlock.spark.engine.java import find_java
from flintlock.spark.runner.defaults import EngineServices
from flintlock.spark.runner.handle import ForkedRunner
from flintlock.spark.runner.pool import ForkingPool, PoolSettings, runner_pool
from flintlock.spark.runner_messages import DedicatedEngine

T = TypeVar("T")
#: How long a task of a test may take, on a machine that is busy with other things.
PATIENCE_S = 180.0
JOB = JobId("0123456789abcdef" * 2)
#: What Spark's Python workers may use, and how much of what a runner prints is kept.
WORKER_MEMORY = 384 << 20
OUTPUT_LIMIT = 1 << 20


class Loop:
    """An event loop in a thread of its own; tests pass it coroutines and wait."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 240.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Ran(Struct, frozen=True, kw_only=True):
    """How a task went."""

    news: tuple[TaskRunning | TaskProgress | TaskFinished | TaskFailed, ...]
    log: str
    runner: ForkedRunner

    @property
    def finished(self) -> TaskFinished:
        last = self.news[-1]
        assert isinstance(last, TaskFinished), f"{last}\n--- log:\n{self.log}"
        return last

    @property
    def failure(self) -> Failure:
        last = self.news[-1]
        assert isinstance(last, TaskFailed), last
        return last.failure

    @property
    def activities(self) -> list[str]:
        return list(dict.fromkeys(news.activity for news in self.news if isinstance(news, TaskProgress)))


class RunnerHarness:
    """A pool with an engine, and shortcuts for tasks."""

    def __init__(
        self, loop: Loop, pool: ForkingPool, engine: EngineServices, home: Path, spark: SparkEngine | None
    ) -> None:
        self.spark = spark
        self.loop = loop
        self.pool = pool
        self.engine = engine
        self.home = home
        self._attempts = itertools.count()

    def path(self, name: str) -> str:
        """Return a place that no other test uses."""
        return str(self.home / f"{name}-{next(self._attempts)}")

    def artifact(self, name: str, data: bytes, kind: ArtifactKind = ArtifactKind.PY_FILE) -> Artifact:
        blob = self.home / "blobs" / f"{next(self._attempts)}"
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(data)
        return Artifact(name=name, blob=BlobKey(str(blob)), size=len(data), kind=kind)

    def pickled(self, name: str, function: Callable[..., Any]) -> Artifact:
        return self.artifact(f"{name}.pkl", cloudpickle.dumps(function), ArtifactKind.PICKLE)

    def task(self, *vertices: JobVertex, region: int = 0, **more: Any) -> DeployTask:
        of_graph = {
            key: more.pop(key) for key in ("params", "config", "artifacts", "engine", "job_type") if key in more
        }
        graph = JobGraph(job_id=JOB, name="test", vertices=vertices, **of_graph)
        more.setdefault("work_dir", str(self.home / "work"))
        return DeployTask(
            attempt=AttemptId(job_id=JOB, region=RegionId(region), attempt=next(self._attempts)),
            graph=graph,
            region=regions_of(graph)[region],
            slots=more.pop("slots", (0, 1)),
            **more,
        )

    def program(self, text: str, *args: str, engine: EngineKind = EngineKind.SHARED, **more: Any) -> DeployTask:
        script = self.artifact("script.py", text.encode(), ArtifactKind.FILE)
        artifacts = (script, *more.pop("artifacts", ()))
        return self.task(
            step("script", Program(file="script.py", args=args)), artifacts=artifacts, engine=engine, **more
        )

    def run(self, task: DeployTask) -> Ran:
        """Run a task to its end, and its runner, too."""
        return self.loop.run(self.ran(task))

    async def ran(
        self, task: DeployTask, during: Callable[[ForkedRunner], Coroutine[Any, Any, None]] | None = None
    ) -> Ran:
        """Run a task; `during` is called once, when it runs and reports progress."""
        runner = await self.pool.take_process(task)
        log = self.log_of(task)
        news: list[TaskRunning | TaskProgress | TaskFinished | TaskFailed] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for item in runner.run(task, str(log), contents(task.graph)):
                    news.append(item)
                    if during is not None and isinstance(item, TaskProgress):
                        act, during = during, None
                        await act(runner)
        except TimeoutError:
            os.kill(await runner.started(), signal.SIGABRT)  # faulthandler writes where its threads stand
            await runner.exited()
            raise AssertionError(f"the runner hangs after {news}; log:\n{log.read_text()}") from None
        await self.end(runner)
        return Ran(news=tuple(news), log=log.read_text() if log.exists() else "", runner=runner)

    async def end(self, runner: ForkedRunner) -> None:
        """End a runner as a TaskManager does: also what Spark still does for it."""
        await runner.kill()
        if runner.session is not None and self.spark is not None:
            released = await self.spark.release(runner.session.user_id)
            assert released.confirmed, f"Spark still works for an ended task: {released.active}"

    def log_of(self, task: DeployTask) -> Path:
        return self.home / f"{task.attempt.attempt}.log"

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - a condition of other processes
                await asyncio.sleep(0.02)


def step(name: str, operation: Operation, *inputs: str, blocking: bool = False, **more: Any) -> JobVertex:
    return JobVertex(
        id=vertex_id(JOB, name),
        name=StepName(name),
        operation=operation,
        inputs=tuple(StepName(source) for source in inputs),
        exchange=Exchange.BLOCKING if blocking else Exchange.PIPELINED,
        **more,
    )


def pickle_step(name: str, *inputs: str, **more: Any) -> JobVertex:
    return step(name, Function(pickle=f"{name}.pkl"), *inputs, **more)


def contents(graph: JobGraph) -> dict[str, str]:
    """Return where the artifacts that a RunnerHarness made lie."""
    return {artifact.name: artifact.blob for artifact in graph.artifacts}


@contextmanager
def running(loop: Loop, scope: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Hold an async scope open on the loop, in one task of its own, for the time of a sync one."""
    opened: asyncio.Future[T]
    close: asyncio.Event
    task: asyncio.Task[None]

    async def begin() -> T:
        nonlocal opened, close, task
        opened, close = asyncio.get_running_loop().create_future(), asyncio.Event()
        task = asyncio.get_running_loop().create_task(hold_open())
        await asyncio.wait({opened, task}, return_when=asyncio.FIRST_COMPLETED)
        return opened.result() if opened.done() else await _failed(task)

    async def hold_open() -> None:
        async with scope as value:
            opened.set_result(value)
            await close.wait()

    async def end() -> None:
        close.set()
        await task

    value = loop.run(begin())
    try:
        yield value
    finally:
        loop.run(end())


async def _failed(task: asyncio.Task[None]) -> NoReturn:
    await task
    raise AssertionError("the scope ended before it had begun")


@contextmanager
def spark_engine(loop: Loop, home: Path) -> Generator[SparkEngine]:
    """Run an engine with two cores."""
    settings = EngineSettings(
        java=find_java(os.environ),
        scratch_dir=str(home / "engine"),
        log_file=str(home / "engine.log"),
        run_dir=str(home / "run"),
        work_root=str(home / "work"),
        worker_memory=WORKER_MEMORY,
        worker_output=str(home / "scratch" / "output"),
        archive_dir=str(cache_directory()),
    )
    with running(loop, SparkEngine.start(settings)) as engine:
        yield engine


@contextmanager
def running_harness(
    loop: Loop, engine: SparkEngine | EngineServices, home: Path, *, warm: int = 2
) -> Generator[RunnerHarness]:
    """Run a pool on an engine, or on a substitute for one."""
    spark = engine if isinstance(engine, SparkEngine) else None
    settings = PoolSettings(
        scratch_dir=str(home / "scratch"),
        run_dir=str(home / "run"),
        warm=warm,
        worker_memory=WORKER_MEMORY,
        worker_output=str(home / "scratch" / "output"),
        output_limit=OUTPUT_LIMIT,
        secrets=(SecretFiles(home / "secrets"),),
        dedicated=DedicatedEngine(
            run_dir=str(home / "run"),
            heap_bytes=512 << 20,
            archive_dir=str(cache_directory()),
        ),
    )

    async def use(pool: ForkingPool) -> None:
        pool.use_engine(engine)

    with running(loop, runner_pool(settings)) as pool:
        loop.run(use(pool))
        yield RunnerHarness(loop, pool, engine, home, spark)

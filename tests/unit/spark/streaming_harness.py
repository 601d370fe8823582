"""A Spark that only records how streaming queries are started, and streaming tasks on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql.types import LongType, StructField, StructType
from tests.unit.spark.test_rescaled_checkpoints import repartition

from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobgraph import JobGraph, JobType, JobVertex, vertex_id
from flintlock.model.operations import Operation, Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.streaming.checkpoints import (
    QueryProgress,
    StateRescale,
)
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.streaming.streams import StreamQuery, Watermark
from flintlock.model.tasks import DeployTask
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.plan import StepFrames
from flintlock.spark.region.streaming.query import StreamingTask

JOB = JobId("ab" * 16)
FILES = Sink(format="parquet", path="/no-such-directory/out")


class FakeProgress(dict[str, Any]):
    """The progress of one batch, or of a trigger without one."""

    def __init__(self, batch: int, *, idle: bool = False) -> None:
        durations = {"triggerExecution": 40} if idle else {"triggerExecution": 40, "addBatch": 30}
        super().__init__(
            batchId=batch,
            timestamp="2026-01-01T00:00:01.500Z",
            numInputRows=0 if idle else 5,
            durationMs=durations,
            stateOperators=[{"numRowsTotal": 7, "memoryUsedBytes": 1000}, {"numRowsTotal": 1, "memoryUsedBytes": 24}],
            sources=[{"endOffset": {"logOffset": batch}, "numInputRows": 5}],
            eventTime={"watermark": "2026-01-01T00:00:00.000Z"},
        )

    @property
    def json(self) -> str:
        return msgspec.json.encode(dict(self)).decode()


class FakeQuery:
    """A query that behaves as its `outcomes` say, one for each time that it is observed."""

    def __init__(self, *outcomes: bool | BaseException) -> None:
        self._outcomes = list(outcomes)
        self._observed = 0
        self.progress: list[FakeProgress] = []
        self.message = "Waiting for data to arrive"
        self.busy: list[bool] = []  # whether a batch runs, one for each time that it is observed; then none does
        self.stopped = False
        self.failure: Exception | None = None
        self.ended: Callable[[], None] = lambda: None  # called when an outcome is raised
        self.waited: Callable[[float], None] = lambda _: None  # called with the time that is waited for its end

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - PySpark's name
        assert timeout > 0
        self.waited(timeout)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, BaseException):
            self.ended()
            raise outcome
        return outcome

    @property
    def lastProgress(self) -> FakeProgress | None:  # noqa: N802 - PySpark's name
        self._observed += 1
        return self.progress[min(self._observed, len(self.progress)) - 1] if self.progress else None

    @property
    def recentProgress(self) -> list[FakeProgress]:  # noqa: N802 - PySpark's name
        return self.progress

    @property
    def status(self) -> dict[str, Any]:
        busy = self.busy.pop(0) if self.busy else False
        return {"message": self.message, "isDataAvailable": busy, "isTriggerActive": busy}

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.stopped = True


class FakeSchema(StructType):
    """Of a frame its schema, of a reader the method that sets it."""

    def __init__(self, spark: FakeSpark) -> None:
        super().__init__([StructField("n", LongType())])
        self._spark = spark

    def __call__(self, text: str) -> FakeSpark:
        self._spark.calls.append(f"schema({text})")
        return self._spark


class FakeSpark:
    """Records calls of readers and writers, and starts the next of its queries."""

    def __init__(self, *queries: FakeQuery) -> None:
        self.calls: list[str] = []
        self.functions: list[Any] = []  # for batches
        self.queries = list(queries)

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "readStream", "writeStream"):
            self.calls.append(name)
            return self

        def record(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(f"{name}({', '.join([*map(str, args), *(f'{k}={v}' for k, v in kwargs.items())])})")
            if name == "foreachBatch":
                self.functions += args
            if name == "start":
                return self.queries.pop(0)
            return self

        return record

    @property
    def schema(self) -> FakeSchema:
        return FakeSchema(self)


class FakeBackend:
    def __init__(self, spark: FakeSpark) -> None:
        self.spark: Any = spark

    def setting(self, key: str) -> str | None:
        del key
        return None


def task_of(sink: Operation, query: StreamQuery, config: dict[str, str] | None = None) -> DeployTask:
    def vertex(name: str, operation: Operation, *inputs: str, **more: Any) -> JobVertex:
        names = tuple(StepName(one) for one in inputs)
        return JobVertex(id=vertex_id(JOB, name), name=StepName(name), operation=operation, inputs=names, **more)

    graph = JobGraph(
        job_id=JOB,
        name="j",
        job_type=JobType.STREAMING,
        config=config or {},
        vertices=(
            vertex(
                "events",
                Source(format="json", paths=("/in",), schema="n LONG", stream=True),
                watermark=Watermark(column="ts", delay="1 minute"),
            ),
            vertex("out", sink, "events", query=query),
        ),
    )
    return DeployTask(
        attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=0),
        graph=graph,
        region=regions_of(graph)[0],
        slots=(0,),
        checkpoint_dir=f"/checkpoints/{JOB}",
    )


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def streaming(  # noqa: PLR0917 - each with a default
    spark: FakeSpark,
    query: StreamQuery = StreamQuery(uid="files-v1"),  # noqa: B008 - frozen
    sink: Operation = FILES,
    activity: Callable[[str], None] = lambda _: None,
    report: Callable[[QueryProgress], None] = lambda _: None,
    artifacts: Artifacts | None = None,
    checkpoint_dir: str = f"/checkpoints/{JOB}",
    drain: Callable[[], bool] = lambda: False,
    rescale: StateRescale | None = None,
    repartition: Callable[[str, int], None] = repartition,
    watch: Callable[[tuple[QueryFigures, ...]], None] = lambda _: None,
    clock: Clock | None = None,
    task: DeployTask | None = None,
) -> StreamingTask:
    task, backend, clock = task or task_of(sink, query), FakeBackend(spark), clock or Clock()
    task = structs.replace(task, checkpoint_dir=checkpoint_dir, rescale=rescale)
    kept: Any = artifacts
    frames = StepFrames(backend, task.graph, kept)  # pyright: ignore[reportArgumentType]
    return StreamingTask(
        task,
        backend,  # pyright: ignore[reportArgumentType]
        frames,
        kept,
        config={},
        activity=activity,
        report=report,
        watch=watch,
        drain=drain,
        repartition=repartition,
        now_s=lambda: clock.now_s,
        wait=clock.wait,
    )


def concurrent(text: str = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.") -> Exception:
    return AnalysisException(text)


OTHER_WORDS = (
    "[STREAM_FAILED] Query terminated: Concurrent update to the log. Multiple streaming jobs detected for 3",
    "Multiple streaming queries are concurrently using file:/checkpoints/job/uid/sources/0. SQLSTATE: XXKST",
    "Race while writing batch 7",
    "[CONCURRENT_QUERY] Another instance of this query was just started by a concurrent session.",
    "Cannot start query with id 1 as another query with same id is already active. Perhaps you are attempting to",
)

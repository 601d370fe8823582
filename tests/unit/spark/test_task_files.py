"""What a task reads is compared with its manifest, and what it writes has to be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import structs

from flintlock.model.errors import FlintlockError, JobFailed, Unavailable
from flintlock.model.files.manifests import manifest_of
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobgraph import EngineKind, JobGraph, JobVertex, vertex_id
from flintlock.model.operations import SaveMode, Sink, Source
from flintlock.model.regions import Region
from flintlock.model.streaming.streams import StreamQuery
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    StepOutput,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
)
from flintlock.spark.engine.publication.publish_plan import FileListing, MaterialisedStep, StagedSink, UnsharedPath
from flintlock.spark.runner.task_files import TaskFiles
from flintlock.testing.virtual_time import virtual_time

JOB = JobId("a" * 32)
CLEAN, OTHER, OUT = StepName("clean"), StepName("other"), StepName("out")
FILES = {"part-0": 10, "part-1": 20}
SINK = StagedSink(step=OUT, target="/out", staging="/out/.flintlock-x", mode=SaveMode.OVERWRITE)


class ListedPaths:
    """Files by directory and name; `after` is called after each listing."""

    def __init__(self, **directories: dict[str, int]) -> None:
        self.directories = {f"/{name}": dict(files) for name, files in directories.items()}
        self.durable: list[str] = []  # what was made durable, in order
        self.error: FlintlockError | None = None
        self.unshared: tuple[str, ...] = ()
        self.after: Callable[[], object] = lambda: None

    async def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        if durable:
            self.durable.append(path)
        if self.error is not None:
            raise self.error
        files = self.directories.get(path, {})
        names = tuple(sorted(files))
        listing = FileListing(files=names, sizes=tuple(files[name] for name in names) if with_sizes else ())
        self.after()
        return listing

    async def make_durable(self, path: str) -> None:
        self.durable.append(path)
        if self.error is not None:
            raise self.error

    async def find_unshared(self, targets: tuple[str, ...], sources: tuple[str, ...]) -> UnsharedPath | None:
        if self.error is not None:
            raise self.error
        return next(
            (UnsharedPath(path=path, reason=f"{path}!") for path in (*targets, *sources) if path in self.unshared), None
        )


def reading(*steps: StepName) -> DeployTask:
    """A task that reads results of other regions."""
    return DeployTask(
        attempt=AttemptId(job_id=JOB, region=RegionId(1), attempt=0),
        graph=JobGraph(job_id=JOB, name="test", vertices=()),
        region=Region(id=RegionId(1), steps=()),
        slots=(0,),
        inputs={step: f"/{step}" for step in steps},
        manifests={step: manifest_of(FILES, 5) for step in steps},
    )


async def completed(
    files: TaskFiles, *written: StagedSink | MaterialisedStep, counted: TaskMetrics | None = None
) -> TaskFinished | TaskFailed:
    for one in written:
        files.begin_listing(one)
    steps = [one.step for one in written]
    finished = TaskFinished(
        outputs=tuple(StepOutput(step=step) for step in steps),
        materialised={one.step: one.path for one in written if isinstance(one, MaterialisedStep)},
    )

    async def count() -> dict[StepName, TaskMetrics]:
        return {} if counted is None else dict.fromkeys(steps, counted)

    return await files.complete(finished, count())


@virtual_time
async def test_unchanged_inputs_are_no_failure() -> None:
    async with asyncio.TaskGroup() as tasks:
        files = TaskFiles(reading(CLEAN, OTHER), ListedPaths(clean=FILES, other=FILES), tasks)
        assert await files.changed_inputs() is None


@virtual_time
async def test_every_input_that_has_lost_a_part_is_a_missing_input() -> None:
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(clean={"part-0": 10}, other={"part-0": 10, "part-1": 19})
        failure = await TaskFiles(reading(CLEAN, OTHER), engine, tasks).changed_inputs()

    assert failure is not None
    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, (CLEAN, OTHER))
    assert "'clean': its file part-1 is missing" in failure.message
    assert "'other': its file part-1 has 19 of 20 bytes" in failure.message


@virtual_time
async def test_an_input_without_a_manifest_is_not_compared() -> None:
    """Records of older versions have none."""
    async with asyncio.TaskGroup() as tasks:
        task = structs.replace(reading(CLEAN), manifests={})
        assert await TaskFiles(task, ListedPaths(), tasks).changed_inputs() is None


@virtual_time
async def test_an_input_that_loses_a_file_during_the_work_fails_the_attempt_after_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(clean=FILES, **{"out/.flintlock-x": {"part-0": 1}})
        files = TaskFiles(reading(CLEAN), engine, tasks)
        assert await files.changed_inputs() is None
        del engine.directories["/clean"]["part-0"]
        outcome = await completed(files, SINK)

    assert isinstance(outcome, TaskFailed)
    assert (outcome.failure.kind, outcome.failure.missing) == (FailureKind.MISSING_INPUT, (CLEAN,))


@virtual_time
async def test_an_error_of_a_task_whose_input_has_changed_is_a_missing_input() -> None:
    failed = TaskFailed(failure=Failure(kind=FailureKind.USER_CODE, message="IndexError: no rows", missing=(OTHER,)))
    async with asyncio.TaskGroup() as tasks:
        explained = await TaskFiles(reading(CLEAN), ListedPaths(), tasks).explain(failed)
        unchanged = await TaskFiles(reading(CLEAN), ListedPaths(clean=FILES), tasks).explain(failed)

    assert explained.failure.kind is FailureKind.MISSING_INPUT
    assert set(explained.failure.missing) == {CLEAN, OTHER}
    assert unchanged == failed


@virtual_time
async def test_a_result_that_is_written_is_recorded_with_its_files_and_rows() -> None:
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(clean={**FILES, "_SUCCESS": 0})
        counted = TaskMetrics(write_records=7, write_bytes=30)
        outcome = await completed(
            TaskFiles(reading(), engine, tasks), MaterialisedStep(step=CLEAN, path="/clean"), counted=counted
        )

    assert isinstance(outcome, TaskFinished)
    assert engine.durable == ["/clean"], "before it is reported"
    assert outcome.manifests == {CLEAN: manifest_of(FILES, 7)}
    assert outcome.outputs == (StepOutput(step=CLEAN, rows=7, bytes=30),)


@virtual_time
async def test_a_result_of_the_task_itself_that_loses_a_file_before_the_end_fails_the_attempt() -> None:
    """Its sinks may have been computed from what was left of it."""
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(clean=FILES, **{"out/.flintlock-x": {"part-0": 1}})
        engine.after = lambda: engine.directories["/clean"].pop("part-0", None)
        outcome = await completed(
            TaskFiles(reading(), engine, tasks), MaterialisedStep(step=CLEAN, path="/clean"), SINK
        )

    assert isinstance(outcome, TaskFailed)
    assert (outcome.failure.kind, outcome.failure.missing) == (FailureKind.MISSING_INPUT, (CLEAN,))


@virtual_time
async def test_a_staging_directory_without_files_is_a_failure_if_rows_were_written() -> None:
    async with asyncio.TaskGroup() as tasks:
        files = TaskFiles(reading(), ListedPaths(out={"old": 1}), tasks)
        outcome = await completed(files, SINK, counted=TaskMetrics(write_records=1825, write_bytes=0))

    assert isinstance(outcome, TaskFailed)
    assert (outcome.failure.kind, outcome.failure.step) == (FailureKind.SPARK_TASK, OUT)
    assert "1825 rows" in outcome.failure.message
    assert "/out/.flintlock-x has 0 files" in outcome.failure.message


@virtual_time
async def test_a_sink_that_wrote_no_rows_may_have_no_files() -> None:
    async with asyncio.TaskGroup() as tasks:
        outcome = await completed(TaskFiles(reading(), ListedPaths(out={"old": 1}), tasks), SINK, counted=TaskMetrics())

    assert isinstance(outcome, TaskFinished)
    assert outcome.sinks[0].removes == ("/out/old",)


@virtual_time
async def test_a_blocking_result_without_files_is_a_failure_even_without_rows() -> None:
    async with asyncio.TaskGroup() as tasks:
        files = TaskFiles(reading(), ListedPaths(), tasks)
        outcome = await completed(files, MaterialisedStep(step=CLEAN, path="/clean"), counted=TaskMetrics())

    assert isinstance(outcome, TaskFailed)


@virtual_time
async def test_an_output_with_fewer_bytes_than_spark_wrote_is_a_failure() -> None:
    """Some executors wrote into a file system of their own."""
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(**{"out/.flintlock-x": {"part-0": 10}})
        outcome = await completed(
            TaskFiles(reading(), engine, tasks), SINK, counted=TaskMetrics(write_records=9, write_bytes=30)
        )

    assert isinstance(outcome, TaskFailed)
    assert "(30 bytes), but /out/.flintlock-x has 1 files (10 bytes)" in outcome.failure.message


@virtual_time
async def test_files_that_cannot_be_listed_fail_the_attempt_and_not_its_inputs() -> None:
    async with asyncio.TaskGroup() as tasks:
        engine = ListedPaths(clean=FILES)
        files = TaskFiles(reading(CLEAN), engine, tasks)
        engine.error = JobFailed("access denied")
        refused = await files.changed_inputs()
        engine.error = Unavailable("the engine died")
        lost = await files.changed_inputs()

    assert refused is not None
    assert (refused.kind, refused.missing) == (FailureKind.SPARK_TASK, ())
    assert lost is not None
    assert lost.kind is FailureKind.ENGINE_LOST


def writing(
    *paths: str,
    sources: tuple[str, ...] = (),
    engine: EngineKind = EngineKind.SHARED,
    other: str = "/elsewhere",
) -> DeployTask:
    """A task with sinks and sources, and one step of another region, which writes `other`."""
    sinks = [
        JobVertex(id=vertex_id(JOB, f"sink-{n}"), name=StepName(f"sink-{n}"), operation=Sink(format="csv", path=path))
        for n, path in enumerate(paths)
    ]
    read = JobVertex(id=vertex_id(JOB, CLEAN), name=CLEAN, operation=Source(format="csv", paths=sources))
    last = JobVertex(id=vertex_id(JOB, OTHER), name=OTHER, operation=Sink(format="csv", path=other))
    graph = JobGraph(job_id=JOB, name="test", vertices=(*sinks, read, last), engine=engine)
    steps = (*(sink.name for sink in sinks), CLEAN)
    return structs.replace(reading(), graph=graph, region=Region(id=RegionId(1), steps=steps))


@virtual_time
async def test_a_task_with_a_path_that_executors_see_elsewhere_is_refused_for_good() -> None:
    engine = ListedPaths()
    engine.unshared = ("/b", "/in", "/later")
    async with asyncio.TaskGroup() as tasks:
        sink = await TaskFiles(writing("/a", "/b"), engine, tasks).unshared_path()
        source = await TaskFiles(writing("/a", sources=("/in",)), engine, tasks).unshared_path()
        shared = await TaskFiles(writing("/a", sources=("/other",)), engine, tasks).unshared_path()
        later = await TaskFiles(writing("/a", other="/later"), engine, tasks).unshared_path()
        dedicated = await TaskFiles(writing("/b", engine=EngineKind.DEDICATED), engine, tasks).unshared_path()
        engine.error = Unavailable("gone")
        lost = await TaskFiles(writing("/a"), engine, tasks).unshared_path()

    assert sink == Failure(
        kind=FailureKind.CONFIGURATION, message="/b!", exception="PathNotShared", step=StepName("sink-1")
    )
    assert source is not None
    assert (source.kind, source.message, source.step) == (FailureKind.CONFIGURATION, "/in!", CLEAN)
    assert later is not None
    assert (later.message, later.step) == ("/later!", OTHER), "before anything of the job has run"
    assert (shared, dedicated) == (None, None)
    assert lost is not None
    assert lost.kind is FailureKind.ENGINE_LOST


@virtual_time
async def test_a_query_whose_checkpoint_executors_see_elsewhere_is_refused_for_good() -> None:
    """They would write its state there, and the offsets would be here."""
    engine, task = ListedPaths(), writing("/a", "/b")
    engine.unshared = ("/checkpoints/job",)
    queries = [structs.replace(vertex, query=StreamQuery(uid="u")) for vertex in task.graph.vertices[:1]]
    graph = structs.replace(task.graph, vertices=(*queries, *task.graph.vertices[1:]))
    task = structs.replace(task, graph=graph, checkpoint_dir="/checkpoints/job")
    async with asyncio.TaskGroup() as tasks:
        found = await TaskFiles(task, engine, tasks).unshared_path()

    assert found == Failure(
        kind=FailureKind.CONFIGURATION, message="/checkpoints/job!", exception="PathNotShared", step=StepName("sink-0")
    )


def querying(target: str) -> DeployTask:
    """A task with one query, from its task's graph of sinks."""
    task = writing(target, "/other")
    queries = [structs.replace(vertex, query=StreamQuery(uid=f"u{n}")) for n, vertex in enumerate(task.graph.vertices)]
    region = Region(id=RegionId(1), steps=(queries[0].name,), outputs=(queries[0].name,))
    graph = structs.replace(task.graph, vertices=tuple(queries))
    return structs.replace(task, graph=graph, region=region, checkpoint_dir="/checkpoints/job/")


@virtual_time
async def test_what_a_query_has_written_is_durable_before_its_task_has_finished() -> None:
    """Spark synchronises neither its checkpoint nor the files and the log of its sink."""
    engine, task = ListedPaths(), querying("/out")
    async with asyncio.TaskGroup() as tasks:
        outcome = await completed(TaskFiles(task, engine, tasks))

    assert isinstance(outcome, TaskFinished)
    assert engine.durable == ["/out", "/checkpoints/job/u0"]


@virtual_time
async def test_query_whose_files_cannot_be_made_durable_has_not_finished() -> None:
    for error, kind in ((JobFailed("disk error"), FailureKind.SPARK_TASK), (Unavailable("x"), FailureKind.ENGINE_LOST)):
        engine = ListedPaths()
        engine.error = error
        async with asyncio.TaskGroup() as tasks:
            outcome = await completed(TaskFiles(querying("/out"), engine, tasks))

        assert isinstance(outcome, TaskFailed)
        assert outcome.failure.kind is kind
        assert "what the query has written could not be made durable" in outcome.failure.message

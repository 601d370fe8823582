"""The files that one task reads and writes, listed through the engine: a runner has no access to Hadoop's file systems.

What a task writes is made durable and listed as soon as it is written, while the runner continues; what a query writes
is made durable when the query has ended. Whether a target has data already is checked while the runner still analyses.
An output that Spark has written, but that is not there, fails the attempt: executors that write into a file system of
their own look the same as success otherwise.

The blocking results that a task reads are compared with their manifests before the runner gets the task, and again
after its work: Spark lists the files in between. A result that differs is a missing input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, TypeAlias

from msgspec import structs

from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.files.job_paths import sources_of, targets_of, unstaged_files
from flintlock.model.files.manifests import Manifest, difference, manifest_of
from flintlock.model.files.staging import staged_sinks
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import EngineKind
from flintlock.model.operations import SaveMode, Sink
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    SinkFiles,
    StepOutput,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
)
from flintlock.spark.engine.executors.shared_paths import PATH_NOT_SHARED
from flintlock.spark.engine.publication.publish_plan import (
    FileListing,
    MaterialisedStep,
    StagedSink,
    has_data,
    needs_target_check,
    sink_files,
)
from flintlock.spark.runner.defaults import FileLister
from flintlock.spark.runner_messages import TargetsChecked

_Listed: TypeAlias = tuple[FileListing, FileListing]
"""What an output has written, and what its target has: empty where that does not matter."""


class TaskFiles:
    """The inputs, targets and outputs of one attempt."""

    def __init__(self, task: DeployTask, engine: FileLister | None, tasks: asyncio.TaskGroup) -> None:
        self._task: Final = task
        self._engine: Final = engine
        self._tasks: Final = tasks
        #: What was written so far, with its listing, which continues while the runner does.
        self._written: Final[list[tuple[StagedSink | MaterialisedStep, asyncio.Task[_Listed | FlintlockError]]]] = []

    @property
    def has_targets(self) -> bool:
        """Whether the task has to know which of its targets have data."""
        return bool(self._targets())

    async def changed_inputs(self) -> Failure | None:
        """Return the failure of a task whose inputs are not as they were written; None if they are."""
        return await self._changed(self._task.inputs, self._task.manifests)

    async def unshared_path(self) -> Failure | None:
        """Return the failure of a task whose job has a path that executors see elsewhere; None if it has none.

        All paths of the job, so that the first task finds what the last one could not write. A dedicated driver tests
        them itself (`region.unshared_paths`).
        """
        if self._engine is None or self._task.graph.engine is EngineKind.DEDICATED:
            return None
        graph = self._task.graph
        targets, sources = targets_of(graph, self._task.checkpoint_dir), sources_of(graph)
        try:
            found = await self._engine.find_unshared(tuple(targets), tuple(sources))
        except FlintlockError as error:
            return _engine_failure("paths could not be tested", error)
        if found is None:
            return None
        step = targets.get(found.path) or sources.get(found.path)
        return Failure(kind=FailureKind.CONFIGURATION, message=found.reason, exception=PATH_NOT_SHARED, step=step)

    async def explain(self, failed: TaskFailed) -> TaskFailed:
        """Return the failure of a task: a missing input, whatever its error says, if an input has changed."""
        if not self._task.manifests:
            return failed
        changed = await self.changed_inputs()
        if changed is None or changed.kind is not FailureKind.MISSING_INPUT:
            return failed
        missing = dict.fromkeys((*changed.missing, *failed.failure.missing))
        return TaskFailed(
            failure=structs.replace(failed.failure, kind=changed.kind, message=changed.message, missing=tuple(missing))
        )

    async def check_targets(self) -> TargetsChecked:
        """Return which sinks have data in their target already."""
        targets = self._targets()
        try:
            found = await asyncio.gather(*(self._list(path) for path in targets.values()))
        except FlintlockError as error:
            return TargetsChecked(problem=f"the sinks' targets could not be checked: {error.public}")
        return TargetsChecked(
            occupied=tuple(step for step, listing in zip(targets, found, strict=True) if has_data(listing.files))
        )

    def begin_listing(self, written: StagedSink | MaterialisedStep) -> None:
        """List what an output has written. An error is reported when the runner is done."""
        name = f"files-{written.step}-{self._task.attempt}"
        self._written.append((written, self._tasks.create_task(self._list_written(written), name=name)))

    async def complete(
        self, finished: TaskFinished, counting: Awaitable[Mapping[StepName, TaskMetrics]]
    ) -> TaskFinished | TaskFailed:
        """Return the outcome with files, rows and bytes; a failure if what was read or written is not there.

        `counting` returns what Spark counted for each output, as far as it did; the inputs are compared meanwhile.
        """
        try:
            counted, changed, undurable = await asyncio.gather(
                counting, self.changed_inputs(), self._make_unstaged_durable()
            )
        except FlintlockError as error:
            return TaskFailed(failure=_engine_failure("what was written could not be counted", error))
        problem = changed or undurable
        if problem is not None:
            return TaskFailed(failure=problem)
        outputs = {output.step: _with_counts(output, counted.get(output.step)) for output in finished.outputs}
        sinks: list[SinkFiles] = []
        manifests: dict[StepName, Manifest] = {}
        for written, listing in self._written:
            listed = await listing
            if isinstance(listed, FlintlockError):
                return TaskFailed(failure=_engine_failure("what was written could not be listed", listed))
            output, data = outputs[written.step], listed[0].data()
            lost = _lost_output(written, output, data)
            if lost is not None:
                return TaskFailed(failure=lost)
            outputs[written.step] = structs.replace(output, bytes=sum(data.values()) or output.bytes)
            match written:
                case StagedSink():
                    sinks.append(sink_files(written, listed[0].files, listed[1].files))
                case MaterialisedStep(step=step):
                    manifests[step] = manifest_of(data, output.rows)
        if len(outputs) > 1:  # the others may have been computed from its blocking results
            changed = await self._changed(finished.materialised, manifests)
            if changed is not None:
                return TaskFailed(failure=changed)
        return structs.replace(finished, outputs=tuple(outputs.values()), sinks=tuple(sinks), manifests=manifests)

    async def _make_unstaged_durable(self) -> Failure | None:
        """Make durable what a query has written beside all staging. Return the failure if that is not possible."""
        try:
            for path in unstaged_files(self._task):
                if self._engine is None:
                    raise Unavailable("there is no engine to make files durable with")
                await self._engine.make_durable(path)
        except FlintlockError as error:
            return _engine_failure("what the query has written could not be made durable", error)
        return None

    async def _changed(self, paths: Mapping[StepName, str], manifests: Mapping[StepName, Manifest]) -> Failure | None:
        """Return the failure of a task if one of these results is not as it was written; None if all are."""
        known = {step: path for step, path in paths.items() if step in manifests}
        try:
            listings = await asyncio.gather(*(self._list(path, with_sizes=True) for path in known.values()))
        except FlintlockError as error:
            return _engine_failure("materialised rows could not be listed", error)
        return _missing_input(
            {
                step: found
                for step, listing in zip(known, listings, strict=True)
                if (found := difference(manifests[step], listing.data())) is not None
            }
        )

    def _targets(self) -> dict[StepName, str]:
        return {
            vertex.name: vertex.operation.path
            for vertex in staged_sinks(self._task.graph, self._task.region)
            if isinstance(vertex.operation, Sink)
            and vertex.operation.path is not None
            and needs_target_check(vertex.operation)
        }

    async def _list_written(self, written: StagedSink | MaterialisedStep) -> _Listed | FlintlockError:
        try:
            match written:
                case StagedSink(staging=staging, target=target, mode=mode):
                    staged = await self._list(staging, with_sizes=True, durable=True)
                    return staged, await self._list(target) if mode is SaveMode.OVERWRITE else FileListing()
                case MaterialisedStep(path=path):
                    return await self._list(path, with_sizes=True, durable=True), FileListing()
        except FlintlockError as error:
            return error

    async def _list(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        if self._engine is None:
            raise Unavailable("there is no engine to list files with")
        return await self._engine.list_files(path, with_sizes=with_sizes, durable=durable)


def _with_counts(output: StepOutput, counted: TaskMetrics | None) -> StepOutput:
    if counted is None:
        return output
    return structs.replace(output, rows=counted.write_records or output.rows, bytes=counted.write_bytes or output.bytes)


def _lost_output(
    written: StagedSink | MaterialisedStep, output: StepOutput, files: Mapping[str, int]
) -> Failure | None:
    """Return the failure of an output of which less is there than Spark has written; None if all of it is there.

    Spark's tasks count the bytes of the files that they have committed, where their file system knows them. A blocking
    result is Parquet, which has a file even without rows.
    """
    place = written.staging if isinstance(written, StagedSink) else written.path
    size = sum(files.values())
    if size >= output.bytes and (files or (output.rows == 0 and isinstance(written, StagedSink))):
        return None
    return Failure(
        kind=FailureKind.SPARK_TASK,
        message=f"Spark wrote {output.rows} rows ({output.bytes} bytes), but {place} has {len(files)} files "
        f"({size} bytes): the path must be on a file system that this TaskManager and Spark's executors share",
        exception="OutputLost",
        step=written.step,
    )


def _missing_input(differences: Mapping[StepName, str]) -> Failure | None:
    if not differences:
        return None
    named = "; ".join(f"{str(step)!r}: {found}" for step, found in differences.items())
    return Failure(
        kind=FailureKind.MISSING_INPUT,
        message=f"materialised rows are not as they were written: {named}",
        exception="MissingInput",
        missing=tuple(differences),
    )


def _engine_failure(what: str, error: FlintlockError) -> Failure:
    kind = FailureKind.ENGINE_LOST if isinstance(error, Unavailable) else FailureKind.SPARK_TASK
    return Failure(kind=kind, message=f"{what}: {error.public}")

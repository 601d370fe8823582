"""Runs a region's actions one after another: blocking exchanges first, then sinks and results.

Before the first action the schemas of all other outputs are resolved, unless another region has done that already.
The first output is not resolved separately: Spark analyses it before it runs anything, so executing it is the analysis.

Staged sinks are written into a hidden directory of the attempt inside the target. Nothing is published here: the
TaskManager receives a message for each output that is written, and lists its files through the engine's file systems.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from flintlock.config.configuration import Configuration
from flintlock.config.options import MAX_RESULTS_BYTES, RESULT_BYTES
from flintlock.model.files.staging import staged_sinks, staging_directory
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex
from flintlock.model.operations import Guarantee, Result, SaveMode, Sink
from flintlock.model.regions import region_outputs
from flintlock.model.tasks import (
    Analysis,
    DeployTask,
    FailureKind,
    ResultRows,
    StepOutput,
    TaskFinished,
    TaskMetrics,
)
from flintlock.spark.engine.publication.publish_plan import (
    DYNAMIC,
    MaterialisedStep,
    StagedSink,
    is_dynamic,
    needs_target_check,
)
from flintlock.spark.region.backend import ResultTooLarge, SparkBackend
from flintlock.spark.region.errors.failures import TaskError, kind_of
from flintlock.spark.region.plan import StepFrames
from flintlock.spark.region.plugin_tables import is_plugin_table, write_plugin_table
from flintlock.spark.region.programs.lasting_tables import LastingTables
from flintlock.spark.region.rows import result_rows, too_large_together
from flintlock.spark.region.schemas import check_output
from flintlock.spark.runner_messages import TargetsChecked, Worked

#: The mode names of Spark's writers, the same in both backends.
_MODES: Final = {
    SaveMode.APPEND: "append",
    SaveMode.OVERWRITE: "overwrite",
    SaveMode.ERROR_IF_EXISTS: "error",
    SaveMode.IGNORE: "ignore",
}


class RegionTask:
    """One attempt to run one region."""

    def __init__(
        self,
        task: DeployTask,
        backend: SparkBackend,
        frames: StepFrames,
        *,
        config: Mapping[str, str],
        activity: Callable[[str], None],
        targets: Callable[[], TargetsChecked],
        written: Callable[[StagedSink | MaterialisedStep], None],
    ) -> None:
        self._task: Final = task
        self._graph: Final = task.graph
        self._region: Final = task.region
        self._backend: Final = backend
        self._frames: Final = frames
        self._activity: Final = activity
        self._targets: Final = targets
        self._written: Final = written
        self._config: Final = config
        self._current_step: StepName | None = None  # the output whose action runs; stays on failure
        self._outputs: Final[list[StepOutput]] = []
        self._materialised: Final[dict[StepName, str]] = {}
        self._results: Final[list[ResultRows]] = []
        self._operations: Final[dict[StepName, str]] = {}

    @property
    def current_step(self) -> StepName | None:
        """The step that was being built or executed when something failed."""
        return self._frames.current_step or self._current_step

    def find_failed_step(self, error: BaseException) -> tuple[StepName | None, BaseException]:
        """Return the step that caused an error, as far as resolving schemas again shows it, and its own error."""
        if isinstance(error, StepFailed):
            return error.step, error.cause
        step = self.current_step
        if step is None or step not in self._region.steps or self._frames.current_step is not None:
            return step, error
        vertex = self._graph.vertex(step)
        source = vertex.name if vertex.has_output else vertex.inputs[0]
        return self._frames.find_failed_step(source, error) or (step, error)

    def run(self) -> Worked:
        """Produce every output. Raises what user code or Spark raises; `current_step` then names the step."""
        outputs = tuple(vertex for vertex in region_outputs(self._graph, self._region) if self._is_wanted(vertex.name))
        self._check_tables()
        self._analyze(outputs)
        skipped = self._check_targets()
        try:
            for vertex in outputs:
                self._current_step = vertex.name
                if vertex.name in skipped:
                    self._outputs.append(StepOutput(step=vertex.name))
                else:
                    self._produce(vertex)
        finally:
            self._frames.release()
        finished = TaskFinished(
            outputs=tuple(self._outputs), materialised=self._materialised, results=tuple(self._results)
        )
        return Worked(finished=finished, operations=self._operations)

    def _check_tables(self) -> None:
        """Raise TaskError if a sink of the job would write a table that does not last."""
        tables = LastingTables(self._backend.setting)
        for vertex in self._graph.vertices:
            if isinstance(vertex.operation, Sink) and vertex.operation.table is not None:
                tables.check(vertex.operation.table, vertex.name)

    def _is_wanted(self, step: StepName) -> bool:
        """Whether an output is to be produced; of a region that is published already, only lost results are."""
        return self._task.outputs is None or step in self._task.outputs

    def _analyze(self, outputs: tuple[JobVertex, ...]) -> None:
        match self._task.analysis:
            case Analysis.WHOLE:
                self._activity("analysing")
                analyze(self._frames, self._graph, self._config, excluded=outputs[:1])
            case Analysis.REGION:
                for vertex in outputs[1:]:
                    resolve(self._frames, vertex, self._config)
            case Analysis.DONE:
                pass

    def _check_targets(self) -> frozenset[StepName]:
        """Return the sinks that have nothing to write. Raises TaskError for a target that must be empty and is not."""
        modes = {
            vertex.name: vertex.operation
            for vertex in staged_sinks(self._graph, self._region)
            if isinstance(vertex.operation, Sink)
            and self._is_wanted(vertex.name)
            and needs_target_check(vertex.operation)
        }
        if not modes:
            return frozenset()
        taken = {step: job_id for step, job_id in self._task.taken.items() if step in modes}
        for step, job_id in taken.items():
            if modes[step].mode is SaveMode.ERROR_IF_EXISTS:
                raise TaskError(
                    FailureKind.ANALYSIS,
                    f"job {job_id} writes to the path {modes[step].path!r}, and the sink's mode is 'errorifexists': "
                    "wait for that job's end, choose 'overwrite' or 'append', or another path",
                    step,
                )
            self._note(f"{step!r} writes nothing: job {job_id} writes to {modes[step].path}")
        found = self._targets()
        if found.problem is not None:
            raise TaskError(FailureKind.SPARK_TASK, found.problem)
        for step in found.occupied:
            sink = modes[step]
            if sink.mode is SaveMode.ERROR_IF_EXISTS:
                raise TaskError(
                    FailureKind.ANALYSIS,
                    f"the path {sink.path!r} has data already, and the sink's mode is 'errorifexists': "
                    "choose 'overwrite', 'append' or 'ignore', or another path",
                    step,
                )
            if step not in taken:
                self._note(f"{step!r} writes nothing: {sink.path} has data already")
        return frozenset((*found.occupied, *taken))

    def _note(self, text: str) -> None:
        """Write a line into the attempt's log."""
        sys.stderr.write(f"[flintlock: {text}]\n")

    def _produce(self, vertex: JobVertex) -> None:
        try:
            self._execute(vertex)
        except Exception as error:
            # A failure during building comes from a step's own code, which must not be called a second time.
            if kind_of(error) is FailureKind.ANALYSIS and self._frames.current_step is None:
                resolve(self._frames, vertex, self._config)  # raises a more exact error, if there is one
            raise

    def _execute(self, vertex: JobVertex) -> None:
        frame = self._frames.output(vertex)
        match vertex.operation:
            case Result(limit=limit):
                self._activity(f"collecting {vertex.name}")
                self._collect(vertex.name, frame, limit)
            case Sink() as sink:
                self._activity(f"writing {vertex.name}")
                self._write(vertex, sink, frame)
            case _:
                self._activity(f"materialising {vertex.name}")
                self._materialise(vertex.name, frame)

    def _materialise(self, step: StepName, frame: DataFrame) -> None:
        path = f"{self._task.work_dir.rstrip('/')}/{step}/{self._task.attempt.attempt}"
        frame.write.mode("overwrite").parquet(path)
        self._record_output(step, frame)
        self._materialised[step] = path
        self._written(MaterialisedStep(step=step, path=path))
        self._frames.rebind(step, path)

    def _write(self, vertex: JobVertex, sink: Sink, frame: DataFrame) -> None:
        staged = vertex.guarantee is Guarantee.STAGED and sink.path is not None
        options = writer_options(vertex, sink, self._graph.job_id)
        writer: Any = frame.write.options(**options)
        if sink.format is not None:
            writer = writer.format(sink.format)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if staged and sink.path is not None:
            staging = staging_directory(sink.path, self._task.attempt)
            writer.mode("error").save(staging)
            self._written(
                StagedSink(
                    step=vertex.name,
                    target=sink.path,
                    staging=staging,
                    mode=sink.mode,
                    dynamic=is_dynamic(sink, self._config),
                )
            )
        elif sink.table is not None and sink.format is None and is_plugin_table(sink.table, self._backend.setting):
            write_plugin_table(frame, sink, options)
        elif sink.table is not None:
            writer.mode(_MODES[sink.mode]).saveAsTable(sink.table)
        else:
            writer.mode(_MODES[sink.mode]).save(*([sink.path] if sink.path is not None else []))
        self._record_output(vertex.name, frame)

    def _collect(self, step: StepName, frame: DataFrame, limit: int) -> None:
        max_bytes = Configuration(self._graph.config).get(RESULT_BYTES)
        try:
            table, schema = self._backend.rows(frame.limit(limit + 1), max_bytes)
        except ResultTooLarge:
            raise self._too_large(step, max_bytes) from None
        rows = result_rows(step, table, schema, limit)
        if max(len(rows.arrow), len(rows.json)) > max_bytes:
            raise self._too_large(step, max_bytes)
        self._results.append(rows)
        if too_large_together(self._results):
            raise TaskError(
                FailureKind.CONFIGURATION,
                f"the results of this region, up to this one, hold more than {MAX_RESULTS_BYTES} bytes as Arrow and "
                "JSON together: lower their limits, select fewer columns, or write the rows with a sink",
                step,
            )
        self._outputs.append(StepOutput(step=step, rows=rows.rows, bytes=len(rows.arrow)))

    def _too_large(self, step: StepName, max_bytes: int) -> TaskError:
        return TaskError(
            FailureKind.CONFIGURATION,
            f"the result holds more than {max_bytes} bytes ({RESULT_BYTES.key}): lower its limit, select fewer "
            "columns, or write the rows with a sink",
            step,
        )

    def _record_output(self, step: StepName, frame: DataFrame) -> None:
        operation = self._backend.operation(frame)
        if operation is not None:
            self._operations[step] = operation
        counted = self._backend.take_write_metrics() or TaskMetrics()
        self._outputs.append(StepOutput(step=step, rows=counted.write_records, bytes=counted.write_bytes))


def writer_options(vertex: JobVertex, sink: Sink, job_id: JobId) -> dict[str, str]:
    """Return the writer options of a sink: its own, and those that its guarantee needs."""
    if vertex.guarantee is Guarantee.STAGED:
        return {key: value for key, value in sink.options.items() if key.lower() != DYNAMIC}
    return {**sink.transaction(job_id, vertex.name), **sink.options}


def analyze(
    frames: StepFrames, graph: JobGraph, config: Mapping[str, str], *, excluded: Sequence[JobVertex] = ()
) -> None:
    """Resolve the schema of every output of the graph but those `excluded`. Raises TaskError, or what steps raise."""
    for vertex in graph.vertices:
        if (not vertex.has_output or vertex.exchange is Exchange.BLOCKING) and vertex not in excluded:
            resolve(frames, vertex, config)


def resolve(frames: StepFrames, vertex: JobVertex, config: Mapping[str, str]) -> None:
    """Resolve an output's schema and check that it can be written. Raises StepFailed with the step that failed."""
    frame = frames.output(vertex)
    try:
        schema = frame.schema
    except Exception as error:  # noqa: BLE001 - any error here was caused by some step
        source = vertex.name if vertex.has_output else vertex.inputs[0]
        step, cause = frames.find_failed_step(source, error) or (source, error)
        raise StepFailed(step, cause) from cause
    check_output(vertex, schema, case_sensitive=config.get("spark.sql.caseSensitive", "false").lower() == "true")


class StepFailed(Exception):
    """The step that caused an error, with its own error as the cause."""

    def __init__(self, step: StepName, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.step: Final = step
        self.cause: Final = cause

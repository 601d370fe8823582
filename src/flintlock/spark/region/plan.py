"""Builds the DataFrames of a region's steps: one plan, which Spark optimises as a whole.

A step is built when it is first requested, inputs before consumers. A result of another region is read back from its
Parquet files; a blocking step of this region is, too, once it has been written (`rebind`). These files are read
through a view, so that Spark lists them once and not for every action. Before anything is written every
output's schema is resolved, so that a missing column in any step is found before the first Spark job.

Where pipelined steps read each other many times over, the plan grows with every path through the graph; where it gets
too large, a step becomes a view on the server, resolved once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import DataFrame

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, Scalar
from flintlock.model.operations import Function, Source, Sql
from flintlock.model.operations.function import is_reference
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.backend import SparkBackend
from flintlock.spark.region.errors.failures import StepSources, TaskError, kind_of, python_traceback, sources_of
from flintlock.spark.region.errors.missing_inputs import missing_inputs
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.programs.relative_paths import FILE_FORMATS, RelativePaths
from flintlock.spark.region.sql_text import command_of, with_absolute_paths

#: Paths through the graph that one relation may expand into.
MAX_PATHS: Final = 24
_BY_NAME: Final = ("params", "spark")


class StepFrames:
    """The steps of one graph as DataFrames of one session."""

    def __init__(
        self, backend: SparkBackend, graph: JobGraph, artifacts: Artifacts, inputs: Mapping[StepName, str] | None = None
    ) -> None:
        self._backend: Final = backend
        self.graph: Final = graph
        self._artifacts: Final = artifacts
        self._vertices: Final = {vertex.name: vertex for vertex in graph.vertices}
        self._order: Final = {vertex.name: index for index, vertex in enumerate(graph.vertices)}
        self._external_inputs: Final = dict(inputs or {})  # files of results of other regions
        self._inputs: Final = dict(self._external_inputs)  # and those of this region, as they are written
        self._built: Final[dict[StepName, DataFrame]] = {}  # emptied in part by rebind
        self._written: Final[dict[StepName, DataFrame]] = {}  # the frames that `rebind` has replaced by files
        self._paths: Final[dict[StepName, int]] = {}  # how large the relation of each built step is
        self._functions: Final[dict[StepName, Callable[..., Any]]] = {}
        self._queries: Final[dict[StepName, str]] = {}  # as Spark gets them
        self._cached: Final[list[DataFrame]] = []  # emptied by release
        self._current_step: StepName | None = None  # the step that is being built; stays on failure

    @property
    def current_step(self) -> StepName | None:
        """The step that is being built, or whose building failed."""
        return self._current_step

    @property
    def in_user_code(self) -> bool:
        """Whether a step's own function was being loaded or called when something failed."""
        return self._current_step is not None and isinstance(self._vertices[self._current_step].operation, Function)

    def get(self, step: StepName) -> DataFrame:
        """Return the rows of a step. Exceptions of its code pass through; `current_step` then names the step."""
        built = self._built.get(step)
        if built is not None:
            return built
        vertex = self._vertices[step]
        if step not in self._inputs:
            for source in vertex.inputs:
                self.get(source)
        self._current_step = step
        frame = self._build(vertex)
        if vertex.watermark is not None:
            frame = frame.withWatermark(vertex.watermark.column, vertex.watermark.delay)
        if vertex.cache and step not in self._inputs:
            frame = self._backend.as_view(frame, _private(step)).cache()
            self._cached.append(frame)
            self._paths[step] = 1
        self._built[step] = frame
        self._current_step = None
        return frame

    def output(self, vertex: JobVertex) -> DataFrame:
        """Return the rows that an output step writes: its input's, or its own if it is a blocking exchange."""
        return self.get(vertex.name if vertex.has_output else vertex.inputs[0])

    def rebind(self, step: StepName, path: str) -> None:
        """Make consumers read the step's rows from these files. Steps built on it are built again when requested."""
        self._written[step] = self._built[step]
        stale = {step}
        for vertex in self.graph.vertices:
            if stale.intersection(vertex.inputs):
                stale.add(vertex.name)
        for name in stale:
            self._built.pop(name, None)
        self._inputs[step] = path

    def find_failed_step(self, step: StepName, error: BaseException) -> tuple[StepName, BaseException] | None:
        """Return the first step that fails to resolve among a step and its ancestors, with that step's own error.

        For other errors, the source that it refers to. None if no step is known to have caused it.
        """
        if kind_of(error) is not FailureKind.ANALYSIS:
            source = self._source_of(step, error)
            return None if source is None else (source, error)
        for name in self._ancestors(step):
            try:
                self.get(name).schema  # noqa: B018 - resolving it is the point
            except Exception as found:  # noqa: BLE001 - any error here is this step's
                return name, found
        return None

    def _source_of(self, step: StepName, error: BaseException) -> StepName | None:
        """Return the source among a step and its ancestors that an error of a data source refers to, if one does."""
        spark = SparkError(error)
        if not spark.from_server or python_traceback(spark.message) is not None:
            return None
        for name in self._ancestors(step):
            operation = self._vertices[name].operation
            if isinstance(operation, Source) and name not in self._inputs and refers_to(operation, spark.message):
                return name
        return None

    def find_missing_inputs(self) -> tuple[StepName, ...]:
        """Return the results of other regions that can no longer be read."""
        gone: list[StepName] = []
        for step, path in self._external_inputs.items():
            try:
                self._backend.spark.read.parquet(path).schema  # noqa: B018 - resolving it is the point
            except Exception as error:  # noqa: BLE001 - any error is checked for its path
                gone += missing_inputs(error, step, {step: path})
        return tuple(gone)

    def sources(self) -> StepSources:
        """Return the code by which an error is attributed to a step."""
        queries = {v.name: v.operation.query for v in self.graph.vertices if isinstance(v.operation, Sql)}
        return sources_of(self._functions, {**queries, **self._queries})

    def release(self) -> None:
        """Unpersist cached frames, if the engine can still be reached."""
        while self._cached:
            with suppress(Exception):  # an error here must not hide the one that ended the task
                self._cached.pop().unpersist()

    def _build(self, vertex: JobVertex) -> DataFrame:
        if vertex.name in self._inputs:
            self._paths[vertex.name] = 1
            # Whatever the job's configuration says about its sources: a file that is gone is never skipped here.
            reader = self._backend.spark.read.options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
            written = self._written.get(vertex.name)
            if written is not None:
                reader = reader.schema(written.schema)
            return self._backend.as_view(reader.parquet(self._inputs[vertex.name]), _private(vertex.name))
        paths = 1 + sum(self._paths[source] for source in vertex.inputs)
        match vertex.operation:
            case Source():
                frame = self._source(vertex.operation)
            case Sql(query=query):
                frame = self._sql(vertex, query)
            case Function():
                frame = self._call(vertex, vertex.operation)
            case _:
                raise TaskError(FailureKind.INTERNAL, f"a {type(vertex.operation).__name__} has no rows", vertex.name)
        if paths > MAX_PATHS:
            frame, paths = self._backend.as_view(frame, _private(vertex.name)), 1
        self._paths[vertex.name] = paths
        return frame

    def _source(self, source: Source) -> DataFrame:
        if source.stream:
            return self._stream(source)
        reader = self._backend.spark.read.options(**self._options(source))
        if source.table is not None:
            return reader.table(source.table)
        if source.format is not None:
            reader = reader.format(self._format(source.format))
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load(list(source.paths)) if source.paths else reader.load()

    def _stream(self, source: Source) -> DataFrame:
        reader = self._backend.spark.readStream.options(**self._options(source))
        if source.table is not None:
            return reader.table(source.table)
        if source.format is not None:
            reader = reader.format(self._format(source.format))
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load(source.paths[0]) if source.paths else reader.load()

    def _options(self, source: Source) -> Mapping[str, str]:
        """Return the options of a source with an absolute path; those of its `paths` are absolute already."""
        if "path" not in source.options or (source.format or "").lower() not in FILE_FORMATS:
            return source.options
        return {**source.options, "path": self._absolute(source.options["path"])}

    def _absolute(self, path: str) -> str:
        return RelativePaths(self.graph.directory).absolute(path)

    def _format(self, name: str) -> str:
        """Return what Spark calls a format; a data source of the job's own files is registered in the session first."""
        if not is_reference(name):
            return name
        source = self._artifacts.data_source(name)
        self._backend.spark.dataSource.register(source)
        return source.name()

    def _sql(self, vertex: JobVertex, query: str) -> DataFrame:
        command = command_of(query)
        if command is not None:
            raise TaskError(
                FailureKind.ANALYSIS,
                f"{command} is a command, and a sql step is a query: it hands on rows and changes nothing. "
                "Write with a sink, or run a program",
                vertex.name,
            )
        if "`" in query:  # the paths in a query are quoted so
            query = with_absolute_paths(query, self._absolute)
        self._queries[vertex.name] = query
        views = [(str(name), self._built[name]) for name in sorted(vertex.inputs, key=self._order.__getitem__)]
        return self._backend.sql(query, views, self.graph.params)

    def _call(self, vertex: JobVertex, operation: Function) -> DataFrame:
        function = self._functions.get(vertex.name)
        if function is None:
            function = self._functions[vertex.name] = self._artifacts.function(operation)
        inputs = [self._built[name] for name in vertex.inputs]
        arguments, keywords = bind(vertex, function, inputs, self.graph.params, self._backend.spark)
        returned: object = function(*arguments, **keywords)
        if not isinstance(returned, DataFrame):
            what = "nothing" if returned is None else f"a {type(returned).__name__}"
            raise TaskError(
                FailureKind.USER_CODE, f"the function returned {what}; a step returns a DataFrame", vertex.name
            )
        return returned

    def _ancestors(self, step: StepName) -> Iterable[StepName]:
        wanted = {step}
        for vertex in reversed(self.graph.vertices):
            if vertex.name in wanted and vertex.name not in self._inputs:
                wanted.update(vertex.inputs)
        return [vertex.name for vertex in self.graph.vertices if vertex.name in wanted]


def bind(
    vertex: JobVertex,
    function: Callable[..., Any],
    inputs: Sequence[object],
    params: Mapping[str, Scalar],
    spark: object,
) -> tuple[list[object], dict[str, object]]:
    """Return the arguments of a step's function: inputs by position, `params` and `spark` by name if it has them.

    Raises TaskError if it does not take that many inputs.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature to check against
        return list(inputs), {}
    positional = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    # Parameters for inputs: a function may name one `params` or `spark`, if it has no other parameter for that input.
    others = [name for name in positional if name not in _BY_NAME]
    taken = others if len(others) >= len(inputs) else positional
    values = {"params": dict(params), "spark": spark}
    by_name = {
        name: values[name] for name in _BY_NAME if name in signature.parameters and name not in taken[: len(inputs)]
    }
    if others and taken is others and positional[: len(inputs)] != others[: len(inputs)]:
        arguments: list[object] = []
        keywords: dict[str, object] = {**dict(zip(others, inputs, strict=False)), **by_name}
    else:
        arguments, keywords = list(inputs), by_name
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        named = ", ".join(vertex.inputs) or "none"
        raise TaskError(
            FailureKind.USER_CODE,
            f"the step has {len(inputs)} input{'s' if len(inputs) != 1 else ''} ({named}), "
            f"but its function is {getattr(function, '__name__', 'called')}{signature}: {error}",
            vertex.name,
        ) from error
    return arguments, keywords


def refers_to(source: Source, message: str) -> bool:
    """Return whether the message of an error of Spark is about this source: its files, or its driver."""
    if any(path.partition("*")[0].rstrip("/") in message for path in source.paths if path.strip("/*")):
        return True
    driver = source.options.get("driver")
    jdbc = source.format is not None and source.format.lower() == "jdbc"
    return jdbc and ("No suitable driver" in message or (driver is not None and driver in message))


def _private(step: StepName) -> str:
    return f"__flintlock_{step}"

"""A region's steps become DataFrames: one plan, which Spark optimises as a whole.

Steps are built when they are first asked for, inputs before consumers. A result of another region is read back from
its Parquet files; a blocking step of this region is, too, once it has been written (`rebind`). These files are named
as a view: looked at once, and not again for every action. Before anything is written every output's schema is
resolved, so that a missing column is found before the first Spark job, in whichever step it is.

Pipelined steps that read each other many times over would make a plan that grows with every path through the graph;
where it gets too large, a step is made a view of the server's, resolved once.
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
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.backend import Door
from flintlock.spark.region.failures import StepSources, TaskError, clues_of, kind_of
from flintlock.spark.region.missing_inputs import lost_inputs
from flintlock.spark.region.sql_text import command_of

#: Paths through the graph that one relation may unfold into.
MAX_PATHS: Final = 24
_GIVEN: Final = ("params", "spark")


class Frames:
    """The steps of one graph as DataFrames of one session."""

    def __init__(
        self, door: Door, graph: JobGraph, artifacts: Artifacts, inputs: Mapping[StepName, str] | None = None
    ) -> None:
        self._door: Final = door
        self._graph: Final = graph
        self._artifacts: Final = artifacts
        self._vertices: Final = {vertex.name: vertex for vertex in graph.vertices}
        self._order: Final = {vertex.name: index for index, vertex in enumerate(graph.vertices)}
        self._given: Final = dict(inputs or {})  # results of other regions
        self._inputs: Final = dict(self._given)  # and those of this one, as they are written
        self._built: Final[dict[StepName, DataFrame]] = {}  # emptied in part by rebind
        self._written: Final[dict[StepName, DataFrame]] = {}  # whose rows rebind's files hold
        self._paths: Final[dict[StepName, int]] = {}  # how large the relation of each built step is
        self._functions: Final[dict[StepName, Callable[..., Any]]] = {}
        self._cached: Final[list[DataFrame]] = []  # emptied by release
        self._doing: StepName | None = None  # the step that is being built; stays on failure

    @property
    def doing(self) -> StepName | None:
        """The step whose building failed, if one did."""
        return self._doing

    @property
    def in_user_code(self) -> bool:
        """Whether a step's own function was being opened or called when something failed."""
        return self._doing is not None and isinstance(self._vertices[self._doing].operation, Function)

    def get(self, step: StepName) -> DataFrame:
        """Return the rows of a step. What its code raises comes as it is; `doing` then names the step."""
        built = self._built.get(step)
        if built is not None:
            return built
        vertex = self._vertices[step]
        if step not in self._inputs:
            for source in vertex.inputs:
                self.get(source)
        self._doing = step
        frame = self._build(vertex)
        if vertex.cache and step not in self._inputs:
            frame = self._door.named(frame, _private(step)).cache()
            self._cached.append(frame)
            self._paths[step] = 1
        self._built[step] = frame
        self._doing = None
        return frame

    def output(self, vertex: JobVertex) -> DataFrame:
        """Return the rows that an output step writes: its input's, or its own if it is a blocking exchange."""
        return self.get(vertex.name if vertex.has_output else vertex.inputs[0])

    def rebind(self, step: StepName, path: str) -> None:
        """Have consumers read the step's rows from these files. What was built on it is built anew when asked for."""
        self._written[step] = self._built[step]
        stale = {step}
        for vertex in self._graph.vertices:
            if stale.intersection(vertex.inputs):
                stale.add(vertex.name)
        for name in stale:
            self._built.pop(name, None)
        self._inputs[step] = path

    def blame(self, step: StepName, error: BaseException) -> tuple[StepName, BaseException]:
        """Return the earliest step that fails to resolve among a step and all it reads, with its own error."""
        if kind_of(error) is not FailureKind.ANALYSIS:
            return step, error
        for name in self._ancestors(step):
            try:
                self.get(name).schema  # noqa: B018 - resolving it is the point
            except Exception as found:  # noqa: BLE001 - whatever it is, it is this step's
                return name, found
        return step, error

    def lost(self) -> tuple[StepName, ...]:
        """Return the results of other regions that can no longer be read."""
        gone: list[StepName] = []
        for step, path in self._given.items():
            try:
                self._door.spark.read.parquet(path).schema  # noqa: B018 - resolving it is the point
            except Exception as error:  # noqa: BLE001 - whatever it is, it tells of its path
                gone += lost_inputs(error, step, {step: path})
        return tuple(gone)

    def clues(self) -> StepSources:
        """Return what tells whose step an error belongs to."""
        queries = {v.name: v.operation.query for v in self._graph.vertices if isinstance(v.operation, Sql)}
        return clues_of(self._functions, queries)

    def release(self) -> None:
        """Give back what was cached, as far as the engine still hears."""
        while self._cached:
            with suppress(Exception):  # nothing that goes wrong here is worth hiding what went wrong before
                self._cached.pop().unpersist()

    def _build(self, vertex: JobVertex) -> DataFrame:
        if vertex.name in self._inputs:
            self._paths[vertex.name] = 1
            reader = self._door.spark.read
            written = self._written.get(vertex.name)
            if written is not None:
                reader = reader.schema(written.schema)
            return self._door.named(reader.parquet(self._inputs[vertex.name]), _private(vertex.name))
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
            frame, paths = self._door.named(frame, _private(vertex.name)), 1
        self._paths[vertex.name] = paths
        return frame

    def _source(self, source: Source) -> DataFrame:
        reader = self._door.spark.read.options(**source.options)
        if source.table is not None:
            return reader.table(source.table)
        if source.format is not None:
            reader = reader.format(source.format)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load(list(source.paths)) if source.paths else reader.load()

    def _sql(self, vertex: JobVertex, query: str) -> DataFrame:
        command = command_of(query)
        if command is not None:
            raise TaskError(
                FailureKind.ANALYSIS,
                f"{command} is a command, and a sql step is a query: it hands on rows and changes nothing. "
                "Write with a sink, or run a program",
                vertex.name,
            )
        views = [(str(name), self._built[name]) for name in sorted(vertex.inputs, key=self._order.__getitem__)]
        return self._door.sql(query, views, self._graph.params)

    def _call(self, vertex: JobVertex, operation: Function) -> DataFrame:
        function = self._functions.get(vertex.name)
        if function is None:
            function = self._functions[vertex.name] = self._artifacts.function(operation)
        inputs = [self._built[name] for name in vertex.inputs]
        arguments, keywords = bind(vertex, function, inputs, self._graph.params, self._door.spark)
        returned: object = function(*arguments, **keywords)
        if not isinstance(returned, DataFrame):
            what = "nothing" if returned is None else f"a {type(returned).__name__}"
            raise TaskError(
                FailureKind.USER_CODE, f"the function returned {what}; a step returns a DataFrame", vertex.name
            )
        return returned

    def _ancestors(self, step: StepName) -> Iterable[StepName]:
        wanted = {step}
        for vertex in reversed(self._graph.vertices):
            if vertex.name in wanted and vertex.name not in self._inputs:
                wanted.update(vertex.inputs)
        return [vertex.name for vertex in self._graph.vertices if vertex.name in wanted]


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
    except (TypeError, ValueError):  # a builtin, perhaps: it has to know what it takes
        return list(inputs), {}
    positional = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    # The inputs' own places: a function may name an input `params` or `spark`, if it has no other place for it.
    others = [name for name in positional if name not in _GIVEN]
    taken = others if len(others) >= len(inputs) else positional
    by_name = {"params": dict(params), "spark": spark}
    given = {
        name: by_name[name] for name in _GIVEN if name in signature.parameters and name not in taken[: len(inputs)]
    }
    if others and taken is others and positional[: len(inputs)] != others[: len(inputs)]:
        arguments: list[object] = []
        keywords: dict[str, object] = {**dict(zip(others, inputs, strict=False)), **given}
    else:
        arguments, keywords = list(inputs), given
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


def _private(step: StepName) -> str:
    return f"__flintlock_{step}"

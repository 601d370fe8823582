"""Is this JobGraph one that can be run? Asked when it is built and again when it is received.

All problems are found at once, each with the step and the field where it stands, so that a user mends a file in one
go. What needs Spark (columns, types) is found later, by analysis, before any Spark job runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from graphlib import CycleError
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec import Struct, structs

from flintlock.model.errors import Invalid
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import (
    MAX_PARALLELISM,
    STAGED_FORMATS,
    EngineKind,
    Exchange,
    Function,
    JobGraph,
    JobType,
    JobVertex,
    Program,
    Result,
    Sink,
    Source,
    Sql,
)
from flintlock.model.regions import regions_of, topological

VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
MAX_RESULT_ROWS: Final = 100_000
LEAST_MEMORY: Final = 256 << 20  # a runner has PySpark in it
_LONG: Final = range(-(1 << 63), 1 << 63)  # what Spark, and the wire, have room for


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    message: str
    step: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = f"step {self.step!r}" if self.step is not None else "job"
        where = f"{place}, field {self.field!r}" if self.field else place
        return f"{where}: {self.message}"

    @property
    def path(self) -> tuple[str, ...]:
        """Where it stands in the outer document, as keys from its root."""
        head = ("steps", self.step) if self.step is not None else ()
        return (*head, self.field) if self.field else head


def check_graph(graph: JobGraph) -> JobGraph:
    """Return the graph with its vertices in topological order, or raise Invalid with every problem found."""
    problems = list(problems_of(graph))
    if problems:
        raise invalid_graph(graph.name, problems)
    return in_order(graph)


def in_order(graph: JobGraph) -> JobGraph:
    """Return the graph with its vertices in topological order. It must be free of problems."""
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    return structs.replace(graph, vertices=tuple(by_name[name] for name in topological(graph.vertices)))


def invalid_graph(name: str, problems: list[Problem]) -> Invalid:
    """Return the error for a job with these problems."""
    lines = tuple(str(problem) for problem in problems)
    return Invalid(f"job {name!r} is not valid: " + "; ".join(lines), problems=lines)


def problems_of(graph: JobGraph) -> Iterator[Problem]:
    """Yield every problem of the graph; an empty answer means that it can be planned."""
    yield from _job_problems(graph)
    yield from _artifact_problems(graph)
    steps = {vertex.name: vertex for vertex in graph.vertices}
    artifacts = {artifact.name for artifact in graph.artifacts}
    for vertex in graph.vertices:
        yield from _step_problems(vertex, steps)
        yield from _operation_problems(vertex, artifacts)
    yield from _resource_problems(graph)
    yield from _name_clashes(graph)
    yield from _shared_targets(graph)
    dangling = any(source not in steps for vertex in graph.vertices for source in vertex.inputs)
    if dangling or len(steps) != len(graph.vertices):
        return
    try:
        topological(graph.vertices)
    except CycleError as error:
        cycle = " -> ".join(error.args[1])  # in the direction that rows would flow
        yield Problem(step=error.args[1][0], field="inputs", message=f"the steps form a cycle: {cycle}")
        return
    yield from _region_parallelism(graph, steps)


def _job_problems(graph: JobGraph) -> Iterator[Problem]:
    if not graph.name.strip():
        yield Problem(field="name", message="the job needs a name")
    elif not graph.name.isprintable():
        yield Problem(field="name", message=f"{graph.name!r} has characters that cannot be printed")
    if not graph.vertices:
        yield Problem(field="steps", message="the job has no steps")
    if graph.parallelism is not None and not 1 <= graph.parallelism <= MAX_PARALLELISM:
        yield Problem(field="parallelism", message=_parallelism_message(graph.parallelism))
    if graph.job_type is JobType.STREAMING:
        yield Problem(
            field="type",
            message="streaming job graphs are not supported by this version; "
            "run a Structured Streaming script as a program",
        )
    for name, value in graph.params.items():
        if isinstance(value, int) and value not in _LONG:
            yield Problem(field="params", message=f"{name!r} does not fit into 64 bits; send it as text")
    programs = [vertex for vertex in graph.vertices if isinstance(vertex.operation, Program)]
    if programs and len(graph.vertices) > 1:
        yield Problem(
            step=programs[0].name,
            message="a program is a job of its own: it cannot have other steps beside it",
        )
    if graph.engine is EngineKind.DEDICATED and not programs:
        yield Problem(field="engine", message="only programs can have a dedicated engine")
    if graph.vertices and not any(isinstance(vertex.operation, Sink | Result | Program) for vertex in graph.vertices):
        yield Problem(field="steps", message="nothing to do: the job has neither a sink nor a result")


def _artifact_problems(graph: JobGraph) -> Iterator[Problem]:
    for name, count in Counter(artifact.name for artifact in graph.artifacts).items():
        if count > 1:
            yield Problem(field="artifacts", message=f"there are {count} artifacts called {name!r}")
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
            yield Problem(
                field="artifacts", message=f"{name!r} cannot be the name of an artifact: give a relative path"
            )


def _step_problems(vertex: JobVertex, steps: Mapping[StepName, JobVertex]) -> Iterator[Problem]:
    step = vertex.name
    if not step:
        yield Problem(step=step, message="a step needs a name")
    elif not VIEW_NAME.fullmatch(step):
        yield Problem(
            step=step,
            message="the name cannot be a SQL view: use letters, digits and underscores, not starting with a digit",
        )
    if vertex.parallelism is not None and not 1 <= vertex.parallelism <= MAX_PARALLELISM:
        yield Problem(step=step, field="parallelism", message=_parallelism_message(vertex.parallelism))
    for source in vertex.inputs:
        if source not in steps:
            near = get_close_matches(source, steps, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield Problem(step=step, field="inputs", message=f"there is no step {source!r}{hint}")
        elif not steps[source].has_output:
            yield Problem(step=step, field="inputs", message=f"step {source!r} has no output to read from")
    if vertex.exchange is Exchange.BLOCKING and not vertex.has_output:
        yield Problem(step=step, field="exchange", message="only a step that others read from has an exchange")
    if vertex.cache and not vertex.has_output:
        yield Problem(step=step, field="cache", message="only a step that others read from can be cached")


def _operation_problems(vertex: JobVertex, artifacts: set[str]) -> Iterator[Problem]:
    step, given = vertex.name, len(vertex.inputs)
    match vertex.operation:
        case Source() as source:
            if given:
                yield Problem(step=step, field="inputs", message="a source has no inputs")
            yield from _source_problems(step, source)
        case Sql(query=query):
            if not query.strip():
                yield Problem(step=step, field="sql", message="the query is empty")
        case Function() as function:
            yield from _function_problems(step, function, artifacts)
        case Sink() as sink:
            if given != 1:
                yield Problem(step=step, field="inputs", message=f"a sink needs exactly one input, not {given}")
            yield from _sink_problems(step, sink)
        case Result(limit=limit):
            if given != 1:
                yield Problem(step=step, field="inputs", message=f"a result needs exactly one input, not {given}")
            yield from _limit_problems(step, limit)
        case Program(file=file):
            if given:
                yield Problem(step=step, field="inputs", message="a program has no inputs")
            if file not in artifacts:
                yield Problem(step=step, field="program", message=f"the file {file!r} is not among the job's artifacts")


def _source_problems(step: str, source: Source) -> Iterator[Problem]:
    if source.stream:
        yield Problem(
            step=step,
            field="source",
            message="this version has no streaming sources; run a Structured Streaming script as a program",
        )
    if source.table is not None and (source.paths or source.format is not None):
        yield Problem(step=step, field="source", message="give either a table, or a format with its path, not both")
    elif source.table is None and source.format is None:
        yield Problem(step=step, field="source", message="needs a format (with a path, where it has one) or a table")
    elif _is_file_format(source.format) and not source.paths and "path" not in source.options:
        yield Problem(step=step, field="source", message=f"the format {source.format!r} needs a path")
    yield from _empty_texts(step, "source", format=(source.format,), table=(source.table,), path=source.paths)
    if source.table is not None and source.schema is not None:
        yield Problem(step=step, field="source", message="a table has its own schema")


def _function_problems(step: str, function: Function, artifacts: set[str]) -> Iterator[Problem]:
    if (function.reference is None) == (function.pickle is None):
        yield Problem(step=step, field="function", message="needs either 'module:name' or a pickled function")
    elif function.reference is not None and not REFERENCE.fullmatch(function.reference):
        yield Problem(
            step=step,
            field="function",
            message=f"{function.reference!r} does not have the form 'package.module:name'",
        )
    elif function.pickle is not None and function.pickle not in artifacts:
        yield Problem(
            step=step,
            field="function",
            message=f"the pickled function {function.pickle!r} is not among the artifacts",
        )


def _limit_problems(step: str, limit: int) -> Iterator[Problem]:
    if not 1 <= limit <= MAX_RESULT_ROWS:
        yield Problem(
            step=step,
            field="result",
            message=f"limit must be from 1 to {MAX_RESULT_ROWS}, not {limit}; write more rows with a sink",
        )


def _sink_problems(step: str, sink: Sink) -> Iterator[Problem]:
    if sink.table is not None and sink.path is not None:
        yield Problem(step=step, field="sink", message="give either a table or a path, not both")
    elif sink.table is None and sink.format is None:
        yield Problem(step=step, field="sink", message="needs a format (with a path, where it has one) or a table")
    elif sink.table is None and sink.path is None and _is_file_format(sink.format):
        hint = ": give it as 'path', not as an option" if "path" in sink.options else ""
        yield Problem(step=step, field="sink", message=f"the format {sink.format!r} needs a path{hint}")
    yield from _empty_texts(step, "sink", format=(sink.format,), table=(sink.table,), path=(sink.path,))
    repeated = [column for column, count in Counter(sink.partition_by).items() if count > 1]
    if repeated:
        yield Problem(step=step, field="sink", message=f"partitions by {repeated[0]!r} more than once")


def _is_file_format(form: str | None) -> bool:
    return form is not None and form.lower() in STAGED_FORMATS


def _empty_texts(step: str, field: str, **given: tuple[str | None, ...]) -> Iterator[Problem]:
    for name, texts in given.items():
        if any(text is not None and not text.strip() for text in texts):
            yield Problem(step=step, field=field, message=f"the {name} is empty")


def _name_clashes(graph: JobGraph) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for vertex in graph.vertices:
        first = seen.setdefault(vertex.name.lower(), vertex.name)
        if first != vertex.name:
            yield Problem(step=vertex.name, message=f"Spark cannot tell its view from that of step {first!r}")
    for name, count in Counter(vertex.name for vertex in graph.vertices).items():
        if count > 1:
            yield Problem(step=name, message=f"there are {count} steps of this name")


def _shared_targets(graph: JobGraph) -> Iterator[Problem]:
    """Two sinks at one path overwrite each other; one inside the other's directory is removed as its old content."""
    paths = {vertex.name: vertex.operation.path for vertex in graph.vertices if isinstance(vertex.operation, Sink)}
    if len(paths) < 2:
        return
    targets: dict[PurePosixPath, str] = {}
    for name, path in paths.items():
        if path is not None and path.strip():
            first = targets.setdefault(PurePosixPath(normpath(path)), name)
            if first != name:
                yield Problem(step=name, field="sink", message=f"writes to the same path as step {first!r}")
    for target, name in targets.items():
        outer = next((targets[parent] for parent in target.parents if parent in targets), None)
        if outer is not None:
            yield Problem(step=name, field="sink", message=f"writes inside the path of step {outer!r}")


def _resource_problems(graph: JobGraph) -> Iterator[Problem]:
    given = [vertex for vertex in graph.vertices if vertex.resources is not None]
    if given and len(given) < len(graph.vertices):
        without = next(vertex for vertex in graph.vertices if vertex.resources is None)
        message = f"step {given[0].name!r} says what it needs: then every step has to, or none"
        yield Problem(step=without.name, field="cpu", message=message)
    for vertex in given:
        wanted = vertex.resources
        if wanted is None:
            continue
        if not (0 <= wanted.cpu <= MAX_PARALLELISM and math.isfinite(wanted.cpu)):
            message = f"must be a number of cores from 0 to {MAX_PARALLELISM}, not {wanted.cpu}"
            yield Problem(step=vertex.name, field="cpu", message=message)
        if wanted.memory and wanted.memory < LEAST_MEMORY:
            message = f"a task cannot run with less than {LEAST_MEMORY >> 20}m"
            yield Problem(step=vertex.name, field="memory", message=message)
    if graph.client_timeout_s is not None and not 1 <= graph.client_timeout_s < math.inf:
        yield Problem(field="clientTimeout", message=f"must be at least one second, not {graph.client_timeout_s}")


def _region_parallelism(graph: JobGraph, steps: Mapping[StepName, JobVertex]) -> Iterator[Problem]:
    if len({vertex.parallelism for vertex in graph.vertices} - {None}) < 2:
        return  # nobody can disagree
    for region in regions_of(graph):
        wanted = {name: p for name in region.steps if (p := steps[name].parallelism) is not None}
        if len(set(wanted.values())) > 1:
            said = ", ".join(f"{name}={value}" for name, value in wanted.items())
            yield Problem(
                step=next(iter(wanted)),
                field="parallelism",
                message=f"the steps of one region must agree on a parallelism, but: {said}",
            )


def _parallelism_message(value: int) -> str:
    return f"must be from 1 to {MAX_PARALLELISM}, not {value}"

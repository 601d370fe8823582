"""Checks whether a JobGraph can be run: when it is built and again when it is received.

All problems are reported at once, each with its step and field, so that a user can fix a file in one pass. What needs
Spark (columns, types) is found later, by analysis, before any Spark job runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec import structs

from flintlock.model.access.secret_references import reference_problems
from flintlock.model.checking.dependencies import dependency_problems
from flintlock.model.checking.limits import limit_problems
from flintlock.model.checking.problems import Problem, abbreviated, reported
from flintlock.model.checking.streaming import streaming_problems
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.errors import Invalid
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import MAX_PARALLELISM, EngineKind, Exchange, JobGraph, JobVertex
from flintlock.model.operations import Sink, Source, Sql
from flintlock.model.operations.kind import is_file_format, is_relative
from flintlock.model.operations.sql_tokens import COMMENT, QUOTED, UNCLOSED
from flintlock.model.regions import regions_of, shared_steps, topological, values_of_region

VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LABEL_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
#: A parameter of a query, or what only looks like one: quoted text, a comment, a cast, a path into a value, a type.
_MARKER: Final = re.compile(
    rf"{QUOTED}|{COMMENT}|{UNCLOSED}"
    r"""|(?<![\w:)\]`"'.]):([A-Za-z_]\w*)""",
    re.DOTALL,
)
LEAST_MEMORY: Final = 256 << 20  # a runner has PySpark in it
_LONG: Final = range(-(1 << 63), 1 << 63)  # the integers that Spark and msgpack can represent


def check_graph(graph: JobGraph) -> JobGraph:
    """Return the graph with its vertices in topological order, or raise Invalid with every problem found."""
    lines = reported(problems_of(graph))
    if lines:
        raise invalid_job(graph.name, lines)
    return in_order(graph)


def invalid_job(name: str, lines: tuple[str, ...]) -> Invalid:
    """Return the error of a job with these problems."""
    return Invalid(f"job {abbreviated(name)!r} is not valid: " + "; ".join(lines), problems=lines)


def in_order(graph: JobGraph) -> JobGraph:
    """Return the graph with its vertices in topological order. It must be free of problems."""
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    return structs.replace(graph, vertices=tuple(by_name[name] for name in topological(graph.vertices)))


def problems_of(graph: JobGraph) -> Iterator[Problem]:
    """Yield every problem of the graph; a graph without problems can be planned."""
    exceeded = tuple(limit_problems(graph))
    yield from exceeded
    if exceeded:
        return  # the other checks are made for jobs within the limits
    yield from _job_problems(graph)
    yield from _label_problems(graph)
    yield from _artifact_problems(graph)
    yield from dependency_problems(graph)
    yield from reference_problems(graph)
    suggestions = Suggestions()
    steps = {vertex.name: vertex for vertex in graph.vertices}
    artifacts = {artifact.name for artifact in graph.artifacts}
    for vertex in graph.vertices:
        yield from _step_problems(vertex, steps, suggestions)
        for problem in vertex.operation.problems(len(vertex.inputs), artifacts):
            yield structs.replace(problem, step=vertex.name)
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
    yield from streaming_problems(graph)
    yield from _region_parallelism(graph, steps)


def submission_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield what a job that is submitted must not have, though one that was accepted earlier may."""
    yield from _relative_path_problems(graph)
    yield from _unbound_parameters(graph)


def _unbound_parameters(graph: JobGraph) -> Iterator[Problem]:
    """Yield the `:name` of queries that stand for no parameter of the job."""
    suggestions = Suggestions()
    for vertex in graph.vertices:
        if isinstance(vertex.operation, Sql):
            found = dict.fromkeys(match[1] for match in _MARKER.finditer(vertex.operation.query) if match[1])
            for name in [name for name in found if name not in graph.params]:
                hint = suggestions.suggestion(name, graph.params)
                yield Problem(step=vertex.name, field="sql", message=f"no parameter {name!r} for :{name}{hint}")


def _relative_path_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield the relative data paths of a job that is submitted. A client makes them absolute; a cluster cannot."""
    for vertex in graph.vertices:
        match vertex.operation:
            case Source(paths=paths, format=form) if is_file_format(form):
                found = [path for path in paths if is_relative(path) and "${" not in path]
            case Sink(path=str(path), format=form) if is_file_format(form) and is_relative(path) and "${" not in path:
                found = [path]
            case _:
                continue
        for path in found:
            message = f"the path {abbreviated(path)!r} is relative: give an absolute one"
            yield Problem(step=vertex.name, field=vertex.operation.kind, message=message)


def _label_problems(graph: JobGraph) -> Iterator[Problem]:
    for key, value in graph.labels.items():
        if not LABEL_KEY.fullmatch(key):
            message = f"{key!r} cannot be the key of a label: use letters (a-z), digits, '-', '_', '.' and '/'"
            yield Problem(field="labels", message=message)
        elif not value.isprintable() or "," in value:
            message = f"the value {value!r} of {key!r} has a comma, or characters that cannot be printed"
            yield Problem(field="labels", message=message)


def _job_problems(graph: JobGraph) -> Iterator[Problem]:
    if not graph.name.strip():
        yield Problem(field="name", message="the job needs a name")
    elif not graph.name.isprintable():
        yield Problem(field="name", message=f"{graph.name!r} has characters that cannot be printed")
    if not graph.vertices:
        yield Problem(field="steps", message="the job has no steps")
    if graph.parallelism is not None and not 1 <= graph.parallelism <= MAX_PARALLELISM:
        yield Problem(field="parallelism", message=_parallelism_message(graph.parallelism))
    if graph.engine is EngineKind.AUTO and graph.vertices and not any(v.operation.alone for v in graph.vertices):
        yield Problem(field="engine", message="only a program can have the engine 'auto': choose shared or dedicated")
    if graph.directory and (not graph.directory.startswith("/") or "\0" in graph.directory):
        yield Problem(field="directory", message=f"{abbreviated(graph.directory)!r} is not an absolute path")
    for name, value in graph.params.items():
        if isinstance(value, int) and value not in _LONG:
            yield Problem(field="params", message=f"{name!r} does not fit into 64 bits; send it as text")
    alone = [vertex for vertex in graph.vertices if vertex.operation.alone]
    if alone and len(graph.vertices) > 1:
        yield Problem(
            step=alone[0].name,
            message="a program is a job of its own: it cannot have other steps beside it",
        )
    if graph.vertices and all(vertex.has_output for vertex in graph.vertices):
        yield Problem(field="steps", message="nothing to do: the job has neither a sink nor a result")


def _artifact_problems(graph: JobGraph) -> Iterator[Problem]:
    if not graph.artifacts:
        return
    for name, count in Counter(artifact.name for artifact in graph.artifacts).items():
        if count > 1:
            yield Problem(field="artifacts", message=f"there are {count} artifacts called {name!r}")
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
            yield Problem(
                field="artifacts", message=f"{name!r} cannot be the name of an artifact: give a relative path"
            )


def _step_problems(
    vertex: JobVertex, steps: Mapping[StepName, JobVertex], suggestions: Suggestions
) -> Iterator[Problem]:
    step = vertex.name
    if not step:
        yield Problem(step=step, message="a step needs a name")
    elif not VIEW_NAME.fullmatch(step):
        yield Problem(
            step=step,
            message="the name cannot be a SQL view: use the letters a to z, digits and underscores, "
            "not starting with a digit",
        )
    if vertex.parallelism is not None and not 1 <= vertex.parallelism <= MAX_PARALLELISM:
        yield Problem(step=step, field="parallelism", message=_parallelism_message(vertex.parallelism))
    for source in vertex.inputs:
        if source not in steps:
            hint = suggestions.suggestion(source, steps)
            yield Problem(step=step, field="inputs", message=f"there is no step {abbreviated(source)!r}{hint}")
        elif not steps[source].has_output:
            yield Problem(step=step, field="inputs", message=f"step {source!r} has no output to read from")
    if vertex.exchange is Exchange.BLOCKING and not vertex.has_output:
        yield Problem(step=step, field="exchange", message="only a step that others read from has an exchange")
    if vertex.cache and not vertex.has_output:
        yield Problem(step=step, field="cache", message="only a step that others read from can be cached")


def _name_clashes(graph: JobGraph) -> Iterator[Problem]:
    if len({vertex.name.lower() for vertex in graph.vertices}) == len(graph.vertices):
        return
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
    paths = {vertex.name: vertex.operation.target for vertex in graph.vertices}
    if sum(path is not None for path in paths.values()) < 2:
        return
    targets: dict[str, str] = {}
    for name, path in paths.items():
        if path is not None and path.strip():
            first = targets.setdefault(_as_prefix(path), name)
            if first != name:
                yield Problem(step=name, field="sink", message=f"writes to the same path as step {first!r}")
    outer = _nearest_outer(targets)
    for target, name in targets.items():
        if target in outer:
            message = f"writes inside the path of step {targets[outer[target]]!r}"
            yield Problem(step=name, field="sink", message=message)


def _as_prefix(path: str) -> str:
    """Return a path in the form in which it is a prefix of every path inside of it."""
    plain = normpath(path)
    if plain == ".":
        return "./"
    return f"{'' if plain.startswith('/') else './'}{plain}{'' if plain.endswith('/') else '/'}"


def _nearest_outer(prefixes: Iterable[str]) -> dict[str, str]:
    """Return for each path that is inside others the nearest of them. Sorted, a path comes before what is inside."""
    nearest: dict[str, str] = {}
    around: list[str] = []
    for prefix in sorted(prefixes):
        while around and not prefix.startswith(around[-1]):
            around.pop()
        if around:
            nearest[prefix] = around[-1]
        around.append(prefix)
    return nearest


def _resource_problems(graph: JobGraph) -> Iterator[Problem]:
    given = [vertex for vertex in graph.vertices if vertex.resources is not None]
    if given and len(given) < len(graph.vertices):
        without = next(vertex for vertex in graph.vertices if vertex.resources is None)
        message = f"step {given[0].name!r} declares cpu or memory, so every other step must too"
        yield Problem(step=without.name, field="memory", message=message)
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
    parallelisms = {name: p for name, vertex in steps.items() if (p := vertex.parallelism) is not None}
    if len(set(parallelisms.values())) < 2:
        return  # nothing to disagree about
    regions = regions_of(graph)
    shared = shared_steps(regions)
    for region in regions:
        wanted = values_of_region(region, shared, parallelisms)
        if len(set(wanted.values())) > 1:
            found = ", ".join(f"{name}={value}" for name, value in wanted.items())
            yield Problem(
                step=next(iter(wanted)),
                field="parallelism",
                message=f"the steps of one region must agree on a parallelism, but: {found}",
            )


def _parallelism_message(value: int) -> str:
    return f"must be from 1 to {MAX_PARALLELISM}, not {value}"

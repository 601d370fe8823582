"""References to secrets in job graphs: `${secret:NAME}` stands for a value that only the task's own process gets.

The graph carries the name, wherever it is stored, logged or shown. A TaskManager reads the values of the names that a
task refers to, and passes them to its runner, which puts them into options, settings, parameters, arguments and
environment variables. What the runner reports of a failure is redacted: Spark quotes options and literals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import structs

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Operation, Program, Sink, Source
from flintlock.model.tasks import Failure

REDACTED: Final = "******"
"""Written instead of the value of a secret."""

SECRET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_REFERENCE: Final = re.compile(r"\$\{secret:([^}]*)\}")
_MARK: Final = b"${secret:"
_SHORTEST_REDACTED: Final = 4


def is_secret_reference(parameter: str) -> bool:
    """Return whether the content of a `${…}` names a secret, and not a parameter."""
    return parameter.startswith("secret:")


def is_one_reference(value: object) -> bool:
    """Return whether a value is one reference to a secret, and nothing else."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def secret_names(graph: JobGraph) -> frozenset[str]:
    """Return the names of the secrets that a graph refers to."""
    if _MARK not in msgspec.json.encode(graph):
        return frozenset()
    found: set[str] = set()

    def note(text: str) -> str:
        found.update(_REFERENCE.findall(text))
        return text

    _fill(graph, note)
    return frozenset(found)


def with_secrets(graph: JobGraph, values: Mapping[str, str]) -> JobGraph:
    """Return the graph with each reference replaced by its value. Only for the process that runs the task."""
    return _fill(graph, lambda text: _REFERENCE.sub(lambda match: values[match[1]], text)) if values else graph


def reference_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield references that are misspelt, or in a place where none is replaced."""
    if _MARK not in msgspec.json.encode(graph):
        return
    for name in sorted(secret_names(graph)):
        if not SECRET_NAME.fullmatch(name):
            yield Problem(
                message=f"{abbreviated(name)!r} cannot be the name of a secret: use letters, digits, '.', '_' and '-'"
            )
    for vertex in graph.vertices:
        if _MARK in msgspec.json.encode(_fill_operation(vertex, lambda _: "").operation):
            message = (
                "a secret can be used in options, arguments, environment variables, parameters and config, and in"
                " nothing else of a step"
            )
            yield Problem(step=vertex.name, field=vertex.operation.kind, message=message)


def redacted(failure: Failure, values: Collection[str]) -> Failure:
    """Return the failure without these values."""
    return structs.replace(
        failure,
        message=hide(failure.message, values),
        query_context=failure.query_context and hide(failure.query_context, values),
        stack_trace=hide(failure.stack_trace, values),
        jvm_stack_trace=failure.jvm_stack_trace and hide(failure.jvm_stack_trace, values),
    )


def hide(text: str, values: Iterable[str]) -> str:
    """Return the text without these values; those of less than four characters are found in any text, and stay."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_REDACTED:
            text = text.replace(value, REDACTED)
    return text


def _fill(graph: JobGraph, fill: Callable[[str], str]) -> JobGraph:
    return structs.replace(
        graph,
        config={key: fill(value) for key, value in graph.config.items()},
        params={key: fill(value) if isinstance(value, str) else value for key, value in graph.params.items()},
        vertices=tuple(_fill_operation(vertex, fill) for vertex in graph.vertices),
    )


def _fill_operation(vertex: JobVertex, fill: Callable[[str], str]) -> JobVertex:
    operation: Operation
    match vertex.operation:
        case Source() | Sink() as reading_or_writing:
            options = {key: fill(value) for key, value in reading_or_writing.options.items()}
            operation = structs.replace(reading_or_writing, options=options)
        case Program() as program:
            operation = structs.replace(
                program,
                args=tuple(map(fill, program.args)),
                env={name: fill(value) for name, value in program.env.items()},
            )
        case _:
            return vertex
    return structs.replace(vertex, operation=operation)

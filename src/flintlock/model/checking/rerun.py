"""A job that is submitted once more: the graph of an earlier job under a new id, with other values of its parameters.

Parameters are bound in SQL and passed to functions when the job runs; `${name}` in paths, tables, schemas, options and
arguments is filled in when it is submitted. A graph in which something was filled in has the document that it was made
of (`JobGraph.document`), which is filled in again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import structs

from flintlock.model.access.secret_references import is_one_reference
from flintlock.model.checking.jobspec import JobSpec, draft_graph
from flintlock.model.checking.parameters import changed_parameters
from flintlock.model.checking.problems import Problem
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, Scalar, vertex_id
from flintlock.model.operations.kind import is_relative


def rerun_graph(graph: JobGraph, job_id: JobId, given: Mapping[str, Scalar]) -> tuple[JobGraph, list[Problem]]:
    """Return the graph of a job that runs an earlier one again, and what is wrong with the given parameters.

    A parameter whose value is a reference to a secret stays one. A client that was attached to the earlier job is not
    attached to this one.
    """
    problems: list[Problem] = []
    secret = {name for name, value in graph.params.items() if is_one_reference(value)}
    params = changed_parameters(graph.params, given, secret, problems)
    problems += [
        Problem(field="params", message=f"{name!r} is a secret: give it as '${{secret:NAME}}'")
        for name in sorted(secret)
        if not is_one_reference(params[name])
    ]
    if problems:
        return graph, problems
    vertices = graph.vertices
    if graph.document and given:
        spec = msgspec.json.decode(graph.document, type=JobSpec)
        problems += _path_problems(graph.params, params, spec.fixed_params)
        if problems:
            return graph, problems
        drafted, problems = draft_graph(spec, job_id, {one.name: one for one in graph.artifacts}, params)
        vertices = drafted.vertices
    again = structs.replace(
        graph,
        job_id=job_id,
        vertices=tuple(structs.replace(vertex, id=vertex_id(job_id, vertex.name)) for vertex in vertices),
        params=params,
        client_timeout_s=None,
        rerun_of=graph.job_id,
        reuses=(),
    )
    return again, problems


#: A job that continues one that continued another: so many of them are remembered. Older results are computed again.
_MAX_REUSED: Final = 100


def continued_graph(graph: JobGraph, job_id: JobId) -> JobGraph:
    """Return the graph of a job that continues where a failed one stopped: the same, with the results that it has."""
    again, _ = rerun_graph(graph, job_id, {})
    return structs.replace(again, reuses=(graph.job_id, *graph.reuses)[:_MAX_REUSED])


def _path_problems(
    before: Mapping[str, Scalar], after: Mapping[str, Scalar], fixed: tuple[str, ...]
) -> Iterator[Problem]:
    """Yield the changed parameters that a client would put into paths in another way than it did."""
    for name, value in after.items():
        if value != before[name] and (name in fixed or _is_absolute(value) != _is_absolute(before[name])):
            message = f"{name!r} is part of a path that the client made absolute: submit the job with `flintlock run`"
            yield Problem(field="params", message=message)


def _is_absolute(value: Scalar) -> bool:
    text = value.strip() if isinstance(value, str) else ""
    return bool(text) and (text.startswith("~") or not is_relative(text))

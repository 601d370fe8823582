"""A job that is submitted once more: the graph of an earlier job under a new id, with other values of its parameters.

Parameters are bound in SQL and passed to functions when the job runs; `${name}` in paths, tables, schemas, options and
arguments is filled in when it is submitted. A graph in which something was filled in has the document that it was made
of (`JobGraph.document`), which is filled in again.

A failed batch job can also be continued: only what had not finished runs again. Not if its files were moved in part to
a target where another run would add to them (append), or take them for the whole (ignore).
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
from flintlock.model.jobgraph import JobGraph, JobType, Scalar, vertex_id
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import SaveMode, Sink
from flintlock.model.operations.kind import Guarantee, is_relative
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind


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


#: What happens to files of a failed publication when another run writes to the same target, by the mode of its sink.
#: Overwrite replaces them, and errorifexists refuses to run.
_AFTER_A_PART: Final = {
    SaveMode.APPEND: "would append its rows a second time",
    SaveMode.IGNORE: "would take them for all of its rows",
}


def continuation_refusal(job: JobSnapshot) -> str | None:
    """Return why a job cannot be continued where it failed; None if it can, as long as its results are kept."""
    job_id, status, graph = job.graph.job_id, job.status, job.graph
    if status is not JobStatus.FAILED:
        return f"job {job_id} is {status}: only a job that has FAILED can be run from where it failed"
    if graph.job_type is JobType.STREAMING:
        return f"job {job_id} is a streaming job: start it from a savepoint with `flintlock run -s`"
    latest = [(region, job.current(region.id)) for region in job.regions]
    if not any(execution is not None and execution.state is ExecutionState.FINISHED for _, execution in latest):
        return f"nothing of job {job_id} had finished when it failed: run it again without --from-failed"
    for region, execution in latest:
        failure = None if execution is None else execution.failure
        if failure is None or failure.kind is not FailureKind.PUBLICATION:
            continue
        for step in region.steps:
            sink = graph.vertex(step).operation
            if isinstance(sink, Sink) and sink.guarantee is Guarantee.STAGED and sink.mode in _AFTER_A_PART:
                return (
                    f"job {job_id} failed while it published: {sink.path} may have a part of the files of step"
                    f" {step!r}, and to run that step again with mode {sink.mode} {_AFTER_A_PART[sink.mode]}. Remove"
                    " those files, then run the job again without --from-failed"
                )
    return None


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

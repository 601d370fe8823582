"""Which files a message about a job may name: its own, and those below the targets that its graph declares.

A TaskManager moves and removes files because a message says so, and a runner, in which user code runs, reports which
files it has written. Both are checked by the names alone, before anything is touched: a publication stays below its
target, takes files from nowhere but the staging directory of its attempt, and the target is one that the graph
declares; what is removed for a job is named after that job.

Pure. The graph is known where an attempt runs; a TaskManager that publishes in the place of a lost one has only the
message, which its JobMaster has recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

from flintlock.model.files.staging import PREFIX, is_data, staged_sinks, staging_directory, success_marker
from flintlock.model.ids import AttemptId, JobId, is_job_id
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Sink
from flintlock.model.regions import Region
from flintlock.model.tasks import DeployTask, PublishFiles, RemoveFiles, SinkFiles


def deployment_problem(order: DeployTask) -> str | None:
    """Return why a deployment names something that is not its job's; None if it does not."""
    job_id = order.attempt.job_id
    if not is_job_id(job_id):
        return f"{job_id!r} is not a job id"
    if order.graph.job_id != job_id:
        return f"the graph is that of job {order.graph.job_id}, not of job {job_id}"
    if order.work_dir and _last_name(order.work_dir) != job_id:
        return f"{order.work_dir} is not the work directory of job {job_id}"
    if order.checkpoint_dir and _last_name(order.checkpoint_dir) != job_id:
        return f"{order.checkpoint_dir} is not the checkpoint directory of job {job_id}"
    return None


def publication_problem(order: PublishFiles) -> str | None:
    """Return which path of a publication is outside of its targets and its attempt's staging; None if none is."""
    if not is_job_id(order.attempt.job_id):
        return f"{order.attempt.job_id!r} is not a job id"
    return next(filter(None, (_sink_problem(sink, order.attempt) for sink in order.sinks)), None)


def undeclared_sink(sinks: Iterable[SinkFiles], graph: JobGraph, region: Region, attempt: AttemptId) -> str | None:
    """Return why a finished attempt must not be published: a sink that its region does not declare, or a foreign path.

    None if every sink is the region's own.
    """
    declared = {
        vertex.name: vertex.operation.path
        for vertex in staged_sinks(graph, region)
        if isinstance(vertex.operation, Sink)
    }
    for sink in sinks:
        if declared.get(sink.step) != sink.target:
            return f"step {sink.step!r} of the graph has no output at {sink.target}"
        problem = _sink_problem(sink, attempt)
        if problem is not None:
            return problem
    return None


def removal_problem(order: RemoveFiles) -> str | None:
    """Return which directory is not one of the job's own; None if all are: its staging, its work directory."""
    if not is_job_id(order.job_id):
        return f"{order.job_id!r} is not a job id"
    return next(
        (
            f"{path} does not belong to job {order.job_id}"
            for path in order.directories
            if not _is_own(path, order.job_id)
        ),
        None,
    )


def _is_own(path: str, job_id: JobId) -> bool:
    """Decide by the last name; one that `.` or `..` leads to cannot be judged by its name."""
    if {".", ".."} & set(path.split("/")):
        return False
    name = _last_name(path)
    return name == job_id or name.startswith(f"{PREFIX}{job_id}-")


def _sink_problem(sink: SinkFiles, attempt: AttemptId) -> str | None:
    if sink.staging != staging_directory(sink.target, attempt):
        return f"{sink.staging} is not the staging directory of attempt {attempt} in {sink.target}"
    if sink.success_marker not in (None, success_marker(sink.target)):
        return f"{sink.success_marker} is not the success marker of {sink.target}"
    for move in sink.moves:
        if not _is_below(move.source, sink.staging):
            return f"{move.source} is not a file in {sink.staging}"
    for path in (*(move.target for move in sink.moves), *sink.removes):
        if not _is_below(path, sink.target):
            return f"{path} is not a data file in {sink.target}"
    return None


def _is_below(path: str, directory: str) -> bool:
    """Return whether a path is that of a data file below a directory. `.`, `..` and hidden names are none."""
    base = f"{directory.rstrip('/')}/"
    relative = path.removeprefix(base)
    return path.startswith(base) and "" not in relative.split("/") and is_data(relative)


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

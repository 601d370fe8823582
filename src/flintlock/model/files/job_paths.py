"""The paths that a job reads and writes as files, by the steps that do."""

from __future__ import annotations

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Guarantee, Sink, Source
from flintlock.model.regions import region_outputs
from flintlock.model.tasks import DeployTask


def targets_of(graph: JobGraph, checkpoint_dir: str = "") -> dict[str, StepName]:
    """Return the paths that sinks write. Those of two sinks have the later one.

    Executors write the state of queries into `checkpoint_dir`, that of a streaming job.
    """
    targets: dict[str, StepName] = {}
    for vertex in graph.vertices:
        if vertex.query is not None and checkpoint_dir:
            targets[checkpoint_dir] = vertex.name
        if isinstance(vertex.operation, Sink) and vertex.operation.path is not None:
            targets[vertex.operation.path] = vertex.name
    return targets


def unstaged_files(task: DeployTask) -> tuple[str, ...]:
    """Return the directories that Spark writes by itself for a task's queries: checkpoints, and sinks with a log."""
    found: list[str] = []
    for vertex in region_outputs(task.graph, task.region):
        if vertex.query is None:
            continue
        target = vertex.operation.target if vertex.guarantee is Guarantee.SINK_LOG else None
        found += [*filter(None, [target]), f"{task.checkpoint_dir.rstrip('/')}/{vertex.uid}"]
    return tuple(found)


def sources_of(graph: JobGraph) -> dict[str, StepName]:
    """Return the paths that sources read, as `targets_of`."""
    return {
        path: vertex.name
        for vertex in graph.vertices
        if isinstance(vertex.operation, Source)
        for path in vertex.operation.paths
    }

"""The paths that a job reads and writes as files, by the steps that do."""

from __future__ import annotations

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Sink, Source


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


def sources_of(graph: JobGraph) -> dict[str, StepName]:
    """Return the paths that sources read, as `targets_of`."""
    return {
        path: vertex.name
        for vertex in graph.vertices
        if isinstance(vertex.operation, Source)
        for path in vertex.operation.paths
    }

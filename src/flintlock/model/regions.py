"""Cut a JobGraph into pipelined regions: the units of deployment.

Steps joined by pipelined exchanges belong together. Where that leaves two groups that wait for each other (a blocking
exchange around a pipelined path), the groups are merged, as Flink merges them: such an exchange is then written and
read back inside one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from flintlock.model.ids import RegionId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, Resources
from flintlock.model.operations import Result, Sink


class Region(Struct, frozen=True, kw_only=True):
    """A pipelined region. `reads` are blocking results of other regions, `materialises` its own for others."""

    id: RegionId
    steps: tuple[StepName, ...]
    upstream: tuple[RegionId, ...] = ()
    reads: tuple[StepName, ...] = ()
    materialises: tuple[StepName, ...] = ()
    parallelism: int | None = None  # None: the slots of one TaskManager, at most the job's parallelism


def regions_of(graph: JobGraph) -> tuple[Region, ...]:
    """Return the regions in topological order. The graph must be free of cycles and dangling inputs."""
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    read = {source for vertex in graph.vertices for source in vertex.inputs}
    group = _merge_cycles(_pipelined_groups(by_name), by_name)
    order = {name: index for index, name in enumerate(topological(graph.vertices))}
    members: dict[StepName, list[StepName]] = {}
    for name in sorted(group, key=order.__getitem__):
        members.setdefault(group[name], []).append(name)
    upstream = _group_edges(group, by_name)
    sorted_groups = _stable_order(upstream, {root: order[steps[0]] for root, steps in members.items()})
    ids = {root: RegionId(index) for index, root in enumerate(sorted_groups)}
    return tuple(
        Region(
            id=ids[root],
            steps=tuple(members[root]),
            upstream=tuple(sorted(ids[parent] for parent in upstream[root])),
            reads=_reads(members[root], group, by_name),
            materialises=tuple(
                name for name in members[root] if name in read and by_name[name].exchange is Exchange.BLOCKING
            ),
            parallelism=next(
                (p for name in members[root] if (p := by_name[name].parallelism) is not None),
                None,
            ),
        )
        for root in sorted_groups
    )


def topological(vertices: Iterable[JobVertex]) -> tuple[StepName, ...]:
    """Return the step names so that inputs stand before their consumers; graphlib.CycleError if impossible.

    Steps that are written in such an order, as most people write them, stay as they stand.
    """
    inputs = {vertex.name: vertex.inputs for vertex in vertices}
    seen: set[StepName] = set()
    for name, sources in inputs.items():
        if not seen.issuperset(sources):
            return tuple(TopologicalSorter(inputs).static_order())
        seen.add(name)
    return tuple(inputs)


def region_outputs(graph: JobGraph, region: Region) -> tuple[JobVertex, ...]:
    """Return the steps of the region that cause Spark work: materialised ones first, then sinks and results."""
    own = [graph.vertex(name) for name in region.steps]
    ends = [vertex for vertex in own if isinstance(vertex.operation, Sink | Result)]
    return tuple(graph.vertex(name) for name in region.materialises) + tuple(ends)


def region_resources(graph: JobGraph, region: Region) -> Resources | None:
    """Return what a task of the region needs: the most that one of its steps does, as they run in one plan."""
    needs = [need for name in region.steps if (need := graph.vertex(name).resources) is not None]
    if not needs:
        return None
    return Resources(cpu=max(need.cpu for need in needs), memory=max(need.memory for need in needs))


def _pipelined_groups(by_name: Mapping[StepName, JobVertex]) -> dict[StepName, StepName]:
    parent = {name: name for name in by_name}

    def root(name: StepName) -> StepName:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for vertex in by_name.values():
        for source in vertex.inputs:
            if by_name[source].exchange is Exchange.PIPELINED:
                parent[root(vertex.name)] = root(source)
    return {name: root(name) for name in by_name}


def _group_edges(
    group: Mapping[StepName, StepName], by_name: Mapping[StepName, JobVertex]
) -> dict[StepName, set[StepName]]:
    upstream: dict[StepName, set[StepName]] = {root: set() for root in group.values()}
    for vertex in by_name.values():
        for source in vertex.inputs:
            if group[source] != group[vertex.name]:
                upstream[group[vertex.name]].add(group[source])
    return upstream


def _merge_cycles(
    group: Mapping[StepName, StepName], by_name: Mapping[StepName, JobVertex]
) -> dict[StepName, StepName]:
    """Merge groups that (transitively) wait for each other: one cycle after another, until there is none."""
    merged = dict(group)
    while len(set(merged.values())) > 1:
        try:
            TopologicalSorter(_group_edges(merged, by_name)).prepare()
        except CycleError as error:
            cycle: frozenset[StepName] = frozenset(error.args[1])
            root = min(cycle)
            merged = {name: root if own in cycle else own for name, own in merged.items()}
        else:
            break
    return merged


def _stable_order(upstream: Mapping[StepName, set[StepName]], first_step: Mapping[StepName, int]) -> list[StepName]:
    if len(upstream) == 1:
        return list(upstream)
    sorter = TopologicalSorter(upstream)
    sorter.prepare()
    ordered: list[StepName] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=first_step.__getitem__)
        ordered += ready
        sorter.done(*ready)
    return ordered


def _reads(
    steps: Iterable[StepName],
    group: Mapping[StepName, StepName],
    by_name: Mapping[StepName, JobVertex],
) -> tuple[StepName, ...]:
    foreign = {source: None for name in steps for source in by_name[name].inputs if group[source] != group[name]}
    return tuple(foreign)

"""Cut a JobGraph into regions: the units of deployment.

A region is a set of outputs with the steps that they need. An output is a step that causes Spark work: a blocking
exchange that another region reads, a sink, a result, a program.

Batch jobs are cut into pipelined regions, which share no step: steps joined by pipelined exchanges belong together.
Where that leaves two groups that wait for each other (a blocking exchange around a pipelined path), the groups are
merged, as Flink merges them: such an exchange is then written and read back inside one task.

Streaming jobs have one region for each output, because each is a query of its own: steps that several outputs need are
planned into each of them, and so are in several regions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from msgspec import Struct, structs

from flintlock.model.ids import RegionId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobType, JobVertex, Resources

_Value = TypeVar("_Value")


class Region(Struct, frozen=True, kw_only=True):
    """A set of outputs with the steps that they need. `reads` are blocking results of other regions."""

    id: RegionId
    steps: tuple[StepName, ...]  # in topological order; some may be in other regions, too
    upstream: tuple[RegionId, ...] = ()
    reads: tuple[StepName, ...] = ()
    materialises: tuple[StepName, ...] = ()  # the outputs that are blocking results for other regions, or for its own
    parallelism: int | None = None  # None: the slots of one TaskManager, at most the job's parallelism
    outputs: tuple[StepName, ...] = ()  # materialised ones first; empty in snapshots of version 0.1


def regions_of(graph: JobGraph) -> tuple[Region, ...]:
    """Return the regions in topological order. The graph must be free of cycles and dangling inputs."""
    if graph.job_type is JobType.STREAMING:
        return _output_regions(graph)
    return _pipelined_regions(graph)


def shared_steps(regions: Iterable[Region]) -> frozenset[StepName]:
    """Return the steps that are in more than one of the regions."""
    counts = Counter(name for region in regions for name in region.steps)
    return frozenset(name for name, count in counts.items() if count > 1)


def values_of_region(
    region: Region, shared: Collection[StepName], values: Mapping[StepName, _Value]
) -> dict[StepName, _Value]:
    """Return the values that decide for a region, such as the parallelism of its steps: they have to agree.

    The values of steps that only this region has decide; those of shared steps count where there are no others.
    Otherwise two regions with different values could not share a step.
    """
    present = {name: values[name] for name in region.steps if name in values}
    own = {name: value for name, value in present.items() if name not in shared}
    return own or present


def topological(vertices: Iterable[JobVertex]) -> tuple[StepName, ...]:
    """Return the step names so that inputs come before their consumers; graphlib.CycleError if impossible.

    Steps that are already in such an order stay in it.
    """
    inputs = {vertex.name: vertex.inputs for vertex in vertices}
    seen: set[StepName] = set()
    for name, sources in inputs.items():
        if not seen.issuperset(sources):
            return tuple(TopologicalSorter(inputs).static_order())
        seen.add(name)
    return tuple(inputs)


def region_outputs(graph: JobGraph, region: Region) -> tuple[JobVertex, ...]:
    """Return the outputs of the region: the steps that cause Spark work, materialised ones first."""
    return tuple(graph.vertex(name) for name in region.outputs or _outputs(graph, region.steps, region.materialises))


def region_resources(graph: JobGraph, region: Region) -> Resources | None:
    """Return what a task of the region needs: the most that one of its steps does, as they run in one plan."""
    needs = [need for name in region.steps if (need := graph.vertex(name).resources) is not None]
    if not needs:
        return None
    return Resources(cpu=max(need.cpu for need in needs), memory=max(need.memory for need in needs))


def is_endless(graph: JobGraph, region: Region) -> bool:
    """Return whether the region contains a streaming query that does not end by itself."""
    return any(step.query is not None and not step.query.ends for step in map(graph.vertex, region.steps))


def readers_of(graph: JobGraph, region: Region) -> tuple[StepName, ...]:
    """Return the steps of the region that make Spark read: those without inputs, and readers of blocking results.

    A step with inputs may read a table on the side; that is not known here, and counts as read by the others.
    """
    steps, reads = [graph.vertex(name) for name in region.steps], frozenset(region.reads)
    return tuple(step.name for step in steps if not step.inputs or not reads.isdisjoint(step.inputs))


def writers_of(graph: JobGraph, region: Region) -> tuple[StepName, ...]:
    """Return the steps of the region that make Spark write. Results do not: their rows are stored with the job."""
    outputs, materialised = region_outputs(graph, region), frozenset(region.materialises)
    return tuple(step.name for step in outputs if step.operation.writes or step.name in materialised)


def _outputs(graph: JobGraph, steps: Iterable[StepName], materialises: tuple[StepName, ...]) -> tuple[StepName, ...]:
    return (*materialises, *(name for name in steps if not graph.vertex(name).has_output))


def _output_regions(graph: JobGraph) -> tuple[Region, ...]:
    """Return one region for each sink, result or program, with all that it needs."""
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    order = topological(graph.vertices)
    needed: dict[StepName, tuple[StepName, ...]] = {}
    for output in (name for name in order if not by_name[name].has_output):
        wanted = {output}
        for name in reversed(order):
            if name in wanted:
                wanted.update(by_name[name].inputs)
        needed[output] = tuple(name for name in order if name in wanted)
    parallelisms = {name: vertex.parallelism for name, vertex in by_name.items() if vertex.parallelism is not None}
    regions = [Region(id=RegionId(n), steps=steps, outputs=(out,)) for n, (out, steps) in enumerate(needed.items())]
    shared = shared_steps(regions)
    return tuple(
        structs.replace(region, parallelism=next(iter(values_of_region(region, shared, parallelisms).values()), None))
        for region in regions
    )


def _pipelined_regions(graph: JobGraph) -> tuple[Region, ...]:
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    read = {source for vertex in graph.vertices for source in vertex.inputs}
    group, upstream = _without_cycles(_pipelined_groups(by_name), by_name)
    order = {name: index for index, name in enumerate(topological(graph.vertices))}
    members: dict[StepName, list[StepName]] = {}
    for name in sorted(group, key=order.__getitem__):
        members.setdefault(group[name], []).append(name)
    sorted_groups = _stable_order(upstream, {root: order[steps[0]] for root, steps in members.items()})
    ids = {root: RegionId(index) for index, root in enumerate(sorted_groups)}

    def region(root: StepName) -> Region:
        steps = tuple(members[root])
        materialises = tuple(name for name in steps if name in read and by_name[name].exchange is Exchange.BLOCKING)
        return Region(
            id=ids[root],
            steps=steps,
            upstream=tuple(sorted(ids[parent] for parent in upstream[root])),
            reads=_reads(steps, group, by_name),
            materialises=materialises,
            parallelism=next((p for name in steps if (p := by_name[name].parallelism) is not None), None),
            outputs=_outputs(graph, steps, materialises),
        )

    return tuple(region(root) for root in sorted_groups)


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


def _without_cycles(
    group: dict[StepName, StepName], by_name: Mapping[StepName, JobVertex]
) -> tuple[dict[StepName, StepName], dict[StepName, set[StepName]]]:
    """Return the groups, and which others each of them waits for.

    Groups that (transitively) wait for each other are merged: all that are in one cycle, or in cycles that meet.
    """
    edges = _group_edges(group, by_name)
    if len(edges) == 1:
        return group, edges
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        representative = {own: min(component) for component in _strongly_connected(edges) for own in component}
        merged = {name: representative[own] for name, own in group.items()}
        return merged, _group_edges(merged, by_name)
    return group, edges


def _strongly_connected(edges: Mapping[StepName, Collection[StepName]]) -> list[list[StepName]]:
    """Return the strongly connected components of a graph: Tarjan's algorithm, in linear time, without recursion."""
    index: dict[StepName, int] = {}  # in the order of discovery
    low: dict[StepName, int] = {}  # the earliest node on the stack that is known to be reachable
    stack: dict[StepName, None] = {}  # nodes whose component is not complete
    components: list[list[StepName]] = []
    for start in edges:
        if start in index:
            continue
        path = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        stack[start] = None
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack[successor] = None
                    path.append((successor, iter(edges[successor])))
                    break
                if successor in stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    component: list[StepName] = []
                    while not component or component[-1] != node:
                        component.append(stack.popitem()[0])
                    components.append(component)
    return components


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

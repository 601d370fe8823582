"""Regions: the units of deployment that a graph is cut into."""

from __future__ import annotations

from hypothesis import given, settings
from tests.unit.model.graphs import acyclic_graphs, blocking, graph, result, sink, source, sql

from flintlock.model.jobgraph import Exchange, JobGraph
from flintlock.model.regions import Region, region_outputs, regions_of, topological


def steps_of(cut: tuple[Region, ...]) -> list[tuple[str, ...]]:
    return [region.steps for region in cut]


@settings(max_examples=40)
@given(acyclic_graphs())
def test_every_step_is_in_exactly_one_region(drawn: JobGraph) -> None:
    """No step is run twice and none is forgotten."""
    placed = [name for region in regions_of(drawn) for name in region.steps]

    assert sorted(placed) == sorted(vertex.name for vertex in drawn.vertices)


@settings(max_examples=40)
@given(acyclic_graphs())
def test_region_ids_are_their_places_in_a_topological_order(drawn: JobGraph) -> None:
    """A region only ever waits for regions before it, so no two wait for each other."""
    cut = regions_of(drawn)

    assert [region.id for region in cut] == list(range(len(cut)))
    assert all(parent < region.id for region in cut for parent in region.upstream)


@settings(max_examples=40)
@given(acyclic_graphs())
def test_steps_joined_by_a_pipelined_exchange_share_a_region(drawn: JobGraph) -> None:
    """What is pipelined becomes one Spark plan."""
    region_of = {name: region.id for region in regions_of(drawn) for name in region.steps}

    for vertex in drawn.vertices:
        for name in vertex.inputs:
            if drawn.vertex(name).exchange is Exchange.PIPELINED:
                assert region_of[name] == region_of[vertex.name]


@settings(max_examples=40)
@given(acyclic_graphs())
def test_a_region_reads_exactly_what_other_regions_materialise_for_it(drawn: JobGraph) -> None:
    """The inputs of a region from outside are its reads, each materialised by a region that it waits for."""
    cut = regions_of(drawn)
    region_of = {name: region for region in cut for name in region.steps}

    for region in cut:
        inputs = {name for own in region.steps for name in drawn.vertex(own).inputs}
        foreign = {name for name in inputs if name not in region.steps}
        assert set(region.reads) == foreign
        assert len(set(region.reads)) == len(region.reads)
        assert set(region.upstream) == {region_of[name].id for name in foreign}
        assert all(name in region_of[name].materialises for name in foreign)


@settings(max_examples=40)
@given(acyclic_graphs())
def test_regions_are_no_larger_than_they_must_be(drawn: JobGraph) -> None:
    """Steps share a region only if pipelined exchanges join them, or if they would wait for each other."""
    cut = regions_of(drawn)
    pipelined: dict[str, set[str]] = {vertex.name: {vertex.name} for vertex in drawn.vertices}
    for vertex in drawn.vertices:
        for name in vertex.inputs:
            if drawn.vertex(name).exchange is Exchange.PIPELINED:
                joined = pipelined[name] | pipelined[vertex.name]
                for member in joined:
                    pipelined[member] = joined
    groups = {frozenset(group) for group in pipelined.values()}
    upstream_of = {
        group: {
            other
            for other in groups
            if other != group and any(name in other for own in group for name in drawn.vertex(own).inputs)
        }
        for group in groups
    }

    def waits_for(group: frozenset[str]) -> set[frozenset[str]]:
        seen: set[frozenset[str]] = set()
        stack = [group]
        while stack:
            for other in upstream_of[stack.pop()] - seen:
                seen.add(other)
                stack.append(other)
        return seen

    expected = {group.union(*(other for other in waits_for(group) if group in waits_for(other))) for group in groups}
    assert {frozenset(region.steps) for region in cut} == expected


@settings(max_examples=40)
@given(acyclic_graphs())
def test_steps_inside_a_region_are_in_topological_order(drawn: JobGraph) -> None:
    """A region's steps can be planned one after the other."""
    for region in regions_of(drawn):
        place = {name: index for index, name in enumerate(region.steps)}
        for own in region.steps:
            assert all(place[name] < place[own] for name in drawn.vertex(own).inputs if name in place)


@settings(max_examples=40)
@given(acyclic_graphs())
def test_the_cut_depends_on_nothing_but_the_graph(drawn: JobGraph) -> None:
    """A new leader numbers the regions as the old one did."""
    assert regions_of(drawn) == regions_of(drawn)


def test_a_pipelined_graph_is_one_region() -> None:
    """Without blocking exchanges there is one task, and nothing is materialised."""
    cut = regions_of(graph(source("a"), sql("b", "a"), sink("c", "b")))

    assert steps_of(cut) == [("a", "b", "c")]
    assert cut[0].reads == cut[0].materialises == cut[0].upstream == ()


def test_a_blocking_exchange_separates_two_regions() -> None:
    """The upstream region materialises what the downstream one reads."""
    cut = regions_of(graph(blocking(source("a")), sql("b", "a"), sink("c", "b")))

    assert steps_of(cut) == [("a",), ("b", "c")]
    assert cut[0].materialises == cut[1].reads == ("a",)
    assert cut[1].upstream == (0,)


def test_a_blocking_exchange_around_a_pipelined_path_merges() -> None:
    """Two groups that would wait for each other are one region, which writes and reads the exchange itself."""
    cut = regions_of(graph(source("a"), blocking(sql("b", "a")), sql("c", "a", "b"), sink("d", "c")))

    assert steps_of(cut) == [("a", "b", "c", "d")]
    assert cut[0].reads == ()
    assert cut[0].materialises == ("b",)


def test_a_cycle_of_several_groups_merges_into_one() -> None:
    """Groups that wait for each other through several others are one region as well."""
    cut = regions_of(
        graph(
            source("a"),
            blocking(sql("b", "a")),
            blocking(sql("c", "b")),
            sql("d", "a", "c"),
            sink("e", "d"),
            blocking(source("x")),
            sink("y", "x"),
        )
    )

    assert set(steps_of(cut)) == {("a", "b", "c", "d", "e"), ("x",), ("y",)}


def test_a_blocking_exchange_without_a_consumer_is_not_materialised() -> None:
    """Rows that no step reads are not written."""
    cut = regions_of(graph(source("a"), blocking(sql("unread", "a")), sink("c", "a")))

    assert [region.materialises for region in cut] == [()]


def test_a_region_has_the_parallelism_that_any_of_its_steps_names() -> None:
    """The steps of a region agree, or leave it unset."""
    cut = regions_of(graph(blocking(source("a", parallelism=3)), sql("b", "a"), sink("c", "b", parallelism=2)))

    assert [region.parallelism for region in cut] == [3, 2]


def test_outputs_are_materialised_steps_first_then_sinks_and_results() -> None:
    """What other regions wait for is written before sinks and results."""
    drawn = graph(sink("out", "b"), result("top", "b"), blocking(sql("kept", "b")), sql("b"), sink("late", "kept"))
    cut = regions_of(drawn)

    assert [vertex.name for vertex in region_outputs(drawn, cut[0])] == ["kept", "out", "top"]


@settings(max_examples=40)
@given(acyclic_graphs())
def test_topological_order_puts_inputs_first(drawn: JobGraph) -> None:
    """A step comes after all that it reads."""
    order = {name: index for index, name in enumerate(topological(drawn.vertices))}

    assert all(order[name] < order[vertex.name] for vertex in drawn.vertices for name in vertex.inputs)


def test_long_chains_of_blocking_exchanges_are_cut_without_recursion() -> None:
    """A graph of thousands of steps is cut like a small one."""
    count = 3000
    chain = [blocking(source("s0")), *(blocking(sql(f"s{n}", f"s{n - 1}")) for n in range(1, count))]

    cut = regions_of(graph(*chain))

    assert [region.steps for region in cut] == [(f"s{n}",) for n in range(count)]

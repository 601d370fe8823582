"""Regions that share steps: a streaming graph has one for each output."""

from __future__ import annotations

from hypothesis import given, settings
from msgspec import structs
from tests.unit.model.graphs import JOB, acyclic_graphs, graph, result, sink, source, sql

from flintlock.model.checking.graphcheck import problems_of
from flintlock.model.files.staging import staging_directories
from flintlock.model.ids import AttemptId, RegionId, StepName
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.regions import region_outputs, regions_of, shared_steps, topological
from flintlock.model.states import ExecutionState, JobStatus

E = ExecutionState
#: Two outputs that read one step.
FORK = structs.replace(
    graph(source("orders"), sql("clean", "orders"), sink("out", "clean"), result("top", "clean")),
    job_type=JobType.STREAMING,
)


def snapshot(*states: ExecutionState, of: JobGraph = FORK) -> JobSnapshot:
    """The job with one attempt at each region, in these states."""
    return JobSnapshot(
        graph=of,
        regions=regions_of(of),
        status=JobStatus.RUNNING,
        timestamps={JobStatus.INITIALIZING: 1},
        end_ms=-1,
        last_modified_ms=1,
        executions=tuple(
            ExecutionInfo(region=RegionId(number), attempt=0, state=state, timestamps={state: 1})
            for number, state in enumerate(states)
        ),
    )


def test_each_output_has_a_region_with_all_that_it_needs() -> None:
    """Steps that both outputs need are in both regions."""
    first, second = regions_of(FORK)

    assert (first.steps, first.outputs) == (("orders", "clean", "out"), ("out",))
    assert (second.steps, second.outputs) == (("orders", "clean", "top"), ("top",))
    assert shared_steps((first, second)) == {"orders", "clean"}
    assert [v.name for v in region_outputs(FORK, second)] == ["top"]


@settings(max_examples=40)
@given(acyclic_graphs())
def test_regions_of_outputs_are_closed_and_ordered(drawn: JobGraph) -> None:
    """A region has the inputs of all its steps, in topological order, and exactly one output."""
    ends = [sink(f"out_{vertex.name}", vertex.name) for vertex in drawn.vertices]
    whole = structs.replace(drawn, job_type=JobType.STREAMING, vertices=(*drawn.vertices, *ends))
    order = topological(whole.vertices)

    regions = regions_of(whole)

    assert [region.id for region in regions] == list(range(len(ends)))
    assert {region.outputs for region in regions} == {(end.name,) for end in ends}
    for region in regions:
        assert [name for name in order if name in region.steps] == list(region.steps)
        assert all(source in region.steps for name in region.steps for source in whole.vertex(name).inputs)
        assert not region.upstream
        assert not region.reads
        assert not region.materialises


def test_a_shared_step_counts_once_in_a_listing() -> None:
    """The total is the number of steps, however many regions there are."""
    summary = snapshot(E.RUNNING, E.FINISHED).summary()

    assert summary.tasks.total == 4
    assert {state: n for state, n in summary.tasks.by_state.items() if n} == {E.RUNNING: 3, E.FINISHED: 1}


def test_the_state_of_a_shared_step_is_flinks_aggregate() -> None:
    """The worst wins; a step has finished when all of its regions have."""
    assert E.aggregate([]) is E.CREATED
    assert E.aggregate([E.SCHEDULED]) is E.SCHEDULED
    assert E.aggregate([E.DEPLOYING, E.SCHEDULED]) is E.SCHEDULED
    assert E.aggregate([E.RUNNING, E.FAILED]) is E.FAILED
    assert E.aggregate([E.CANCELED, E.CANCELING]) is E.CANCELING
    assert E.aggregate([E.FINISHED, E.SCHEDULED]) is E.RUNNING
    assert E.aggregate([E.FINISHED, E.FINISHED]) is E.FINISHED
    for state in E:
        assert E.aggregate([state]) is state


def test_regions_that_share_a_step_may_differ_in_parallelism() -> None:
    """What only one region has decides; a shared step's value counts where nothing else does."""
    steps = (source("orders"), sql("clean", "orders", parallelism=2), sink("out", "clean", parallelism=4))
    both = structs.replace(graph(*steps, result("top", "clean")), job_type=JobType.STREAMING)

    assert [region.parallelism for region in regions_of(both)] == [4, 2]
    assert not [problem for problem in problems_of(both) if problem.field == "parallelism"]


def test_shared_steps_have_to_agree_where_they_decide() -> None:
    """A region without a value of its own cannot choose between two shared ones."""
    steps = (source("orders", parallelism=3), sql("clean", "orders", parallelism=2), sink("out", "clean"))
    both = structs.replace(graph(*steps, result("top", "clean")), job_type=JobType.STREAMING)

    messages = [problem.message for problem in problems_of(both) if problem.field == "parallelism"]
    assert messages == ["the steps of one region must agree on a parallelism, but: orders=3, clean=2"] * 2


def test_only_the_region_of_a_sink_stages_its_files() -> None:
    """A shared step causes no writing in the other region."""
    first, second = regions_of(FORK)
    attempt = AttemptId(job_id=JOB, region=RegionId(0), attempt=0)

    assert len(staging_directories(FORK, first, attempt)) == 1
    assert staging_directories(FORK, second, attempt) == ()


def test_a_step_knows_its_regions() -> None:
    """Batch jobs share nothing, and regions of records without outputs have them still."""
    batch = structs.replace(FORK, job_type=JobType.BATCH)
    (only,) = regions_of(batch)
    seen = snapshot(E.RUNNING, E.RUNNING)

    assert [region.id for region in seen.regions_with(StepName("clean"))] == [0, 1]
    assert [region.id for region in seen.regions_with(StepName("out"))] == [0]
    assert only.outputs == ("out", "top")
    assert region_outputs(batch, structs.replace(only, outputs=())) == region_outputs(batch, only)

"""A job whose regions share steps: each is deployed, restarted and finished by itself."""

from __future__ import annotations

from msgspec import structs
from tests.unit.jobmaster.job_harness import JOB, JobHarness, graph_of, query, result, sink, source, staged

from flintlock.dispatcher.core import requirement_problems
from flintlock.jobmaster.events import SendDeploy
from flintlock.jobmaster.execution_graph import ranges_of
from flintlock.jobmaster.reporting.snapshot import requirements_of, snapshot_of
from flintlock.model.commands import RescaleJob
from flintlock.model.ids import VertexId
from flintlock.model.jobgraph import JobType, vertex_id
from flintlock.model.jobs import ParallelismRange
from flintlock.model.states import ExecutionState, JobStatus

E = ExecutionState
FORK = graph_of(
    source("orders"), query("clean", "orders"), sink("out", "clean"), result("top", "clean"), job_type=JobType.STREAMING
)


def limits(**upper: int) -> dict[VertexId, ParallelismRange]:
    return {vertex_id(JOB, name): ParallelismRange(upper=most) for name, most in upper.items()}


def test_each_region_is_sent_with_the_shared_steps() -> None:
    """The order carries the region: its output, and all that it needs."""
    harness = JobHarness(FORK)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)

    regions = [effect.order.region for effect in harness.of(SendDeploy)]
    assert [region.steps for region in regions] == [("orders", "clean", "out"), ("orders", "clean", "top")]
    assert [region.outputs for region in regions] == [("out",), ("top",)]


def test_one_region_restarts_while_the_other_runs_on() -> None:
    """A shared step is in the worse of its states, and its other region is not disturbed."""
    harness = JobHarness(structs.replace(FORK, config={"restart-strategy.type": "fixed-delay"}))
    harness.start()
    harness.run_region(0)
    harness.run_region(1)

    harness.fail(region=0)

    assert (harness.state(0), harness.state(1)) == (E.FAILED, E.RUNNING)
    assert snapshot_of(harness.job).summary().tasks.by_state[E.FAILED] == 3
    harness.restart()
    harness.run_region(0)
    assert (harness.attempt(0), harness.attempt(1)) == (1, 0)
    harness.finish(1)
    harness.finish(0, sinks=(staged("a"),))
    harness.published(0)
    assert harness.status is JobStatus.FINISHED
    assert snapshot_of(harness.job).summary().tasks.by_state[E.FINISHED] == 4


def test_what_is_required_of_a_shared_step_holds_where_its_region_says_nothing() -> None:
    """The steps that only one region has decide for it."""
    plan = JobHarness(FORK).job.plan

    assert {region: wanted.upper for region, wanted in ranges_of(plan, limits(clean=2)).items()} == {0: 2, 1: 2}
    assert {region: wanted.upper for region, wanted in ranges_of(plan, limits(clean=2, out=3)).items()} == {0: 3, 1: 2}


def test_the_requirements_that_are_shown_can_be_sent_back() -> None:
    """A shared step shows the widest range of its regions; that is no contradiction."""
    harness = JobHarness(structs.replace(FORK, parallelism=8))
    harness.job = structs.replace(harness.job, required=ranges_of(harness.job.plan, limits(out=3, top=5)))

    shown = requirements_of(harness.job)

    assert {shown.vertices[vertex_id(JOB, name)].upper for name in ("orders", "clean")} == {5}
    assert shown.vertices[vertex_id(JOB, "out")].upper == 3
    assert requirement_problems(FORK, RescaleJob(job_id=JOB, vertices=shown.vertices)) == ()
    assert ranges_of(harness.job.plan, shown.vertices) == harness.job.required


def test_steps_that_one_region_has_must_agree() -> None:
    """As in a batch job."""
    joined = graph_of(source("a"), query("b", "a"), sink("out", "b"), job_type=JobType.STREAMING)
    wanted = RescaleJob(job_id=JOB, vertices=limits(a=2, out=3))

    assert len(requirement_problems(joined, wanted)) == 1
    assert requirement_problems(FORK, structs.replace(wanted, vertices=limits(clean=2, out=3))) == ()

"""A job without trouble: states, regions, requests, records, deployments, results."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import (
    BLOCKING,
    CHAIN,
    FILES,
    JOB,
    JOIN,
    NO_INFRASTRUCTURE_RESTARTS,
    PAIR,
    SMALL,
    SUBMITTED_MS,
    JobHarness,
    attempt_id,
    grant,
    graph_of,
    query,
    result,
    source,
)

from flintlock.jobmaster.events import (
    Declare,
    DeploymentUndelivered,
    JobStarted,
    Record,
    Recorded,
    SendDeploy,
    StepContext,
)
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.jobmaster.scheduling import DEPLOYMENT_WAITS_S
from flintlock.jobmaster.transition import Transition
from flintlock.model.errors import InvariantBroken
from flintlock.model.ids import RegionId, RequestId, StepName
from flintlock.model.jobgraph import JobGraph
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    Analysis,
    FailureKind,
    RegionPhase,
    ResultRows,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)

E = ExecutionState
J = JobStatus
ROWS = ResultRows(name=StepName("top"), rows=1, truncated=False, arrow=b"", json=b"{}")


def test_a_job_goes_from_initializing_through_created_and_running_to_finished() -> None:
    harness = JobHarness(SMALL)
    assert harness.status is J.INITIALIZING

    harness.start()
    assert harness.status is J.RUNNING

    harness.run_region()
    harness.finish(results=(ROWS,))
    assert harness.status is J.FINISHED
    assert list(harness.job.timestamps) == [J.INITIALIZING, J.CREATED, J.RUNNING, J.FINISHED]
    assert harness.job.timestamps[J.INITIALIZING] == SUBMITTED_MS


def test_an_execution_goes_from_created_through_scheduled_deploying_and_running_to_finished() -> None:
    harness = JobHarness(SMALL)
    seen = [harness.state()]
    harness.start()
    seen.append(harness.state())
    harness.grant("0-0")
    harness.recorded()
    seen.append(harness.state())
    harness.report(TaskRunning())
    seen.append(harness.state())
    harness.finish()
    seen.append(harness.state())

    assert seen == [E.CREATED, E.SCHEDULED, E.DEPLOYING, E.RUNNING, E.FINISHED]
    timestamps = harness.job.regions[0].current.timestamps
    assert list(timestamps) == seen
    assert sorted(timestamps.values()) == list(timestamps.values())


def test_nothing_is_deployed_before_attempt_and_task_manager_are_recorded() -> None:
    harness = JobHarness(FILES)
    harness.start()

    harness.grant("0-0", on="tm-7")
    assert harness.deployed == []
    record = harness.of(Record)[-1].record
    assert (record.phase, record.attempt, record.task_manager) == (RegionPhase.DEPLOYED, 0, "tm-7")
    assert record.instance == "tm-7-instance"
    assert record.staging == (f"/out/.flintlock-{'a' * 32}-0-0",)

    harness.recorded()
    assert harness.deployed == [(0, 0)]
    assert harness.of(SendDeploy)[-1].address == "tm-7:1"


def test_nothing_is_deployed_while_a_record_of_another_place_is_on_its_way() -> None:
    """Granted, lost and granted again where it was granted first: the first record is not the last one."""
    harness = JobHarness(FILES)
    harness.start()
    for name in ("tm-1", "tm-2"):
        harness.grant("0-0", on=name)
        harness.lose(name)
    harness.grant("0-0", on="tm-1")
    first, second, third = [effect.record for effect in harness.of(Record)]

    for record in (first, second):
        harness.apply(Recorded(record))
        assert harness.deployed == []
    harness.apply(Recorded(third))
    assert harness.deployed == [(0, 0)]


def test_a_region_is_finished_only_once_that_is_recorded() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)

    harness.report(TaskFinished(materialised={StepName("clean"): "/work/clean"}))
    assert harness.state(0) is E.RUNNING
    assert harness.state(1) is E.CREATED

    harness.recorded()
    assert harness.state(0) is E.FINISHED
    assert harness.state(1) is E.SCHEDULED


def test_slots_are_given_back_as_soon_as_the_task_is_done() -> None:
    """1. The task reports that it is done. 2. Its slots are free, before its record is durable."""
    harness = JobHarness(SMALL)
    harness.start()
    harness.run_region()
    assert harness.wanted == ["0-0"]

    harness.report(TaskFinished())

    assert harness.wanted == []
    assert harness.state() is E.RUNNING


def test_independent_regions_are_requested_together() -> None:
    harness = JobHarness(JOIN)
    harness.start()

    assert [len(declared.requirements.requests) for declared in harness.of(Declare)] == [2]
    assert harness.wanted == ["0-0", "1-0"]


def test_a_region_waits_for_all_its_inputs() -> None:
    harness = JobHarness(JOIN)
    harness.start()
    harness.run_region(0)
    harness.run_region(1, on="tm-2")
    harness.finish(0)
    assert harness.state(2) is E.CREATED

    harness.finish(1, on="tm-2")

    assert harness.state(2) is E.SCHEDULED
    harness.grant("2-0")
    harness.recorded()
    assert harness.of(SendDeploy)[-1].order.inputs == {"a": "/work/a", "b": "/work/b"}


def test_parallelism_becomes_slots() -> None:
    harness = JobHarness(FILES)
    harness.start()
    (request,) = harness.job.declared
    assert (request.slots, request.at_most) == (2, None)


@pytest.mark.parametrize(
    ("parallelism", "config", "cluster", "at_most"),
    [
        (None, {"parallelism.default": "0"}, {}, None),
        (3, {}, {}, 3),
        (None, {"parallelism.default": "4"}, {}, 4),
        (None, {}, {"parallelism.default": "5"}, 5),
        (None, {"parallelism.default": "4"}, {"parallelism.default": "5"}, 4),
        (3, {"parallelism.default": "4"}, {}, 3),
    ],
)
def test_a_region_without_parallelism_takes_one_task_manager_at_most_the_jobs_parallelism(
    parallelism: int | None, config: dict[str, str], cluster: dict[str, str], at_most: int | None
) -> None:
    graph = graph_of(source("orders"), result("top", "orders"), parallelism=parallelism, config=config)
    harness = JobHarness(graph, cluster=cluster)
    harness.start()

    (request,) = harness.job.declared
    assert (request.slots, request.at_most) == (None, at_most)


def test_a_job_that_sets_no_parallelism_takes_one_slot() -> None:
    harness = JobHarness(graph_of(source("orders"), result("top", "orders")))
    harness.start()

    (request,) = harness.job.declared
    assert request.slots == 1


def test_a_grant_that_answers_no_open_request_is_ignored() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    (request,) = harness.job.declared
    waiting = harness.job
    harness.apply(grant(structs.replace(request, id=RequestId("0-9")), "tm-1"))
    assert harness.job is waiting

    harness.grant("0-0", on="tm-1")
    granted = harness.job
    harness.apply(grant(request, "tm-2"))
    assert harness.job is granted


def test_the_deployment_carries_what_the_task_needs() -> None:
    graph = structs.replace(CHAIN, config={"spark.sql.shuffle.partitions": "4", "task.cancellation.timeout": "3 s"})
    harness = JobHarness(graph, cluster={"spark.executor.memory": "1g"})
    harness.start()
    harness.grant("0-0")
    harness.recorded()

    order = harness.of(SendDeploy)[-1].order
    assert order.graph is graph
    assert order.work_dir == f"/work/{'a' * 32}"
    assert order.region is harness.job.plan.regions[0]
    assert order.cancel_timeout_s == 3.0
    assert order.slots == (0,)


def test_the_first_regions_analyse_the_whole_graph() -> None:
    harness = JobHarness(JOIN)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.finish(0)
    harness.finish(1)
    harness.run_region(2)

    assert [effect.order.analysis for effect in harness.of(SendDeploy)] == [
        Analysis.WHOLE, Analysis.WHOLE, Analysis.DONE,
    ]  # fmt: skip


@pytest.mark.parametrize("graph", [SMALL, structs.replace(JOIN, config={"execution.analyze-first": "false"})])
def test_one_region_or_an_option_make_analysis_of_the_whole_graph_needless(graph: JobGraph) -> None:
    harness = JobHarness(graph)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    assert harness.of(SendDeploy)[-1].order.analysis is Analysis.REGION


def test_a_second_root_region_that_runs_later_need_not_analyse_again() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.finish(0)
    harness.grant("1-0")
    harness.recorded()
    assert [effect.order.analysis for effect in harness.of(SendDeploy)] == [Analysis.WHOLE, Analysis.DONE]


def test_an_undelivered_deployment_is_sent_again_unchanged() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    first = harness.of(SendDeploy)[-1]

    harness.apply(DeploymentUndelivered(first.order.attempt, first.instance, "the slots are in use"))
    harness.wait()

    assert harness.of(SendDeploy) == [first, first]
    assert harness.state() is E.DEPLOYING


def test_a_deployment_that_is_never_taken_fails_the_attempt() -> None:
    harness = JobHarness(SMALL, cluster=NO_INFRASTRUCTURE_RESTARTS)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    first = harness.of(SendDeploy)[-1]

    for _ in DEPLOYMENT_WAITS_S:
        harness.apply(DeploymentUndelivered(first.order.attempt, first.instance, "no engine"))
        harness.wait()
    harness.apply(DeploymentUndelivered(first.order.attempt, first.instance, "no engine"))

    assert harness.status is J.FAILED
    (entry,) = harness.job.exceptions
    assert entry.failure.kind is FailureKind.TASK_MANAGER_LOST
    assert "tm-1 did not take the task: no engine" in entry.failure.message
    assert harness.cancelled == [(0, 0)]  # it may have arrived all the same
    assert 20 < sum(DEPLOYMENT_WAITS_S) < 40


def test_a_task_that_runs_although_its_deployment_seemed_undelivered_is_not_deployed_again() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    sent = harness.of(SendDeploy)[-1]
    harness.apply(DeploymentUndelivered(sent.order.attempt, sent.instance, "the answer was lost"))

    harness.report(TaskRunning())
    harness.wait()

    assert harness.deployed == [(0, 0)]
    assert harness.state() is E.RUNNING


def test_a_task_manager_lost_before_anything_was_sent_costs_nothing() -> None:
    """1. Slots are granted. 2. Their TaskManager is lost while that is being recorded. 3. Others are granted."""
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0", on="tm-1")
    harness.lose("tm-1")
    assert harness.state() is E.SCHEDULED
    assert harness.wanted == ["0-0"]

    harness.grant("0-0", on="tm-2")
    harness.recorded()

    assert harness.deployed == [(0, 0)]
    assert harness.of(SendDeploy)[-1].address == "tm-2:1"
    assert harness.durable[harness.job.regions[0].plan.id].task_manager == "tm-2"


def test_progress_replaces_progress_and_counts_as_running() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()

    harness.report(TaskProgress(metrics=TaskMetrics(tasks_done=1), activity="reading orders"))
    harness.report(TaskProgress(metrics=TaskMetrics(tasks_done=2), activity="keeping top"))

    execution = harness.job.regions[0].current
    assert execution.state is E.RUNNING
    assert (execution.metrics.tasks_done, execution.activity) == (2, "keeping top")


def test_an_outcome_without_a_materialised_result_is_a_failure() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)

    harness.report(TaskFinished())

    assert harness.status is J.FAILED
    assert "'clean'" in harness.job.exceptions[0].failure.message


def test_results_come_with_the_finished_job_only() -> None:
    graph = graph_of(
        source("orders"), query("clean", "orders", exchange=BLOCKING), result("top", "orders"), result("end", "clean")
    )
    harness = JobHarness(graph)
    harness.start()
    harness.run_region(0)
    harness.finish(0, results=(ROWS,))
    assert snapshot_of(harness.job).result_names == ()

    harness.run_region(1)
    harness.finish(1, results=(structs.replace(ROWS, name=StepName("end")),))

    outcome = outcome_of(harness.job)
    assert [rows.name for rows in outcome.results] == ["top", "end"]
    assert outcome.snapshot.result_names == ("top", "end")


def test_a_small_job_leaves_nothing_to_remove() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.run_region()
    harness.finish()
    assert outcome_of(harness.job).scratch == ()


def test_staging_and_blocking_results_are_to_be_removed() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    harness.cancel()
    harness.canceled()
    assert outcome_of(harness.job).scratch == (f"/work/{'a' * 32}",)


def test_a_job_that_was_never_deployed_leaves_nothing_to_remove() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.cancel()
    assert harness.status is J.CANCELED
    assert outcome_of(harness.job).scratch == ()


def test_a_snapshot_shows_regions_attempts_and_times() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)

    snapshot = snapshot_of(harness.job)

    assert snapshot.end_ms == -1
    assert snapshot.last_modified_ms == harness.now_ms
    first, second = snapshot.executions
    assert (first.state, first.task_manager, first.address, first.slots) == (E.RUNNING, "tm-1", "tm-1:1", 1)
    assert (second.state, second.task_manager) == (E.CREATED, None)
    assert snapshot.summary().tasks.total == len(CHAIN.vertices)


def test_an_illegal_move_is_reported_with_the_moves_before_it() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    transition = Transition(harness.job, StepContext(now_ms=1, cluster_ms=1))

    with pytest.raises(InvariantBroken, match=r"0#0: illegal move DEPLOYING -> SCHEDULED.*job CREATED -> RUNNING"):
        transition.move(harness.job.regions[0], E.SCHEDULED)


def test_starting_twice_changes_nothing() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    before = harness.job
    harness.apply(JobStarted())
    assert harness.job is before


def test_reports_of_other_jobs_and_regions_are_ignored() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    before = harness.job
    for stranger in (attempt_id(7, 0), attempt_id(0, 3), structs.replace(attempt_id(0, 0), job_id="b" * 32)):
        assert before.region_of(stranger) is None
    harness.report(TaskRunning(), region=0, attempt=3)
    assert harness.job is before


def test_record_of_an_attempt_names_every_directory_that_it_may_write_to() -> None:
    """A job may end without a JobMaster, and then its records alone say what has to be removed."""
    harness = JobHarness(CHAIN)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    assert harness.durable[RegionId(0)].staging == (harness.job.plan.work_dir,)
    harness.taken()
    harness.finish(materialised={StepName("clean"): f"{harness.job.plan.work_dir}/clean/0"})
    harness.run_region(1)
    assert harness.durable[RegionId(1)].staging == (f"/out/.flintlock-{JOB}-1-0",)

"""A job without trouble: states, regions, requests, records, deployments, results."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.story import (
    BLOCKING,
    CHAIN,
    FILES,
    JOIN,
    PAIR,
    SMALL,
    SUBMITTED_MS,
    UNHELPED,
    Story,
    attempt_id,
    grant,
    graph_of,
    query,
    result,
    source,
)

from flintlock.jobmaster.events import Declare, DeploymentUndelivered, Moment, Record, Recorded, SendDeploy, Started
from flintlock.jobmaster.scheduling import DEPLOYMENT_WAITS_S
from flintlock.jobmaster.snapshot import outcome_of, snapshot_of
from flintlock.jobmaster.turn import Turn
from flintlock.model.errors import InvariantBroken
from flintlock.model.ids import RequestId, StepName
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
    story = Story(SMALL)
    assert story.status is J.INITIALIZING

    story.start()
    assert story.status is J.RUNNING

    story.run_region()
    story.finish(results=(ROWS,))
    assert story.status is J.FINISHED
    assert list(story.job.timestamps) == [J.INITIALIZING, J.CREATED, J.RUNNING, J.FINISHED]
    assert story.job.timestamps[J.INITIALIZING] == SUBMITTED_MS


def test_an_execution_goes_from_created_through_scheduled_deploying_and_running_to_finished() -> None:
    story = Story(SMALL)
    seen = [story.state()]
    story.start()
    seen.append(story.state())
    story.grant("0-0")
    story.recorded()
    seen.append(story.state())
    story.report(TaskRunning())
    seen.append(story.state())
    story.finish()
    seen.append(story.state())

    assert seen == [E.CREATED, E.SCHEDULED, E.DEPLOYING, E.RUNNING, E.FINISHED]
    timestamps = story.job.regions[0].current.timestamps
    assert list(timestamps) == seen
    assert sorted(timestamps.values()) == list(timestamps.values())


def test_nothing_is_deployed_before_attempt_and_task_manager_are_recorded() -> None:
    story = Story(FILES)
    story.start()

    story.grant("0-0", on="tm-7")
    assert story.deployed == []
    record = story.of(Record)[-1].record
    assert (record.phase, record.attempt, record.task_manager) == (RegionPhase.DEPLOYED, 0, "tm-7")
    assert record.instance == "tm-7-life"
    assert record.staging == (f"/out/.flintlock-{'a' * 32}-0-0",)

    story.recorded()
    assert story.deployed == [(0, 0)]
    assert story.of(SendDeploy)[-1].address == "tm-7:1"


def test_nothing_is_deployed_while_a_record_of_another_place_is_on_its_way() -> None:
    """Granted, lost and granted again where it was granted first: the first record is not the last one."""
    story = Story(FILES)
    story.start()
    for name in ("tm-1", "tm-2"):
        story.grant("0-0", on=name)
        story.lose(name)
    story.grant("0-0", on="tm-1")
    first, second, third = [effect.record for effect in story.of(Record)]

    for record in (first, second):
        story.hear(Recorded(record))
        assert story.deployed == []
    story.hear(Recorded(third))
    assert story.deployed == [(0, 0)]


def test_a_region_is_finished_only_once_that_is_recorded() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)

    story.report(TaskFinished(materialised={StepName("clean"): "/work/clean"}))
    assert story.state(0) is E.RUNNING
    assert story.state(1) is E.CREATED

    story.recorded()
    assert story.state(0) is E.FINISHED
    assert story.state(1) is E.SCHEDULED


def test_slots_are_given_back_as_soon_as_the_task_is_done() -> None:
    """1. The task reports that it is done. 2. Its slots are free, before its record is durable."""
    story = Story(SMALL)
    story.start()
    story.run_region()
    assert story.wanted == ["0-0"]

    story.report(TaskFinished())

    assert story.wanted == []
    assert story.state() is E.RUNNING


def test_independent_regions_are_requested_together() -> None:
    story = Story(JOIN)
    story.start()

    assert [len(declared.requirements.requests) for declared in story.of(Declare)] == [2]
    assert story.wanted == ["0-0", "1-0"]


def test_a_region_waits_for_all_its_inputs() -> None:
    story = Story(JOIN)
    story.start()
    story.run_region(0)
    story.run_region(1, on="tm-2")
    story.finish(0)
    assert story.state(2) is E.CREATED

    story.finish(1, on="tm-2")

    assert story.state(2) is E.SCHEDULED
    story.grant("2-0")
    story.recorded()
    assert story.of(SendDeploy)[-1].order.inputs == {"a": "/work/a", "b": "/work/b"}


def test_parallelism_becomes_slots() -> None:
    story = Story(FILES)
    story.start()
    (request,) = story.job.declared
    assert (request.slots, request.at_most) == (2, None)


@pytest.mark.parametrize(
    ("parallelism", "config", "cluster", "at_most"),
    [
        (None, {}, {}, None),
        (3, {}, {}, 3),
        (None, {"parallelism.default": "4"}, {}, 4),
        (None, {}, {"parallelism.default": "5"}, 5),
        (None, {"parallelism.default": "4"}, {"parallelism.default": "5"}, 4),
        (3, {"parallelism.default": "4"}, {}, 3),
    ],
)
def test_unset_parallelism_means_one_task_manager_at_most_the_jobs(
    parallelism: int | None, config: dict[str, str], cluster: dict[str, str], at_most: int | None
) -> None:
    graph = graph_of(source("orders"), result("top", "orders"), parallelism=parallelism, config=config)
    story = Story(graph, cluster=cluster)
    story.start()

    (request,) = story.job.declared
    assert (request.slots, request.at_most) == (None, at_most)


def test_a_grant_that_answers_no_open_request_is_ignored() -> None:
    story = Story(SMALL)
    story.start()
    (wish,) = story.job.declared
    waiting = story.job
    story.hear(grant(structs.replace(wish, id=RequestId("0-9")), "tm-1"))
    assert story.job is waiting

    story.grant("0-0", on="tm-1")
    granted = story.job
    story.hear(grant(wish, "tm-2"))
    assert story.job is granted


def test_the_deployment_carries_what_the_task_needs() -> None:
    graph = structs.replace(CHAIN, config={"spark.sql.shuffle.partitions": "4", "task.cancellation.timeout": "3 s"})
    story = Story(graph, cluster={"spark.executor.memory": "1g"})
    story.start()
    story.grant("0-0")
    story.recorded()

    order = story.of(SendDeploy)[-1].order
    assert order.graph is graph
    assert order.work_dir == f"/work/{'a' * 32}"
    assert order.session_config == {"spark.sql.shuffle.partitions": "4"}
    assert order.cancel_timeout_s == 3.0
    assert order.slots == (0, 1)


def test_the_first_regions_analyse_the_whole_graph() -> None:
    story = Story(JOIN)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.finish(0)
    story.finish(1)
    story.run_region(2)

    assert [effect.order.analysis for effect in story.of(SendDeploy)] == [
        Analysis.WHOLE, Analysis.WHOLE, Analysis.DONE,
    ]  # fmt: skip


@pytest.mark.parametrize("graph", [SMALL, structs.replace(JOIN, config={"execution.analyze-first": "false"})])
def test_one_region_or_an_option_make_analysis_of_the_whole_graph_needless(graph: JobGraph) -> None:
    story = Story(graph)
    story.start()
    story.grant("0-0")
    story.recorded()
    assert story.of(SendDeploy)[-1].order.analysis is Analysis.REGION


def test_a_second_root_region_that_runs_later_need_not_analyse_again() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.finish(0)
    story.grant("1-0")
    story.recorded()
    assert [effect.order.analysis for effect in story.of(SendDeploy)] == [Analysis.WHOLE, Analysis.DONE]


def test_an_undelivered_deployment_is_sent_again_unchanged() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()
    first = story.of(SendDeploy)[-1]

    story.hear(DeploymentUndelivered(first.order.attempt, first.instance, "the slots are held"))
    story.wait()

    assert story.of(SendDeploy) == [first, first]
    assert story.state() is E.DEPLOYING


def test_a_deployment_that_is_never_taken_fails_the_attempt() -> None:
    story = Story(SMALL, cluster=UNHELPED)
    story.start()
    story.grant("0-0")
    story.recorded()
    first = story.of(SendDeploy)[-1]

    for _ in DEPLOYMENT_WAITS_S:
        story.hear(DeploymentUndelivered(first.order.attempt, first.instance, "no engine"))
        story.wait()
    story.hear(DeploymentUndelivered(first.order.attempt, first.instance, "no engine"))

    assert story.status is J.FAILED
    (entry,) = story.job.exceptions
    assert entry.failure.kind is FailureKind.TASK_MANAGER_LOST
    assert "tm-1 did not take the task: no engine" in entry.failure.message
    assert story.cancelled == [(0, 0)]  # it may have arrived all the same
    assert 20 < sum(DEPLOYMENT_WAITS_S) < 40


def test_a_task_that_runs_although_its_deployment_seemed_undelivered_is_not_deployed_again() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()
    sent = story.of(SendDeploy)[-1]
    story.hear(DeploymentUndelivered(sent.order.attempt, sent.instance, "the answer was lost"))

    story.report(TaskRunning())
    story.wait()

    assert story.deployed == [(0, 0)]
    assert story.state() is E.RUNNING


def test_a_task_manager_lost_before_anything_was_sent_costs_nothing() -> None:
    """1. Slots are granted. 2. Their TaskManager is lost while that is being recorded. 3. Others are granted."""
    story = Story(SMALL)
    story.start()
    story.grant("0-0", on="tm-1")
    story.lose("tm-1")
    assert story.state() is E.SCHEDULED
    assert story.wanted == ["0-0"]

    story.grant("0-0", on="tm-2")
    story.recorded()

    assert story.deployed == [(0, 0)]
    assert story.of(SendDeploy)[-1].address == "tm-2:1"
    assert story.durable[story.job.regions[0].region.id].task_manager == "tm-2"


def test_progress_replaces_progress_and_counts_as_running() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()

    story.report(TaskProgress(metrics=TaskMetrics(tasks_done=1), activity="reading orders"))
    story.report(TaskProgress(metrics=TaskMetrics(tasks_done=2), activity="keeping top"))

    execution = story.job.regions[0].current
    assert execution.state is E.RUNNING
    assert (execution.metrics.tasks_done, execution.activity) == (2, "keeping top")


def test_an_outcome_without_a_materialised_result_is_a_failure() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)

    story.report(TaskFinished())

    assert story.status is J.FAILED
    assert "'clean'" in story.job.exceptions[0].failure.message


def test_results_come_with_the_finished_job_only() -> None:
    graph = graph_of(
        source("orders"), query("clean", "orders", exchange=BLOCKING), result("top", "orders"), result("end", "clean")
    )
    story = Story(graph)
    story.start()
    story.run_region(0)
    story.finish(0, results=(ROWS,))
    assert snapshot_of(story.job).result_names == ()

    story.run_region(1)
    story.finish(1, results=(structs.replace(ROWS, name=StepName("end")),))

    outcome = outcome_of(story.job)
    assert [rows.name for rows in outcome.results] == ["top", "end"]
    assert outcome.snapshot.result_names == ("top", "end")


def test_a_small_job_leaves_nothing_to_remove() -> None:
    story = Story(SMALL)
    story.start()
    story.run_region()
    story.finish()
    assert outcome_of(story.job).scratch == ()


def test_staging_and_blocking_results_are_to_be_removed() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)
    story.cancel()
    story.canceled()
    assert outcome_of(story.job).scratch == (f"/work/{'a' * 32}",)


def test_a_job_that_was_never_deployed_leaves_nothing_to_remove() -> None:
    story = Story(CHAIN)
    story.start()
    story.cancel()
    assert story.status is J.CANCELED
    assert outcome_of(story.job).scratch == ()


def test_a_snapshot_shows_regions_attempts_and_times() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)

    snapshot = snapshot_of(story.job)

    assert snapshot.end_ms == -1
    assert snapshot.last_modified_ms == story.now_ms
    first, second = snapshot.executions
    assert (first.state, first.task_manager, first.address, first.slots) == (E.RUNNING, "tm-1", "tm-1:1", 2)
    assert (second.state, second.task_manager) == (E.CREATED, None)
    assert snapshot.summary().tasks.total == len(CHAIN.vertices)


def test_an_illegal_move_is_told_with_the_story_before_it() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()
    turn = Turn(story.job, Moment(now_ms=1))

    with pytest.raises(InvariantBroken, match=r"0#0: illegal move DEPLOYING -> SCHEDULED.*job CREATED -> RUNNING"):
        turn.move(story.job.regions[0], E.SCHEDULED)


def test_starting_twice_changes_nothing() -> None:
    story = Story(SMALL)
    story.start()
    before = story.job
    story.hear(Started())
    assert story.job is before


def test_reports_of_other_jobs_and_regions_are_ignored() -> None:
    story = Story(SMALL)
    story.start()
    before = story.job
    for stranger in (attempt_id(7, 0), attempt_id(0, 3), structs.replace(attempt_id(0, 0), job_id="b" * 32)):
        assert before.current_life(stranger) is None
    story.report(TaskRunning(), region=0, attempt=3)
    assert story.job is before

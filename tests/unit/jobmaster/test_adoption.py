"""What a new JobMaster does with attempts that an earlier one has sent."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.story import FILES, JOB, PAIR, SMALL, Story, attempt_id, staged

from flintlock.jobmaster.core import unwanted
from flintlock.jobmaster.events import (
    After,
    CancelAnswered,
    Probed,
    ProbeDue,
    ReconcileTimedOut,
    SendCancel,
    SendDeploy,
    SendProbe,
)
from flintlock.jobmaster.snapshot import outcome_of, snapshot_of
from flintlock.model.ids import InstanceId, RegionId, RequestId, TaskManagerId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.slots import Claim, DeployedTasks, NoResources
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind, TaskFinished, TaskMetrics, TaskProgress

E = ExecutionState
J = JobStatus


def reborn(graph: JobGraph = FILES) -> Story:
    """A job whose first region was sent to tm-1 by an earlier JobMaster."""
    story = Story(graph)
    story.start()
    story.run_region()
    again = story.again()
    again.start()
    return again


def test_what_was_sent_is_claimed_where_it_was_sent() -> None:
    story = reborn()
    assert (story.status, story.state(), story.attempt()) == (J.RECONCILING, E.RECONCILING, 0)
    (request,) = story.job.declared
    assert request.claim == Claim(
        task_manager=TaskManagerId("tm-1"), instance=InstanceId("tm-1-life"), attempt=attempt_id(0, 0)
    )
    assert story.of(SendProbe) == [SendProbe("tm-1:1", attempt_id(0, 0), InstanceId("tm-1-life"))]
    assert story.of(SendDeploy) == []


def test_an_attempt_whose_claim_is_granted_runs_on_under_its_number() -> None:
    story = reborn()
    story.grant("0-0-claim")
    assert (story.status, story.state(), story.attempt()) == (J.RUNNING, E.RUNNING, 0)
    assert story.job.regions[0].current.slots == 2
    story.finish()
    assert story.status is J.FINISHED
    assert story.deployed == []


def test_an_attempt_that_tells_of_itself_is_adopted_before_its_claim_is_granted() -> None:
    story = reborn()
    story.report(TaskProgress(metrics=TaskMetrics(tasks_total=3)))
    assert (story.status, story.state()) == (J.RUNNING, E.RUNNING)
    story.grant("0-0-claim")
    grant = story.job.regions[0].grant
    assert grant is not None
    assert grant.slots != ()


def test_an_end_that_nobody_led_to_hear_is_heard_now() -> None:
    story = reborn()
    story.report(TaskFinished())
    story.recorded()
    assert (story.status, story.attempt()) == (J.FINISHED, 0)


def test_a_failure_that_nobody_led_to_hear_counts_as_one() -> None:
    story = reborn()
    story.fail(FailureKind.SPARK_TASK)
    assert story.status is J.FAILED


def test_a_heartbeat_that_names_the_attempt_adopts_it_before_it_is_answered() -> None:
    """The answer renews the attempt's lease, so nobody may give it up after that."""
    story = reborn()
    beat = DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-life"),
        attempts=(attempt_id(0, 0),),
    )
    story.hear(beat)
    assert story.state() is E.RUNNING
    story.wait_for(ReconcileTimedOut)
    assert (story.state(), story.attempt()) == (E.RUNNING, 0)


def test_an_attempt_that_was_given_up_is_unwanted_when_it_comes_back() -> None:
    story = reborn()
    story.wait_for(ReconcileTimedOut)
    beat = DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-life"),
        attempts=(attempt_id(0, 0),),
    )
    story.hear(beat)
    assert unwanted(story.job, beat) == (attempt_id(0, 0),)
    assert (story.state(), story.attempt()) == (E.SCHEDULED, 1)


def test_reports_of_another_life_adopt_nothing() -> None:
    story = reborn()
    story.report(TaskFinished(), on="tm-2")
    assert story.state() is E.RECONCILING


def test_a_task_manager_that_came_back_without_the_attempt_is_not_waited_for() -> None:
    """The next attempt has the next number, and its staging is remembered beside the first one's."""
    story = reborn()
    story.hear(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert (story.status, story.state(), story.attempt(), story.job.exceptions) == (J.RUNNING, E.SCHEDULED, 1, ())
    story.run_region()
    assert story.deployed == [(0, 1)]
    assert [path[-4:] for path in story.durable[RegionId(0)].staging] == ["-0-0", "-0-1"]
    assert [e.state for e in snapshot_of(story.job).executions] == [E.CANCELED, E.RUNNING]


def test_a_refused_claim_of_an_attempt_that_has_finished_changes_nothing() -> None:
    story = reborn()
    story.report(TaskFinished())
    before = story.job
    story.hear(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert story.job is before


def test_an_attempt_that_told_of_itself_and_is_gone_when_its_task_manager_comes_back_is_lost() -> None:
    story = reborn()
    story.report(TaskProgress(metrics=TaskMetrics()))
    story.hear(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert (story.status, story.state()) == (J.RESTARTING, E.FAILED)
    assert story.job.exceptions[0].failure.kind is FailureKind.TASK_MANAGER_LOST


def test_an_attempt_that_told_of_itself_once_and_whose_task_manager_never_comes_back_is_given_up() -> None:
    story = reborn()
    story.report(TaskProgress(metrics=TaskMetrics()))
    story.wait_for(ReconcileTimedOut)
    assert (story.status, story.state()) == (J.RESTARTING, E.FAILED)


@pytest.mark.parametrize("how", ["it never comes back", "it comes back without the task"])
def test_files_of_an_adopted_attempt_are_published_elsewhere_if_its_task_manager_is_gone(how: str) -> None:
    """It told that it was done before it registered with the new leader, who therefore hears of no loss."""
    story = reborn()
    story.finish(sinks=(staged("part-0"),))
    assert story.publications == [(0, "tm-1:1")]
    if how == "it never comes back":
        story.wait_for(ReconcileTimedOut)
    else:
        story.hear(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason=how))

    assert story.wanted == ["0-0-publish"]
    story.grant("0-0-publish", on="tm-2")
    assert story.publications[-1] == (0, "tm-2:1")
    story.published(on="tm-2")
    assert (story.status, story.attempt()) == (J.FINISHED, 0)


def test_an_adopted_attempt_is_not_given_up() -> None:
    story = reborn()
    story.grant("0-0-claim")
    before = story.job
    story.wait_for(ReconcileTimedOut)
    assert story.job is before


def test_a_lost_task_manager_took_the_attempt_along() -> None:
    story = reborn()
    story.lose("tm-1")
    assert (story.state(), story.attempt(), story.job.exceptions) == (E.SCHEDULED, 1, ())


def test_a_life_that_is_over_is_not_waited_for() -> None:
    story = reborn()
    story.hear(Probed(attempt_id(0, 0), over=True, unreachable=False))
    assert (story.state(), story.attempt()) == (E.SCHEDULED, 1)


def test_an_attempt_is_over_when_nothing_listens_there_any_more() -> None:
    story = reborn()
    for unreachable in (True, True, False, True, True):
        story.hear(Probed(attempt_id(0, 0), over=False, unreachable=unreachable))
        assert story.state() is E.RECONCILING
        story.wait_for(ProbeDue)
    assert len(story.of(SendProbe)) == 6
    story.hear(Probed(attempt_id(0, 0), over=False, unreachable=True))
    assert (story.state(), story.attempt()) == (E.SCHEDULED, 1)


def test_an_attempt_is_given_up_after_a_whole_lease_in_the_new_term() -> None:
    story = reborn()
    assert [t.delay_s for t in story.of(After) if isinstance(t.event, ReconcileTimedOut)] == [50.0]
    story.wait_for(ReconcileTimedOut)
    assert (story.state(), story.attempt()) == (E.SCHEDULED, 1)


def test_other_regions_do_not_wait_for_what_is_reconciled() -> None:
    story = reborn(PAIR)
    assert story.status is J.RECONCILING
    assert "1-0" in story.wanted
    story.run_region(1)
    story.finish(1)
    assert (story.status, story.state(1)) == (J.RECONCILING, E.FINISHED)
    story.report(TaskFinished())
    story.recorded()
    assert story.status is J.FINISHED


def test_a_failure_beside_what_is_reconciled_restarts_its_own_region_only() -> None:
    story = reborn(PAIR)
    story.run_region(1)
    story.fail(FailureKind.ENGINE_LOST, region=1)
    assert (story.status, story.state(0)) == (J.RESTARTING, E.RECONCILING)
    story.restart()
    story.grant("0-0-claim")
    assert (story.status, story.state(0), story.attempt(1)) == (J.RUNNING, E.RUNNING, 1)


def test_a_cancelled_job_ends_when_its_reconciled_attempt_has_ended() -> None:
    story = reborn()
    story.cancel()
    assert (story.status, story.state()) == (J.CANCELLING, E.CANCELING)
    assert story.of(SendCancel)[-1].address == "tm-1:1"
    story.canceled()
    assert (story.status, story.attempt()) == (J.CANCELED, 0)
    assert outcome_of(story.job).scratch == (f"/out/.flintlock-{JOB}-0-0",)


@pytest.mark.parametrize("how", ["told", "nothing listens", "a lease later"])
def test_cancel_before_the_start_waits_for_the_attempt_too(how: str) -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    again = story.again()
    again.cancel()
    assert again.status is J.CANCELLING
    again.start()
    assert again.cancelled == [(0, 0)]
    match how:
        case "told":
            again.canceled(on="tm-1-reborn")
        case "nothing listens":
            for _ in range(3):
                again.hear(CancelAnswered(attempt_id(0, 0), unreachable=True))
        case _:
            again.wait_for(ReconcileTimedOut)
    assert again.status is J.CANCELED


def test_a_record_without_an_address_is_of_an_attempt_that_never_left() -> None:
    story = Story(SMALL)
    story.start()
    story.run_region()
    story.durable = {RegionId(0): structs.replace(story.durable[RegionId(0)], address="")}
    again = story.again()
    again.start()
    assert (again.status, again.state(), again.attempt()) == (J.RUNNING, E.SCHEDULED, 1)

"""Failure, restart, cancel, loss and recovery of one job."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.story import (
    CHAIN,
    FILES,
    JOB,
    JOIN,
    PAIR,
    SMALL,
    UNHELPED,
    Story,
    graph_of,
    sink,
    source,
    staged,
)

from flintlock.jobmaster.core import refusal_to_cancel
from flintlock.jobmaster.events import (
    After,
    CancelAnswered,
    CancelDue,
    RestartDue,
    SendCancel,
    SendDeploy,
    Suspended,
)
from flintlock.jobmaster.snapshot import outcome_of, snapshot_of
from flintlock.model.errors import Corrupt
from flintlock.model.ids import InstanceId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.slots import SlotGrant, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    FailureKind,
    FilesPublished,
    RegionPhase,
    TaskFinished,
    TaskRunning,
)

E = ExecutionState
J = JobStatus
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "2"}


def running(*, retry: bool = False, cluster: dict[str, str] | None = None) -> Story:
    story = Story(SMALL, cluster=RETRY if retry else cluster)
    story.start()
    story.run_region()
    return story


# Failure


def test_a_failed_task_fails_a_batch_job_that_has_no_restart_strategy() -> None:
    story = running()
    story.fail()
    assert (story.status, story.state()) == (J.FAILED, E.FAILED)
    assert [status for status in story.job.timestamps if status is J.FAILING]


def test_a_failed_region_is_restarted_with_a_new_attempt_after_the_delay() -> None:
    story = running(retry=True)

    story.fail()
    assert (story.status, story.state(), story.wanted) == (J.RESTARTING, E.FAILED, [])
    assert story.of(After)[-1] == After(1.0, RestartDue(story.job.attempt_id(story.job.regions[0])))

    story.restart()
    assert (story.status, story.state(), story.attempt()) == (J.RUNNING, E.SCHEDULED, 1)
    assert story.wanted == ["0-1"]
    story.run_region()
    story.finish()
    assert story.status is J.FINISHED
    assert [e.state for e in story.job.regions[0].executions] == [E.FAILED, E.FINISHED]


def test_the_strategy_gives_up() -> None:
    story = running(retry=True)
    for _ in range(2):
        story.fail()
        story.restart()
        story.run_region()
    story.fail()
    assert story.status is J.FAILED
    assert story.attempt() == 2


@pytest.mark.parametrize(
    "kind",
    [FailureKind.USER_CODE, FailureKind.ANALYSIS, FailureKind.MISSING_ARTIFACT, FailureKind.CONFIGURATION],
)
def test_what_cannot_ever_succeed_bypasses_the_strategy(kind: FailureKind) -> None:
    story = running(retry=True)
    story.fail(kind)
    assert story.status is J.FAILED


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.SPARK_TASK,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.RUNNER_LOST,
        FailureKind.ENGINE_LOST,
        FailureKind.TASK_MANAGER_LOST,
        FailureKind.INTERNAL,
    ],
)
def test_other_failures_follow_the_strategy(kind: FailureKind) -> None:
    story = running(retry=True)
    story.fail(kind)
    assert story.status is J.RESTARTING


def test_failover_is_by_region() -> None:
    """A failure downstream of a blocking exchange does not run the upstream again, nor touch its neighbours."""
    story = Story(JOIN, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.run_region(1, on="tm-2")
    story.finish(0)

    story.fail(region=1, on="tm-2")
    assert (story.state(0), story.state(1)) == (E.FINISHED, E.FAILED)
    story.restart()
    story.run_region(1, on="tm-2")
    story.finish(1, on="tm-2")
    story.run_region(2)
    story.fail(region=2)
    story.restart()

    assert story.deployed == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert story.state(2) is E.SCHEDULED


def test_a_job_runs_again_when_the_last_pending_restart_is_over() -> None:
    story = Story(PAIR, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.fail(region=0)
    first = story.of(After)[-1]
    story.fail(region=1)
    second = story.of(After)[-1]

    story.hear(first.event)
    assert story.status is J.RESTARTING
    assert story.wanted == ["0-1"]
    story.hear(second.event)
    assert story.status is J.RUNNING


def test_other_regions_go_on_while_one_waits_for_its_restart() -> None:
    story = Story(JOIN, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.fail(region=0)

    story.finish(1)

    assert story.status is J.RESTARTING
    assert story.state(1) is E.FINISHED


def test_slots_granted_while_restarting_are_taken_by_who_waits_for_them_and_by_nobody_else() -> None:
    story = Story(PAIR, cluster=RETRY)
    story.start()
    first, second = story.wanted
    story.run_region(0)
    story.fail(region=0)
    assert story.status is J.RESTARTING
    assert story.wanted == [second], "the failed attempt wants nothing any more"

    story.hear(_late_grant(first))
    assert story.deployed == [(0, 0)]
    story.grant(second, on="tm-2")
    story.recorded()

    assert story.status is J.RESTARTING
    assert story.deployed == [(0, 0), (1, 0)]


def test_failing_cancels_the_other_executions_first() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.run_region(1)

    story.fail(region=0)
    assert (story.status, story.state(1)) == (J.FAILING, E.CANCELING)
    assert story.cancelled == [(1, 0)]

    story.canceled(1)
    assert (story.status, story.state(1)) == (J.FAILED, E.CANCELED)


def test_failing_withdraws_what_was_only_scheduled() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.fail(region=0)
    assert (story.status, story.state(1), story.wanted) == (J.FAILED, E.CANCELED, [])


def test_every_failure_stands_in_the_exception_history() -> None:
    story = running(retry=True)
    story.fail()
    story.restart()
    story.run_region(on="tm-2")
    story.fail(FailureKind.USER_CODE, on="tm-2")

    first, second = snapshot_of(story.job).exceptions
    assert (first.attempt, first.task_manager, first.endpoint) == (0, "tm-1", "tm-1:1")
    assert (second.attempt, second.task_manager) == (1, "tm-2")
    assert first.task_name == "orders, top"
    assert first.timestamp_ms < second.timestamp_ms


def test_the_exception_history_is_bounded() -> None:
    many = RETRY | {"restart-strategy.fixed-delay.attempts": "9", "web.exception-history-size": "2"}
    story = Story(SMALL, cluster=many)
    story.start()
    for _ in range(3):
        story.run_region()
        story.fail()
        story.restart()

    snapshot = snapshot_of(story.job)
    assert [entry.attempt for entry in snapshot.exceptions] == [1, 2]
    assert snapshot.exceptions_truncated


def test_a_task_that_its_task_manager_ended_unasked_has_failed() -> None:
    story = running(cluster=UNHELPED)
    story.canceled()
    assert story.status is J.FAILED
    assert "without being asked" in story.job.exceptions[0].failure.message


# Late words


def test_a_zombies_success_is_never_accepted() -> None:
    """1. Attempt 0 is given up with its TaskManager. 2. Attempt 1 runs. 3. Attempt 0 says that it is done."""
    story = running(retry=True)
    story.lose("tm-1")
    story.restart()
    story.run_region(on="tm-2")
    before = story.job

    story.report(TaskFinished(), attempt=0, on="tm-1")

    assert story.job is before
    assert story.recorded() == []


def test_a_report_from_a_task_manager_that_was_not_given_the_attempt_is_ignored() -> None:
    story = running()
    before = story.job
    story.report(TaskFinished(), on="tm-9")
    assert story.job is before


def test_a_terminal_state_never_changes() -> None:
    story = running()
    story.fail()
    before = story.job
    story.finish()
    story.cancel()
    story.lose("tm-1")
    story.hear(Suspended())
    assert story.job is before


def test_a_restart_that_comes_due_after_a_cancel_is_discarded() -> None:
    story = running(retry=True)
    story.fail()
    story.cancel()
    assert story.status is J.CANCELED
    story.restart()
    assert (story.status, story.attempt()) == (J.CANCELED, 0)


# Cancel


def test_cancel_before_the_job_was_started_cancels_it() -> None:
    story = Story(SMALL)
    story.cancel()
    assert (story.status, story.state()) == (J.CANCELED, E.CANCELED)
    assert list(story.job.timestamps) == [J.INITIALIZING, J.CANCELLING, J.CANCELED]


def test_cancel_of_a_scheduled_execution_is_immediate_and_withdraws_its_request() -> None:
    story = Story(SMALL)
    story.start()
    story.cancel()
    assert (story.status, story.state(), story.wanted) == (J.CANCELED, E.CANCELED, [])


def test_cancel_while_the_deployment_is_being_recorded_sends_nothing() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.cancel()
    story.recorded()
    assert story.status is J.CANCELED
    assert story.deployed == []


def test_cancel_of_a_running_task_waits_for_its_end() -> None:
    story = running()
    story.cancel()
    assert (story.status, story.state()) == (J.CANCELLING, E.CANCELING)
    assert story.cancelled == [(0, 0)]
    assert story.wanted == ["0-0"]  # its slots are still in use

    story.canceled()
    assert (story.status, story.state(), story.wanted) == (J.CANCELED, E.CANCELED, [])


def test_a_cancellation_is_repeated_until_the_end_is_confirmed() -> None:
    story = running()
    story.cancel()
    for _ in range(3):
        story.wait()
    assert story.cancelled == [(0, 0)] * 4

    story.canceled()
    timer = [t for t in story.of(After) if isinstance(t.event, CancelDue)][-1]
    story.hear(timer.event)
    assert story.cancelled == [(0, 0)] * 4


def test_a_cancellation_does_not_overtake_its_deployment() -> None:
    """1. A deployment is under way. 2. The job is cancelled. 3. The deployment arrives, then the cancellation."""
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()
    story.cancel()
    assert (story.state(), story.cancelled) == (E.CANCELING, [])

    story.taken()
    assert story.cancelled == [(0, 0)]


def test_a_cancellation_does_not_wait_for_ever_for_its_deployment() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    story.recorded()
    story.cancel()
    story.wait()
    assert story.cancelled == [(0, 0)]


@pytest.mark.parametrize("word", ["finish", "fail", "lose"])
def test_whatever_ends_a_canceling_task_counts_as_canceled(word: str) -> None:
    story = running(retry=True)
    story.cancel()
    {"finish": story.finish, "fail": story.fail, "lose": lambda: story.lose("tm-1")}[word]()
    assert (story.status, story.state()) == (J.CANCELED, E.CANCELED)
    assert story.job.exceptions == ()


def test_cancel_while_restarting() -> None:
    story = Story(PAIR, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.fail(region=0)
    story.cancel()
    assert (story.status, story.state(0), story.state(1)) == (J.CANCELLING, E.FAILED, E.CANCELING)
    story.canceled(1)
    assert story.status is J.CANCELED


def test_cancel_while_failing_ends_as_canceled() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.fail(region=0)
    story.cancel()
    story.canceled(1)
    assert story.status is J.CANCELED


def test_cancel_of_an_ended_job() -> None:
    finished, failed, canceled = running(), running(), running()
    finished.finish()
    failed.fail()
    canceled.cancel()
    canceled.canceled()
    assert refusal_to_cancel(finished.job) == "is FINISHED and can no longer be cancelled"
    assert refusal_to_cancel(failed.job) == "is FAILED and can no longer be cancelled"
    assert refusal_to_cancel(canceled.job) is None


def test_a_job_whose_work_is_done_can_no_longer_be_cancelled() -> None:
    story = running()
    story.report(TaskFinished())  # being recorded: it may be durable already
    assert refusal_to_cancel(story.job) == "has done its work and can no longer be cancelled"
    story.recorded()
    assert story.status is J.FINISHED


def test_suspension_leaves_tasks_and_requests_alone() -> None:
    story = running()
    effects = story.hear(Suspended())
    assert story.status is J.SUSPENDED
    assert not [effect for effect in effects if isinstance(effect, SendCancel)]
    assert story.wanted == ["0-0"]
    assert story.state() is E.RUNNING


def test_a_restart_that_failing_made_pointless_does_not_make_a_publishing_job_cancellable() -> None:
    """1. One region waits for its restart, one publishes. 2. A third fails for good. 3. Only publishing is left."""
    vertices = [*PAIR.vertices, source("c"), sink("third", "c", "/third")]
    story = Story(graph_of(*vertices), cluster=RETRY)
    story.start()
    for region in range(3):
        story.run_region(region)
    story.fail(region=0)
    story.finish(1, sinks=(staged("part-0"),))
    assert refusal_to_cancel(story.job) is None

    story.fail(FailureKind.USER_CODE, region=2)

    assert story.status is J.FAILING
    assert refusal_to_cancel(story.job) == "is publishing its output and can no longer be cancelled"


# Loss of a TaskManager


def test_a_lost_task_manager_fails_its_tasks_only() -> None:
    story = Story(PAIR, cluster=RETRY)
    story.start()
    story.run_region(0, on="tm-1")
    story.run_region(1, on="tm-2")

    story.lose("tm-1")

    assert (story.state(0), story.state(1)) == (E.FAILED, E.RUNNING)
    (entry,) = story.job.exceptions
    assert entry.failure.kind is FailureKind.TASK_MANAGER_LOST
    assert entry.failure.message == "TaskManager tm-1 is lost: silent"


def test_a_lost_task_manager_fails_one_task_and_thereby_cancels_the_other() -> None:
    """Both are gone with it. The first one fails the job, which begins to cancel the second, which has ended too."""
    story = Story(PAIR, cluster=UNHELPED)
    story.start()
    story.run_region(0)
    story.run_region(1)

    story.lose("tm-1")

    assert (story.status, story.state(0), story.state(1)) == (J.FAILED, E.FAILED, E.CANCELED)
    assert len(story.job.exceptions) == 1


def test_another_life_of_a_task_manager_is_another_task_manager() -> None:
    story = running()
    before = story.job
    story.hear(
        TaskManagerLost(
            job_id=JOB,
            task_manager=TaskManagerId("tm-1"),
            instance=InstanceId("an earlier life"),
            reason="silent",
        )
    )
    assert story.job is before


def test_a_finished_region_outlives_its_task_manager() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)
    story.finish(0)
    story.lose("tm-1")
    assert (story.status, story.state(0), story.state(1)) == (J.RUNNING, E.FINISHED, E.SCHEDULED)


# Recovery


def test_a_recovered_job_does_not_run_finished_regions_again() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)
    story.finish(0)

    again = story.again()
    again.start()

    assert (again.state(0), again.state(1), again.wanted) == (E.FINISHED, E.SCHEDULED, ["1-0"])
    again.run_region(1)
    assert again.deployed == [(1, 0)]


def test_a_cancelled_task_is_over_when_nothing_listens_at_its_task_manager_any_more() -> None:
    story = running()
    story.cancel()
    attempt = story.job.attempt_id(story.job.regions[0])
    for _ in range(3):
        story.hear(CancelAnswered(attempt, unreachable=True))
    assert story.status is J.CANCELED


def test_an_accepted_attempt_is_published_by_the_next_job_master() -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    story.finish(sinks=(staged("part-0"),))
    assert story.durable[RegionId(0)].phase is RegionPhase.ACCEPTED

    again = story.again()
    again.start()
    assert again.wanted == ["0-0-publish"]
    assert again.job.declared[0].slots == 1
    again.grant("0-0-publish", on="tm-2")
    assert again.publications == [(0, "tm-2:1")]
    assert again.deployed == []
    again.published(on="tm-2")

    assert again.status is J.FINISHED
    assert outcome_of(again.job).scratch == (f"/out/.flintlock-{'a' * 32}-0-0",)


def test_a_job_whose_last_region_was_finished_ends_at_once() -> None:
    story = running()
    story.finish()
    again = story.again()
    again.start()
    assert again.status is J.FINISHED
    assert again.of(After) == []


def test_recovered_results_come_from_the_records() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)
    story.finish(0)
    again = story.again()
    again.start()
    again.grant("1-0")
    again.recorded()
    (sent,) = again.of(SendDeploy)
    assert sent.order.inputs == {StepName("clean"): "/work/clean"}


def test_cancel_of_a_recovered_job_that_has_to_publish_is_refused_from_the_beginning() -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    story.finish(sinks=(staged("part-0"),))
    again = story.again()
    assert refusal_to_cancel(again.job) == "is publishing its output and can no longer be cancelled"


def test_cancel_before_the_start_of_a_recovered_job_still_publishes_what_was_accepted() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.finish(0, sinks=(staged("part-0"),))
    again = story.again()
    assert refusal_to_cancel(again.job) is None

    again.cancel()
    assert (again.status, again.state(1)) == (J.CANCELLING, E.CANCELED)
    again.start()
    again.grant("0-0-publish")
    again.published()

    assert (again.status, again.state(0)) == (J.CANCELED, E.FINISHED)


def test_records_that_do_not_fit_the_graph_are_corrupt() -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    record = story.durable[RegionId(0)]
    with pytest.raises(Corrupt, match="no region 5"):
        Story(FILES, (structs.replace(record, region=RegionId(5)),))
    with pytest.raises(Corrupt, match="without an outcome"):
        Story(FILES, (structs.replace(record, phase=RegionPhase.ACCEPTED),))


# Publication


def accepted() -> Story:
    story = Story(FILES)
    story.start()
    story.run_region()
    story.finish(sinks=(staged("part-0"),))
    return story


def test_nothing_is_published_before_the_acceptance_is_recorded() -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    story.report(TaskFinished(sinks=(staged("part-0"),)))
    assert story.publications == []
    assert story.status is J.RUNNING

    story.recorded()
    assert story.publications == [(0, "tm-1:1")]
    assert story.durable[RegionId(0)].phase is RegionPhase.ACCEPTED
    assert snapshot_of(story.job).publishing == (0, 2)


def test_a_region_with_files_is_finished_when_they_are_published_and_that_is_recorded() -> None:
    story = accepted()
    story.report(FilesPublished(done=1, total=2))
    assert (story.status, snapshot_of(story.job).publishing) == (J.RUNNING, (1, 2))

    story.report(FilesPublished(done=2, total=2, complete=True))
    assert (story.status, story.wanted) == (J.RUNNING, [])

    story.recorded()
    assert story.status is J.FINISHED
    record = story.durable[RegionId(0)]
    assert record.outcome is not None
    assert (record.phase, record.outcome.sinks) == (RegionPhase.FINISHED, ())


def test_a_job_that_publishes_can_no_longer_be_cancelled() -> None:
    story = accepted()
    assert refusal_to_cancel(story.job) == "is publishing its output and can no longer be cancelled"


def test_a_job_that_publishes_in_part_is_cancelled_when_that_is_done() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.finish(0, sinks=(staged("part-0"),))
    assert refusal_to_cancel(story.job) is None

    story.cancel()
    story.canceled(1)
    assert (story.status, story.state(0), story.state(1)) == (J.CANCELLING, E.RUNNING, E.CANCELED)
    story.published(0)
    assert (story.status, story.state(0)) == (J.CANCELED, E.FINISHED)


def test_a_failing_job_waits_for_its_publication() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.finish(0, sinks=(staged("part-0"),))
    story.fail(region=1)
    assert (story.status, story.state(0)) == (J.FAILING, E.RUNNING)
    story.published(0)
    assert (story.status, story.state(0)) == (J.FAILED, E.FINISHED)


def test_a_lost_publisher_is_replaced_by_any_task_manager_with_a_slot() -> None:
    story = accepted()
    story.lose("tm-1")
    assert (story.status, story.state(), story.wanted) == (J.RUNNING, E.RUNNING, ["0-0-publish"])

    story.grant("0-0-publish", on="tm-2")
    story.lose("tm-2")
    story.grant("0-0-publish", on="tm-3")
    assert story.publications == [(0, "tm-1:1"), (0, "tm-2:1"), (0, "tm-3:1")]
    story.published(on="tm-3")
    assert story.status is J.FINISHED
    assert story.deployed == [(0, 0)]


def test_a_publisher_lost_while_the_acceptance_is_recorded_is_replaced_after_it() -> None:
    story = Story(FILES)
    story.start()
    story.run_region()
    story.report(TaskFinished(sinks=(staged("part-0"),)))
    story.lose("tm-1")
    story.grant("0-0-publish", on="tm-2")
    assert story.publications == []
    story.recorded()
    assert story.publications == [(0, "tm-2:1")]


def test_the_word_of_a_publisher_that_was_given_up_counts_when_all_is_there() -> None:
    story = accepted()
    story.lose("tm-1")
    story.published(on="tm-1")
    assert story.status is J.FINISHED


def test_a_failed_publication_is_tried_again_with_growing_waits() -> None:
    story = accepted()
    for number in range(20):
        story.publication_failed(f"reason {number}")
        story.publication_failed(f"reason {number}")  # the same word twice counts once
        story.wait()
    waits = [t.delay_s for t in story.of(After)]
    assert waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(waits) == 20
    assert len(story.publications) == 21
    assert story.status is J.RUNNING


def test_a_publication_that_fails_for_the_same_reason_again_and_again_fails_the_job() -> None:
    story = accepted()
    story.report(FilesPublished(done=1, total=2))
    for _ in range(9):
        story.publication_failed("no space left on device")
        story.wait()
    assert story.status is J.RUNNING
    story.publication_failed("no space left on device")

    assert (story.status, story.state()) == (J.FAILED, E.FAILED)
    (entry,) = story.job.exceptions
    assert entry.failure.kind is FailureKind.PUBLICATION
    assert "1 of 2 files in their place: no space left on device" in entry.failure.message


def test_a_cancelled_job_whose_publication_cannot_succeed_is_failed() -> None:
    story = Story(PAIR)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.finish(0, sinks=(staged("part-0"),))
    story.cancel()
    story.canceled(1)
    for _ in range(10):
        story.publication_failed("no space left on device")
        story.wait()
    assert story.status is J.FAILED


def test_an_accepted_attempt_hears_nothing_else_any_more() -> None:
    story = accepted()
    before = story.job
    story.fail()
    story.canceled()
    story.report(TaskRunning())
    story.report(TaskFinished(sinks=(staged("another"),)))
    assert story.job is before


def _late_grant(request: str) -> SlotGrant:
    """Slots for a request that is no longer open."""
    return SlotGrant(
        job_id=JOB,
        request=RequestId(request),
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-life"),
        address="tm-1:1",
        slots=(0,),
    )

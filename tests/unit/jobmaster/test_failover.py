"""Failure, restart, cancel, loss and recovery of one job."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import (
    CHAIN,
    FILES,
    JOB,
    JOIN,
    NO_INFRASTRUCTURE_RESTARTS,
    PAIR,
    SMALL,
    JobHarness,
    graph_of,
    sink,
    source,
    staged,
)

from flintlock.jobmaster.core import refusal_to_cancel, unwanted_attempts
from flintlock.jobmaster.events import (
    CancelAnswered,
    CancelDue,
    RestartDue,
    SendCommand,
    SendDeploy,
    StartTimer,
    Suspended,
)
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.model.errors import Corrupt
from flintlock.model.ids import InstanceId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.slots import DeployedTasks, SlotGrant, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    RegionPhase,
    TaskFailed,
    TaskFinished,
)

E = ExecutionState
J = JobStatus
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "2"}


def running(*, retry: bool = False, cluster: dict[str, str] | None = None) -> JobHarness:
    harness = JobHarness(SMALL, cluster=RETRY if retry else cluster)
    harness.start()
    harness.run_region()
    return harness


# Failure


def test_a_failed_task_fails_a_batch_job_that_has_no_restart_strategy() -> None:
    harness = running()
    harness.fail()
    assert (harness.status, harness.state()) == (J.FAILED, E.FAILED)
    assert [status for status in harness.job.timestamps if status is J.FAILING]


def test_a_failed_region_is_restarted_with_a_new_attempt_after_the_delay() -> None:
    harness = running(retry=True)

    harness.fail()
    assert (harness.status, harness.state(), harness.wanted) == (J.RESTARTING, E.FAILED, [])
    assert harness.of(StartTimer)[-1] == StartTimer(1.0, RestartDue(harness.job.attempt_id(harness.job.regions[0])))

    harness.restart()
    assert (harness.status, harness.state(), harness.attempt()) == (J.RUNNING, E.SCHEDULED, 1)
    assert harness.wanted == ["0-1"]
    harness.run_region()
    harness.finish()
    assert harness.status is J.FINISHED
    assert [e.state for e in harness.job.regions[0].executions] == [E.FAILED, E.FINISHED]


def test_the_strategy_gives_up() -> None:
    harness = running(retry=True)
    for _ in range(2):
        harness.fail()
        harness.restart()
        harness.run_region()
    harness.fail()
    assert harness.status is J.FAILED
    assert harness.attempt() == 2


@pytest.mark.parametrize(
    "kind",
    [FailureKind.ANALYSIS, FailureKind.MISSING_ARTIFACT, FailureKind.CONFIGURATION, FailureKind.NO_RESOURCES],
)
def test_what_cannot_ever_succeed_bypasses_the_strategy(kind: FailureKind) -> None:
    harness = running(retry=True)
    harness.fail(kind)
    assert harness.status is J.FAILED


def test_what_user_code_raises_as_permanent_bypasses_the_strategy() -> None:
    harness = running(retry=True)
    harness.report(TaskFailed(failure=Failure(kind=FailureKind.USER_CODE, message="no", permanent=True)))
    assert harness.status is J.FAILED


def test_what_user_code_raises_fails_a_job_that_has_chosen_no_strategy() -> None:
    harness = running(retry=False)
    harness.fail(FailureKind.USER_CODE)
    assert harness.status is J.FAILED


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.USER_CODE,
        FailureKind.SPARK_TASK,
        FailureKind.OUT_OF_MEMORY,
        FailureKind.RUNNER_LOST,
        FailureKind.ENGINE_LOST,
        FailureKind.TASK_MANAGER_LOST,
        FailureKind.INTERNAL,
    ],
)
def test_other_failures_follow_the_strategy(kind: FailureKind) -> None:
    harness = running(retry=True)
    harness.fail(kind)
    assert harness.status is J.RESTARTING


def test_failover_is_by_region() -> None:
    """A failure downstream of a blocking exchange does not run the upstream again, nor touch its neighbours."""
    harness = JobHarness(JOIN, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.run_region(1, on="tm-2")
    harness.finish(0)

    harness.fail(region=1, on="tm-2")
    assert (harness.state(0), harness.state(1)) == (E.FINISHED, E.FAILED)
    harness.restart()
    harness.run_region(1, on="tm-2")
    harness.finish(1, on="tm-2")
    harness.run_region(2)
    harness.fail(region=2)
    harness.restart()

    assert harness.deployed == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert harness.state(2) is E.SCHEDULED


def test_a_job_runs_again_when_the_last_pending_restart_is_over() -> None:
    harness = JobHarness(PAIR, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.fail(region=0)
    first = harness.of(StartTimer)[-1]
    harness.fail(region=1)
    second = harness.of(StartTimer)[-1]

    harness.apply(first.event)
    assert harness.status is J.RESTARTING
    assert harness.wanted == ["0-1"]
    harness.apply(second.event)
    assert harness.status is J.RUNNING


def test_other_regions_go_on_while_one_waits_for_its_restart() -> None:
    harness = JobHarness(JOIN, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.fail(region=0)

    harness.finish(1)

    assert harness.status is J.RESTARTING
    assert harness.state(1) is E.FINISHED


def test_slots_granted_while_restarting_are_used_only_by_the_region_that_requested_them() -> None:
    harness = JobHarness(PAIR, cluster=RETRY)
    harness.start()
    first, second = harness.wanted
    harness.run_region(0)
    harness.fail(region=0)
    assert harness.status is J.RESTARTING
    assert harness.wanted == [second], "the failed attempt wants nothing any more"

    harness.apply(_late_grant(first))
    assert harness.deployed == [(0, 0)]
    harness.grant(second, on="tm-2")
    harness.recorded()

    assert harness.status is J.RESTARTING
    assert harness.deployed == [(0, 0), (1, 0)]


def test_failing_cancels_the_other_executions_first() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)

    harness.fail(region=0)
    assert (harness.status, harness.state(1)) == (J.FAILING, E.CANCELING)
    assert harness.cancelled == [(1, 0)]

    harness.canceled(1)
    assert (harness.status, harness.state(1)) == (J.FAILED, E.CANCELED)


def test_failing_withdraws_what_was_only_scheduled() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.fail(region=0)
    assert (harness.status, harness.state(1), harness.wanted) == (J.FAILED, E.CANCELED, [])


def test_every_failure_stands_in_the_exception_history() -> None:
    harness = running(retry=True)
    harness.fail()
    harness.restart()
    harness.run_region(on="tm-2")
    harness.fail(FailureKind.ANALYSIS, on="tm-2")

    first, second = snapshot_of(harness.job).exceptions
    assert (first.attempt, first.task_manager, first.endpoint) == (0, "tm-1", "tm-1:1")
    assert (second.attempt, second.task_manager) == (1, "tm-2")
    assert first.task_name == "orders, top"
    assert first.timestamp_ms < second.timestamp_ms


def test_the_exception_history_is_bounded() -> None:
    many = RETRY | {"restart-strategy.fixed-delay.attempts": "19", "web.exception-history-size": "8"}
    harness = JobHarness(SMALL, cluster=many)
    harness.start()
    for _ in range(12):
        harness.run_region()
        harness.fail()
        harness.restart()

    snapshot = snapshot_of(harness.job)
    assert [entry.attempt for entry in snapshot.exceptions] == [0, 1, 6, 7, 8, 9, 10, 11]
    assert snapshot.exceptions_omitted == 4
    assert snapshot.exceptions_truncated


def test_a_task_that_its_task_manager_ended_unasked_has_failed() -> None:
    harness = running(cluster=NO_INFRASTRUCTURE_RESTARTS)
    harness.canceled()
    assert harness.status is J.FAILED
    assert "without being asked" in harness.job.exceptions[0].failure.message


# Late events


def test_a_zombies_success_is_never_accepted() -> None:
    """1. Attempt 0 is given up with its TaskManager. 2. Attempt 1 runs. 3. Attempt 0 says that it is done."""
    harness = running(retry=True)
    harness.lose("tm-1")
    harness.restart()
    harness.run_region(on="tm-2")
    before = harness.job

    harness.report(TaskFinished(), attempt=0, on="tm-1")

    assert harness.job is before
    assert harness.recorded() == []


def test_a_report_from_a_task_manager_that_was_not_given_the_attempt_is_ignored() -> None:
    harness = running()
    before = harness.job
    harness.report(TaskFinished(), on="tm-9")
    assert harness.job is before


def test_a_terminal_state_never_changes() -> None:
    harness = running()
    harness.fail()
    before = harness.job
    harness.finish()
    harness.cancel()
    harness.lose("tm-1")
    harness.apply(Suspended())
    assert harness.job is before


def test_a_restart_that_comes_due_after_a_cancel_is_discarded() -> None:
    harness = running(retry=True)
    harness.fail()
    harness.cancel()
    assert harness.status is J.CANCELED
    harness.restart()
    assert (harness.status, harness.attempt()) == (J.CANCELED, 0)


# Cancel


def test_cancel_before_the_job_was_started_cancels_it() -> None:
    harness = JobHarness(SMALL)
    harness.cancel()
    assert (harness.status, harness.state()) == (J.CANCELED, E.CANCELED)
    assert list(harness.job.timestamps) == [J.INITIALIZING, J.CANCELLING, J.CANCELED]


def test_cancel_of_a_scheduled_execution_is_immediate_and_withdraws_its_request() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.cancel()
    assert (harness.status, harness.state(), harness.wanted) == (J.CANCELED, E.CANCELED, [])


def test_cancel_while_the_deployment_is_being_recorded_sends_nothing() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.cancel()
    harness.recorded()
    assert harness.status is J.CANCELED
    assert harness.deployed == []


def test_cancel_of_a_running_task_waits_for_its_end() -> None:
    harness = running()
    harness.cancel()
    assert (harness.status, harness.state()) == (J.CANCELLING, E.CANCELING)
    assert harness.cancelled == [(0, 0)]
    assert harness.wanted == ["0-0"]  # its slots are still in use

    harness.canceled()
    assert (harness.status, harness.state(), harness.wanted) == (J.CANCELED, E.CANCELED, [])


def test_a_forced_cancel_of_a_cancelling_job_gives_up_what_does_not_end_and_says_where_it_may_run() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.cancel()
    assert (harness.status, harness.state()) == (J.CANCELLING, E.CANCELING)

    harness.cancel(force=True)

    assert (harness.status, harness.state()) == (J.CANCELED, E.CANCELED)
    assert outcome_of(harness.job).scratch, "what is staged is removed"
    (entry,) = harness.job.exceptions
    assert "given up by force: TaskManager tm-1 has not confirmed its end" in entry.failure.message
    before = harness.job
    harness.canceled()
    assert harness.job is before


def test_a_cancellation_is_repeated_until_the_end_is_confirmed() -> None:
    harness = running()
    harness.cancel()
    for _ in range(3):
        harness.wait()
    assert harness.cancelled == [(0, 0)] * 4

    harness.canceled()
    timer = [t for t in harness.of(StartTimer) if isinstance(t.event, CancelDue)][-1]
    harness.apply(timer.event)
    assert harness.cancelled == [(0, 0)] * 4


def test_a_cancellation_does_not_overtake_its_deployment() -> None:
    """1. A deployment is under way. 2. The job is cancelled. 3. The deployment arrives, then the cancellation."""
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    harness.cancel()
    assert (harness.state(), harness.cancelled) == (E.CANCELING, [])

    harness.taken()
    assert harness.cancelled == [(0, 0)]


def test_a_cancellation_does_not_wait_for_ever_for_its_deployment() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    harness.cancel()
    harness.wait()
    assert harness.cancelled == [(0, 0)]


@pytest.mark.parametrize("end", ["finish", "fail", "lose"])
def test_whatever_ends_a_canceling_task_counts_as_canceled(end: str) -> None:
    harness = running(retry=True)
    harness.cancel()
    {"finish": harness.finish, "fail": harness.fail, "lose": lambda: harness.lose("tm-1")}[end]()
    assert (harness.status, harness.state()) == (J.CANCELED, E.CANCELED)
    assert harness.job.exceptions == ()


def test_cancel_while_restarting() -> None:
    harness = JobHarness(PAIR, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.fail(region=0)
    harness.cancel()
    assert (harness.status, harness.state(0), harness.state(1)) == (J.CANCELLING, E.FAILED, E.CANCELING)
    harness.canceled(1)
    assert harness.status is J.CANCELED


def test_cancel_while_failing_ends_as_canceled() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.fail(region=0)
    harness.cancel()
    harness.canceled(1)
    assert harness.status is J.CANCELED


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
    harness = running()
    harness.report(TaskFinished())  # being recorded: it may be durable already
    assert refusal_to_cancel(harness.job) == "has done its work and can no longer be cancelled"
    harness.recorded()
    assert harness.status is J.FINISHED


def test_suspension_leaves_tasks_and_requests_alone() -> None:
    harness = running()
    effects = harness.apply(Suspended())
    assert harness.status is J.SUSPENDED
    assert not [effect for effect in effects if isinstance(effect, SendCommand)]
    assert harness.wanted == ["0-0"]
    assert harness.state() is E.RUNNING


def test_a_restart_that_failing_made_pointless_does_not_make_a_publishing_job_cancellable() -> None:
    """1. One region waits for its restart, one publishes. 2. A third fails for good. 3. Only publishing is left."""
    vertices = [*PAIR.vertices, source("c"), sink("third", "c", "/third")]
    harness = JobHarness(graph_of(*vertices), cluster=RETRY)
    harness.start()
    for region in range(3):
        harness.run_region(region)
    harness.fail(region=0)
    harness.finish(1, sinks=(staged("part-0"),))
    assert refusal_to_cancel(harness.job) is None

    harness.fail(FailureKind.ANALYSIS, region=2)

    assert harness.status is J.FAILING
    assert refusal_to_cancel(harness.job) == "is publishing its output and can no longer be cancelled"


# Loss of a TaskManager


def test_a_lost_task_manager_fails_its_tasks_only() -> None:
    harness = JobHarness(PAIR, cluster=RETRY)
    harness.start()
    harness.run_region(0, on="tm-1")
    harness.run_region(1, on="tm-2")

    harness.lose("tm-1")

    assert (harness.state(0), harness.state(1)) == (E.FAILED, E.RUNNING)
    (entry,) = harness.job.exceptions
    assert entry.failure.kind is FailureKind.TASK_MANAGER_LOST
    assert entry.failure.message == "TaskManager tm-1 is lost: silent"


def test_a_lost_task_manager_fails_one_task_and_thereby_cancels_the_other() -> None:
    """Both are gone with it. The first one fails the job, which begins to cancel the second, which has ended too."""
    harness = JobHarness(PAIR, cluster=NO_INFRASTRUCTURE_RESTARTS)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)

    harness.lose("tm-1")

    assert (harness.status, harness.state(0), harness.state(1)) == (J.FAILED, E.FAILED, E.CANCELED)
    assert len(harness.job.exceptions) == 1


def test_another_incarnation_of_a_task_manager_is_another_task_manager() -> None:
    harness = running()
    before = harness.job
    harness.apply(
        TaskManagerLost(
            job_id=JOB,
            task_manager=TaskManagerId("tm-1"),
            instance=InstanceId("an-earlier-incarnation"),
            reason="silent",
        )
    )
    assert harness.job is before


def test_a_finished_region_outlives_its_task_manager() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    harness.finish(0)
    harness.lose("tm-1")
    assert (harness.status, harness.state(0), harness.state(1)) == (J.RUNNING, E.FINISHED, E.SCHEDULED)


# Recovery


def test_a_recovered_job_does_not_run_finished_regions_again() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    harness.finish(0)

    again = harness.again()
    again.start()

    assert (again.state(0), again.state(1), again.wanted) == (E.FINISHED, E.SCHEDULED, ["1-0"])
    again.run_region(1)
    assert again.deployed == [(1, 0)]


def test_a_cancelled_task_is_over_when_nothing_listens_at_its_task_manager_any_more() -> None:
    harness = running()
    harness.cancel()
    attempt = harness.job.attempt_id(harness.job.regions[0])
    for _ in range(4):
        assert harness.status is J.CANCELLING
        harness.apply(CancelAnswered(attempt, unreachable=True))
    assert harness.status is J.CANCELED


def test_a_cancelled_task_is_not_over_while_its_task_manager_refuses_connections_but_sends_heartbeats() -> None:
    harness = running()
    harness.cancel()
    attempt = harness.job.attempt_id(harness.job.regions[0])
    beat = DeployedTasks(
        job_id=JOB, task_manager=TaskManagerId("tm-1"), instance=InstanceId("tm-1-instance"), attempts=(attempt,)
    )
    for _ in range(5):
        for _ in range(3):
            harness.apply(CancelAnswered(attempt, unreachable=True))
        harness.apply(beat)
    assert harness.status is J.CANCELLING
    assert unwanted_attempts(harness.job, beat) == (attempt,), "the heartbeat's answer carries the cancel"
    harness.canceled()
    assert harness.status is J.CANCELED


def test_an_accepted_attempt_is_published_by_the_next_job_master() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.finish(sinks=(staged("part-0"),))
    assert harness.durable[RegionId(0)].phase is RegionPhase.ACCEPTED

    again = harness.again()
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
    harness = running()
    harness.finish()
    again = harness.again()
    again.start()
    assert again.status is J.FINISHED
    assert again.of(StartTimer) == []


def test_recovered_results_come_from_the_records() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    harness.finish(0)
    again = harness.again()
    again.start()
    again.grant("1-0")
    again.recorded()
    (sent,) = again.of(SendDeploy)
    assert sent.order.inputs == {StepName("clean"): "/work/clean"}


def test_cancel_of_a_recovered_job_that_has_to_publish_is_refused_from_the_beginning() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.finish(sinks=(staged("part-0"),))
    again = harness.again()
    assert refusal_to_cancel(again.job) == "is publishing its output and can no longer be cancelled"


def test_cancel_before_the_start_of_a_recovered_job_still_publishes_what_was_accepted() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.finish(0, sinks=(staged("part-0"),))
    again = harness.again()
    assert refusal_to_cancel(again.job) is None

    again.cancel()
    assert (again.status, again.state(1)) == (J.CANCELLING, E.CANCELED)
    again.start()
    again.grant("0-0-publish")
    again.published()

    assert (again.status, again.state(0)) == (J.CANCELED, E.FINISHED)


def test_records_that_do_not_fit_the_graph_are_corrupt() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    record = harness.durable[RegionId(0)]
    with pytest.raises(Corrupt, match="no region 5"):
        JobHarness(FILES, (structs.replace(record, region=RegionId(5)),))
    with pytest.raises(Corrupt, match="without an outcome"):
        JobHarness(FILES, (structs.replace(record, phase=RegionPhase.ACCEPTED),))


def _late_grant(request: str) -> SlotGrant:
    """Slots for a request that is no longer open."""
    return SlotGrant(
        job_id=JOB,
        request=RequestId(request),
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-instance"),
        address="tm-1:1",
        slots=(0,),
    )

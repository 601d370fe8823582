"""What a new JobMaster does with attempts that an earlier one has sent."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import FILES, JOB, PAIR, SMALL, JobHarness, attempt_id, grant, staged

from flintlock.jobmaster.core import unwanted_attempts
from flintlock.jobmaster.events import (
    CancelAnswered,
    Probed,
    ProbeDue,
    ReconcileTimedOut,
    SendCommand,
    SendDeploy,
    SendProbe,
    StartTimer,
)
from flintlock.jobmaster.failover import refusal_to_cancel
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.model.ids import InstanceId, RegionId, RequestId, TaskManagerId
from flintlock.model.jobgraph import JobGraph, Resources
from flintlock.model.slots import Claim, DeployedTasks, NoResources
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind, TaskFinished, TaskMetrics, TaskProgress

E = ExecutionState
J = JobStatus


def reborn(graph: JobGraph = FILES) -> JobHarness:
    """A job whose first region was sent to tm-1 by an earlier JobMaster."""
    harness = JobHarness(graph)
    harness.start()
    harness.run_region()
    again = harness.again()
    again.start()
    return again


def test_what_was_sent_is_claimed_where_it_was_sent() -> None:
    harness = reborn()
    assert (harness.status, harness.state(), harness.attempt()) == (J.RECONCILING, E.RECONCILING, 0)
    (request,) = harness.job.declared
    assert request.claim == Claim(
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-instance"),
        attempt=attempt_id(0, 0),
        address="tm-1:1",
    )
    assert harness.of(SendProbe) == [SendProbe("tm-1:1", attempt_id(0, 0), InstanceId("tm-1-instance"))]
    assert harness.of(SendDeploy) == []


def test_what_was_sent_is_claimed_with_the_cores_and_memory_that_it_uses() -> None:
    needs = Resources(cpu=3.0, memory=1 << 30)
    graph = structs.replace(FILES, vertices=tuple(structs.replace(v, resources=needs) for v in FILES.vertices))
    (request,) = reborn(graph).job.declared
    assert (request.claim is not None, request.resources) == (True, needs)


def test_an_attempt_whose_claim_is_granted_runs_on_under_its_number() -> None:
    harness = reborn()
    harness.grant("0-0-claim")
    assert (harness.status, harness.state(), harness.attempt()) == (J.RUNNING, E.RUNNING, 0)
    assert harness.job.regions[0].current.slots == 2
    harness.finish()
    assert harness.status is J.FINISHED
    assert harness.deployed == []


def test_a_reported_attempt_is_adopted_before_its_claim_is_granted() -> None:
    harness = reborn()
    harness.report(TaskProgress(metrics=TaskMetrics(tasks_total=3)))
    assert (harness.status, harness.state()) == (J.RUNNING, E.RUNNING)
    harness.grant("0-0-claim")
    grant = harness.job.regions[0].grant
    assert grant is not None
    assert grant.slots != ()


@pytest.mark.parametrize("reported_first", [True, False])
def test_an_attempt_that_ended_before_its_job_master_was_there_is_lost_with_the_next_heartbeat(
    reported_first: bool,
) -> None:
    """Its report found no JobMaster (the job was in quarantine, say), after the ResourceManager had seen it run."""
    harness = reborn()
    if reported_first:
        harness.report(TaskProgress(metrics=TaskMetrics(tasks_total=3)))
    (request,) = harness.job.declared
    harness.apply(structs.replace(grant(request), listed_by=5))
    assert harness.state() is E.RUNNING

    beat = DeployedTasks(
        job_id=JOB, task_manager=TaskManagerId("tm-1"), instance=InstanceId("tm-1-instance"), heartbeat=5
    )
    harness.apply(beat)  # made before: it may come late
    assert harness.state() is E.RUNNING
    harness.apply(structs.replace(beat, heartbeat=6))
    assert harness.state() is E.FAILED  # and restarted, as after every loss of a TaskManager


def test_an_end_that_no_leader_received_is_applied_now() -> None:
    harness = reborn()
    harness.report(TaskFinished())
    harness.recorded()
    assert (harness.status, harness.attempt()) == (J.FINISHED, 0)


def test_a_failure_that_no_leader_received_counts_as_one() -> None:
    harness = reborn()
    harness.fail(FailureKind.SPARK_TASK)
    assert harness.status is J.FAILED


def test_a_heartbeat_that_names_the_attempt_adopts_it_before_it_is_answered() -> None:
    """The answer renews the attempt's lease, so it must not be given up after that."""
    harness = reborn()
    beat = DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-instance"),
        attempts=(attempt_id(0, 0),),
    )
    harness.apply(beat)
    assert harness.state() is E.RUNNING
    harness.wait_for(ReconcileTimedOut)
    assert (harness.state(), harness.attempt()) == (E.RUNNING, 0)


def test_recovered_job_whose_attempt_was_given_up_can_be_cancelled_before_it_starts() -> None:
    """Its next attempt is still to come: the work is not done."""
    first = JobHarness(FILES)
    first.start()
    first.run_region()
    given_up = structs.replace(first.durable[RegionId(0)], address="")
    second = JobHarness(FILES, progress=(given_up,))

    assert refusal_to_cancel(second.job) is None
    second.cancel()
    second.start()
    assert (second.status, second.deployed) == (J.CANCELED, [])


@pytest.mark.parametrize(("recorded_s", "own_s", "waits_s"), [(50, 10, 50.0), (10, 50, 50.0), (0, 20, 20.0)])
def test_an_attempt_is_given_up_only_after_the_lease_that_its_own_leader_granted(
    recorded_s: float, own_s: float, waits_s: float
) -> None:
    """A rolling restart may change heartbeat.timeout; older records do not have a lease."""
    first = JobHarness(FILES, cluster={"heartbeat.timeout": f"{recorded_s or 1} s"})
    first.start()
    first.run_region()
    (sent,) = first.of(SendDeploy)
    record = first.durable[RegionId(0)]
    assert sent.order.lease_s == record.lease_s == (recorded_s or 1)

    record = structs.replace(record, lease_s=float(recorded_s))
    second = JobHarness(FILES, progress=(record,), cluster={"heartbeat.timeout": f"{own_s} s"})
    second.start()

    (timer,) = [timer for timer in second.of(StartTimer) if isinstance(timer.event, ReconcileTimedOut)]
    assert timer.delay_s == waits_s


def test_an_attempt_that_was_given_up_is_unwanted_when_it_comes_back() -> None:
    harness = reborn()
    harness.wait_for(ReconcileTimedOut)
    beat = DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId("tm-1"),
        instance=InstanceId("tm-1-instance"),
        attempts=(attempt_id(0, 0),),
    )
    harness.apply(beat)
    assert unwanted_attempts(harness.job, beat) == (attempt_id(0, 0),)
    assert (harness.state(), harness.attempt()) == (E.SCHEDULED, 1)


def test_reports_of_another_incarnation_adopt_nothing() -> None:
    harness = reborn()
    harness.report(TaskFinished(), on="tm-2")
    assert harness.state() is E.RECONCILING


def test_a_task_manager_that_came_back_without_the_attempt_is_not_waited_for() -> None:
    """The next attempt has the next number, and its staging is recorded together with the first one's."""
    harness = reborn()
    harness.apply(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert (harness.status, harness.state(), harness.attempt(), harness.job.exceptions) == (
        J.RUNNING,
        E.SCHEDULED,
        1,
        (),
    )
    harness.run_region()
    assert harness.deployed == [(0, 1)]
    assert [path[-4:] for path in harness.durable[RegionId(0)].staging] == ["-0-*"]
    assert [e.state for e in snapshot_of(harness.job).executions] == [E.CANCELED, E.RUNNING]


def test_a_refused_claim_of_an_attempt_that_has_finished_changes_nothing() -> None:
    harness = reborn()
    harness.report(TaskFinished())
    before = harness.job
    harness.apply(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert harness.job is before


def test_a_reported_attempt_that_is_gone_when_its_task_manager_registers_again_is_lost() -> None:
    harness = reborn()
    harness.report(TaskProgress(metrics=TaskMetrics()))
    harness.apply(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason="it has come back without the task"))
    assert (harness.status, harness.state()) == (J.RESTARTING, E.FAILED)
    assert harness.job.exceptions[0].failure.kind is FailureKind.TASK_MANAGER_LOST


def test_a_reported_attempt_whose_task_manager_never_registers_again_is_given_up() -> None:
    harness = reborn()
    harness.report(TaskProgress(metrics=TaskMetrics()))
    harness.wait_for(ReconcileTimedOut)
    assert (harness.status, harness.state()) == (J.RESTARTING, E.FAILED)


@pytest.mark.parametrize("how", ["it never comes back", "it comes back without the task"])
def test_files_of_an_adopted_attempt_are_published_elsewhere_if_its_task_manager_is_gone(how: str) -> None:
    """It reported that it was done before it registered with the new leader, which therefore reports no loss."""
    harness = reborn()
    harness.finish(sinks=(staged("part-0"),))
    assert harness.publications == [(0, "tm-1:1")]
    if how == "it never comes back":
        harness.wait_for(ReconcileTimedOut)
    else:
        harness.apply(NoResources(job_id=JOB, request=RequestId("0-0-claim"), reason=how))

    assert harness.wanted == ["0-0-publish"]
    harness.grant("0-0-publish", on="tm-2")
    assert harness.publications[-1] == (0, "tm-2:1")
    harness.published(on="tm-2")
    assert (harness.status, harness.attempt()) == (J.FINISHED, 0)


def test_an_adopted_attempt_is_not_given_up() -> None:
    harness = reborn()
    harness.grant("0-0-claim")
    before = harness.job
    harness.wait_for(ReconcileTimedOut)
    assert harness.job is before


def test_a_lost_task_manager_took_the_attempt_along() -> None:
    harness = reborn()
    harness.lose("tm-1")
    assert (harness.state(), harness.attempt(), harness.job.exceptions) == (E.SCHEDULED, 1, ())


def test_an_incarnation_that_has_ended_is_not_waited_for() -> None:
    harness = reborn()
    harness.apply(Probed(attempt_id(0, 0), over=True, unreachable=False))
    assert (harness.state(), harness.attempt()) == (E.SCHEDULED, 1)


def test_an_attempt_is_over_when_nothing_listens_there_any_more() -> None:
    harness = reborn()
    for unreachable in (True, True, True, False, True, True, True):
        harness.apply(Probed(attempt_id(0, 0), over=False, unreachable=unreachable))
        assert harness.state() is E.RECONCILING
        harness.wait_for(ProbeDue)
    assert len(harness.of(SendProbe)) == 8
    harness.apply(Probed(attempt_id(0, 0), over=False, unreachable=True))
    assert (harness.state(), harness.attempt()) == (E.SCHEDULED, 1)


def test_an_attempt_is_given_up_after_a_whole_lease_in_the_new_term() -> None:
    harness = reborn()
    assert [t.delay_s for t in harness.of(StartTimer) if isinstance(t.event, ReconcileTimedOut)] == [50.0]
    harness.wait_for(ReconcileTimedOut)
    assert (harness.state(), harness.attempt()) == (E.SCHEDULED, 1)


def test_other_regions_do_not_wait_for_what_is_reconciled() -> None:
    harness = reborn(PAIR)
    assert harness.status is J.RECONCILING
    assert "1-0" in harness.wanted
    harness.run_region(1)
    harness.finish(1)
    assert (harness.status, harness.state(1)) == (J.RECONCILING, E.FINISHED)
    harness.report(TaskFinished())
    harness.recorded()
    assert harness.status is J.FINISHED


def test_a_failure_beside_what_is_reconciled_restarts_its_own_region_only() -> None:
    harness = reborn(PAIR)
    harness.run_region(1)
    harness.fail(FailureKind.ENGINE_LOST, region=1)
    assert (harness.status, harness.state(0)) == (J.RESTARTING, E.RECONCILING)
    harness.restart()
    harness.grant("0-0-claim")
    assert (harness.status, harness.state(0), harness.attempt(1)) == (J.RUNNING, E.RUNNING, 1)


def test_a_cancelled_job_ends_when_its_reconciled_attempt_has_ended() -> None:
    harness = reborn()
    harness.cancel()
    assert (harness.status, harness.state()) == (J.CANCELLING, E.CANCELING)
    assert harness.of(SendCommand)[-1].address == "tm-1:1"
    harness.canceled()
    assert (harness.status, harness.attempt()) == (J.CANCELED, 0)
    assert outcome_of(harness.job).scratch == (f"/out/.flintlock-{JOB}-0-0",)


@pytest.mark.parametrize("how", ["reported", "nothing listens", "a lease later"])
def test_cancel_before_the_start_waits_for_the_attempt_too(how: str) -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    again = harness.again()
    again.cancel()
    assert again.status is J.CANCELLING
    again.start()
    assert again.cancelled == [(0, 0)]
    match how:
        case "reported":
            again.canceled(on="tm-1-reborn")
        case "nothing listens":
            for _ in range(4):
                again.apply(CancelAnswered(attempt_id(0, 0), unreachable=True))
        case _:
            again.wait_for(ReconcileTimedOut)
    assert again.status is J.CANCELED


def test_a_record_without_an_address_is_of_an_attempt_that_never_left() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.run_region()
    harness.durable = {RegionId(0): structs.replace(harness.durable[RegionId(0)], address="")}
    again = harness.again()
    again.start()
    assert (again.status, again.state(), again.attempt()) == (J.RUNNING, E.SCHEDULED, 1)

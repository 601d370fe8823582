"""What happens to a job from outside: losses, reconciliation, missing resources, timeouts, other requirements."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import (
    BLOCKING,
    CHAIN,
    JOB,
    NO_INFRASTRUCTURE_RESTARTS,
    PAIR,
    SMALL,
    JobHarness,
    attempt_id,
    failure,
    grant,
    graph_of,
    query,
    result,
    sink,
    source,
    staged,
)

from flintlock.config.configuration import Configuration
from flintlock.jobmaster.core import step, unwanted_attempts
from flintlock.jobmaster.events import (
    Declare,
    DeploymentTaken,
    DeploymentUndelivered,
    JobStarted,
    Record,
    RequirementsChanged,
    RestartDue,
    SendDeploy,
    StartTimer,
    StepContext,
    TimedOut,
)
from flintlock.jobmaster.execution_graph import initial_state, plan_of
from flintlock.jobmaster.reporting.snapshot import requirements_of
from flintlock.jobmaster.restart import infrastructure_delay_s
from flintlock.model.files.manifests import manifest_of
from flintlock.model.ids import InstanceId, JobId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.jobs import ParallelismRange, StoredJob
from flintlock.model.slots import DeployedTasks, NoResources
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    ENGINE_DIED,
    Failure,
    FailureKind,
    RegionPhase,
    RegionRecord,
    ResultRows,
    TaskFailed,
    TaskFinished,
    TaskRunning,
)

E = ExecutionState
J = JobStatus
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"}
INFRASTRUCTURE = (FailureKind.ENGINE_LOST, FailureKind.TASK_MANAGER_LOST)


def running() -> JobHarness:
    harness = JobHarness(SMALL)
    harness.start()
    harness.run_region()
    return harness


# Outside the strategy


@pytest.mark.parametrize("kind", INFRASTRUCTURE)
def test_a_loss_of_infrastructure_is_retried_at_once_though_there_is_no_strategy(kind: FailureKind) -> None:
    harness = running()
    harness.fail(kind)

    assert harness.status is J.RESTARTING
    assert harness.of(StartTimer)[-1] == StartTimer(0.0, RestartDue(attempt_id(0, 0)))
    harness.restart()
    harness.run_region()
    harness.finish()
    assert (harness.status, harness.attempt()) == (J.FINISHED, 1)


def test_a_full_disk_gets_time_to_be_emptied_before_each_restart() -> None:
    harness = JobHarness(SMALL, cluster={"restart.infrastructure-attempts": "2"})
    harness.start()
    for attempt, delay_s in enumerate((30.0, 60.0)):
        harness.run_region()
        harness.fail(FailureKind.NO_SPACE)
        assert harness.of(StartTimer)[-1] == StartTimer(delay_s, RestartDue(attempt_id(0, attempt)))
        harness.restart()
    harness.run_region()
    harness.fail(FailureKind.NO_SPACE)
    assert harness.status is J.FAILED


def test_room_on_a_disk_is_waited_for_for_minutes_however_many_taskmanagers_were_lost_before() -> None:
    """Losses and full disks are counted together; only full disks are waited for, and no number overflows."""
    assert infrastructure_delay_s(FailureKind.NO_SPACE, 20) == infrastructure_delay_s(FailureKind.NO_SPACE, 5) == 600.0
    assert infrastructure_delay_s(FailureKind.NO_SPACE, 100_000) == 600.0
    assert infrastructure_delay_s(FailureKind.TASK_MANAGER_LOST, 100_000) == 0.0


def engine_died(harness: JobHarness, region: int = 0) -> None:
    """Let the engine of the region's TaskManager die, as a TaskManager reports it."""
    lost = Failure(kind=FailureKind.ENGINE_LOST, message="the Spark engine died", exception=ENGINE_DIED)
    harness.report(TaskFailed(failure=lost), region)


def test_one_loss_is_charged_once_though_the_next_attempt_went_to_the_instance_that_was_ending() -> None:
    harness = JobHarness(SMALL, cluster={"restart.infrastructure-attempts": "1"})
    harness.start()
    harness.run_region()
    engine_died(harness)
    harness.restart()
    harness.grant("0-1")
    harness.recorded()
    harness.lose("tm-1")

    assert (harness.status, harness.job.infrastructure_restarts) == (J.RESTARTING, 1)
    assert harness.of(StartTimer)[-1] == StartTimer(0.0, RestartDue(attempt_id(0, 1)))
    harness.restart()
    harness.run_region(on="tm-2")
    harness.lose("tm-2")
    assert harness.status is J.FAILED, "another loss is another charge"


def test_one_loss_that_ends_two_tasks_of_a_job_is_charged_once() -> None:
    harness = JobHarness(PAIR, cluster={"restart.infrastructure-attempts": "1"})
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    engine_died(harness, 0)
    engine_died(harness, 1)
    harness.lose("tm-1")

    assert (harness.status, harness.job.infrastructure_restarts) == (J.RESTARTING, 1)
    assert [entry.failure.lost_instance for entry in harness.job.exceptions] == ["tm-1-instance"]


def test_failures_that_do_not_end_the_task_manager_are_charged_one_by_one() -> None:
    """A dedicated driver that dies, or sessions that cannot be opened: the TaskManager takes further tasks."""
    harness = JobHarness(SMALL, cluster={"restart.infrastructure-attempts": "2"})
    harness.start()
    for _ in range(2):
        harness.run_region()
        harness.fail(FailureKind.ENGINE_LOST)
        harness.restart()
    harness.run_region()
    harness.fail(FailureKind.ENGINE_LOST)
    assert harness.status is J.FAILED


def test_the_help_is_bounded_and_then_the_strategy_decides() -> None:
    harness = JobHarness(SMALL, cluster={**RETRY, "restart.infrastructure-attempts": "2"})
    harness.start()
    harness.run_region()
    delays: list[float] = []
    for _ in range(3):
        harness.fail(FailureKind.ENGINE_LOST)
        delays.append(harness.of(StartTimer)[-1].delay_s)
        harness.restart()
        harness.run_region()
    harness.fail(FailureKind.ENGINE_LOST)

    assert delays == [0.0, 0.0, 1.0]
    assert (harness.status, harness.attempt()) == (J.FAILED, 3)


def test_a_loss_of_infrastructure_takes_nothing_from_the_strategy() -> None:
    harness = JobHarness(SMALL, cluster=RETRY)
    harness.start()
    harness.run_region()
    harness.fail(FailureKind.TASK_MANAGER_LOST)
    harness.restart()
    harness.run_region()
    harness.fail(FailureKind.SPARK_TASK)
    assert harness.status is J.RESTARTING
    harness.restart()
    harness.run_region()
    harness.fail(FailureKind.SPARK_TASK)
    assert harness.status is J.FAILED


def test_out_of_memory_is_the_jobs_own_fault() -> None:
    harness = running()
    harness.fail(FailureKind.OUT_OF_MEMORY)
    assert harness.status is J.FAILED


# A result that is gone


#: The first region materialises `clean`, keeps rows and writes files; the second reads `clean`.
SIDE = graph_of(
    source("orders"),
    query("clean", "orders", exchange=BLOCKING),
    sink("copy", "orders", "/copy"),
    result("top", "orders"),
    sink("out", "clean"),
)
ROWS = ResultRows(name=StepName("top"), rows=1, truncated=False, arrow=b"", json=b"{}")


def with_a_missing_input() -> JobHarness:
    harness = JobHarness(SIDE)
    harness.start()
    harness.run_region(0)
    harness.report(
        TaskFinished(materialised={StepName("clean"): "/work/clean/0"}, results=(ROWS,), sinks=(staged("a"),))
    )
    harness.recorded()
    harness.published(0)
    harness.run_region(1)
    gone = structs.replace(failure(FailureKind.MISSING_INPUT), missing=(StepName("clean"),))
    harness.report(TaskFailed(failure=gone), region=1)
    return harness


def test_a_missing_materialised_result_is_made_again_and_nothing_else_of_its_region() -> None:
    harness = with_a_missing_input()
    assert (harness.status, harness.state(0), harness.attempt(0)) == (J.RESTARTING, E.SCHEDULED, 1)
    publications = harness.publications

    harness.run_region(0)
    order = harness.of(SendDeploy)[-1].order
    assert (order.attempt.region, order.outputs) == (0, (StepName("clean"),))
    harness.restart()
    assert harness.state(1) is E.CREATED, "its input is not there yet"
    harness.report(TaskFinished(materialised={StepName("clean"): "/work/clean/1"}))
    harness.recorded()

    assert harness.state(0) is E.FINISHED
    assert harness.publications == publications, "published once, and not again"
    harness.run_region(1)
    assert harness.of(SendDeploy)[-1].order.inputs == {"clean": "/work/clean/1"}
    harness.finish(1, sinks=(staged("b"),))
    harness.published(1)
    assert harness.status is J.FINISHED
    outcome = harness.job.regions[0].outcome
    assert outcome is not None
    assert outcome.results == (ROWS,)


def test_a_region_that_makes_its_result_again_publishes_nothing_after_a_crash_either() -> None:
    harness = with_a_missing_input()
    harness.run_region(0)

    after = harness.again()
    after.start()
    after.lose("tm-1")
    after.run_region(0)
    order = after.of(SendDeploy)[-1].order
    assert (order.attempt.attempt, order.outputs) == (2, (StepName("clean"),))
    after.report(TaskFinished(materialised={StepName("clean"): "/work/clean/2"}))
    after.recorded()

    assert after.state(0) is E.FINISHED
    assert after.publications == []
    outcome = after.job.regions[0].outcome
    assert outcome is not None
    assert outcome.results == (ROWS,)


def test_a_reader_gets_the_manifest_of_what_it_reads_also_from_the_next_leader() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    manifests = {StepName("clean"): manifest_of({"part-0": 10}, 3)}
    harness.finish(0, manifests=manifests)
    harness.run_region(1)
    assert harness.of(SendDeploy)[-1].order.manifests == manifests

    after = harness.again()
    after.start()
    after.lose("tm-1")
    after.run_region(1)
    assert after.of(SendDeploy)[-1].order.manifests == manifests


def test_a_result_that_is_made_again_has_a_new_manifest() -> None:
    harness = with_a_missing_input()
    harness.run_region(0)
    harness.restart()
    manifests = {StepName("clean"): manifest_of({"part-0": 10}, 3)}
    harness.report(TaskFinished(materialised={StepName("clean"): "/work/clean/1"}, manifests=manifests))
    harness.recorded()
    harness.run_region(1)

    assert harness.of(SendDeploy)[-1].order.manifests == manifests


def test_a_failure_downstream_of_a_blocking_exchange_does_not_run_the_upstream_again() -> None:
    harness = JobHarness(CHAIN, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.finish(0)
    harness.run_region(1)
    harness.fail(region=1)
    harness.restart()

    assert (harness.attempt(0), harness.attempt(1)) == (0, 1)


def test_a_job_that_continues_another_reads_what_that_one_computed_and_computes_it_again_only_if_it_is_gone() -> None:
    earlier = manifest_of({"part-0": 10}, 1)
    reused = RegionRecord(
        job_id=JOB,
        region=RegionId(0),
        phase=RegionPhase.FINISHED,
        attempt=0,
        task_manager=TaskManagerId(""),
        instance=InstanceId(""),
        outcome=TaskFinished(
            materialised={StepName("clean"): "/work/earlier/clean/0"},
            manifests={StepName("clean"): earlier},
            results=(ROWS,),
        ),
        reused_from="earlier",
    )
    harness = JobHarness(SIDE, progress=(reused,))
    harness.start()
    assert (harness.state(0), harness.job.regions[0].current.task_manager) == (E.FINISHED, None)
    harness.run_region(1)
    (sent,) = harness.of(SendDeploy)
    assert sent.order.region.id == 1, "only the second region runs"
    assert sent.order.inputs == {"clean": "/work/earlier/clean/0"}
    assert sent.order.manifests == {"clean": earlier}
    gone = structs.replace(failure(FailureKind.MISSING_INPUT), missing=(StepName("clean"),))
    harness.report(TaskFailed(failure=gone), region=1)
    harness.run_region(0)
    again = harness.of(SendDeploy)[-1].order
    assert (again.attempt.attempt, again.outputs, again.work_dir) == (1, ("clean",), f"/work/{JOB}")


def test_a_result_that_is_lost_again_and_again_fails_the_job() -> None:
    harness = with_a_missing_input()
    for attempt in (1, 2, 3):
        harness.run_region(0)
        harness.restart()
        harness.report(TaskFinished(materialised={StepName("clean"): f"/work/clean/{attempt}"}))
        harness.recorded()
        harness.run_region(1)
        gone = structs.replace(failure(FailureKind.MISSING_INPUT), missing=(StepName("clean"),))
        harness.report(TaskFailed(failure=gone), region=1)
    assert harness.status is J.FAILED


# Exception history


def test_what_fails_while_the_job_restarts_stands_below_the_failure_that_made_it_restart() -> None:
    harness = JobHarness(PAIR, cluster=RETRY)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.lose("tm-1")

    (entry,) = harness.job.exceptions
    assert (entry.region, [other.region for other in entry.concurrent]) == (0, [1])

    harness.restart()
    for _ in range(2):
        timer = next(t for t in harness.of(StartTimer) if t.event == RestartDue(attempt_id(0, 0)))
        harness.apply(timer.event)
    assert harness.status is J.RUNNING
    harness.run_region(0)
    harness.fail(region=0)
    assert [(e.region, e.attempt) for e in harness.job.exceptions] == [(0, 0), (0, 1)]


# No resources


def test_an_unservable_request_fails_the_job_with_what_was_requested_and_what_exists() -> None:
    harness = JobHarness(SMALL, cluster=RETRY)
    harness.start()
    harness.apply(NoResources(job_id=JOB, request=RequestId("0-0"), reason="asked for 9 slots; the largest has 2"))

    assert harness.status is J.FAILED
    cause = harness.job.exceptions[0].failure
    assert (cause.kind, cause.exception) == (FailureKind.NO_RESOURCES, "NoResourceAvailable")
    assert "9 slots" in cause.message


def test_a_late_message_about_missing_resources_changes_nothing() -> None:
    harness = running()
    before = harness.job
    harness.apply(NoResources(job_id=JOB, request=RequestId("0-0"), reason="late"))
    assert harness.job is before


# Time limit


def test_a_job_that_has_used_up_its_time_fails() -> None:
    harness = JobHarness(SMALL, cluster={"job.timeout": "10 s"})
    harness.start()
    (timer,) = [t for t in harness.of(StartTimer) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == pytest.approx(10.0, abs=0.1)
    harness.run_region()
    harness.apply(timer.event)
    assert (harness.status, harness.state()) == (J.FAILING, E.CANCELING)
    harness.canceled()
    assert harness.status is J.FAILED
    assert "10 s" in harness.job.exceptions[0].failure.message
    assert harness.job.exceptions[0].region is None


def test_time_that_an_earlier_leader_saw_counts() -> None:
    harness = JobHarness(SMALL, cluster={"job.timeout": "10 s"})
    harness.now_ms += 8_000
    harness.start()
    (timer,) = [t for t in harness.of(StartTimer) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("ahead_ms", [7_200_000, -7_200_000])
def test_the_wall_clock_of_a_new_leader_changes_nothing_about_the_time_limit(ahead_ms: int) -> None:
    """Ahead, it would fail every job with a limit at once; behind, it would give them all of their time again."""
    harness = JobHarness(SMALL, cluster={"job.timeout": "10 s"})
    harness.now_ms += 8_000
    harness.wall_ahead_ms = ahead_ms
    harness.start()
    (timer,) = [t for t in harness.of(StartTimer) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == pytest.approx(2.0, abs=0.1)


def test_a_clock_of_the_cluster_that_is_behind_the_submission_gives_a_job_no_more_than_its_time() -> None:
    """It was recorded some seconds before the former leader accepted the job."""
    harness = JobHarness(SMALL, cluster={"job.timeout": "10 s"})
    harness.now_ms -= 8_000
    harness.start()
    (timer,) = [t for t in harness.of(StartTimer) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == 10.0


def test_the_time_limit_counts_from_the_reading_that_is_stored_with_the_job() -> None:
    job = StoredJob(graph=SMALL, submitted_ms=9_000_000, submitted_at_ms=1_000)
    state = initial_state(plan_of(SMALL, Configuration({"job.timeout": "10 s"}), "/work"), job, (), 9_000_000)
    _, effects = step(state, JobStarted(), StepContext(now_ms=9_000_000, cluster_ms=5_000))
    (timer,) = [t for t in effects if isinstance(t, StartTimer) and isinstance(t.event, TimedOut)]
    assert timer.delay_s == 6.0


def test_a_job_without_a_time_limit_has_no_timer() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    assert harness.of(StartTimer) == []


# Reconciliation


def heartbeat(*attempts: int, on: str = "tm-1", number: int = 1) -> DeployedTasks:
    return DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId(on),
        instance=InstanceId(f"{on}-instance"),
        heartbeat=number,
        attempts=tuple(attempt_id(0, attempt) for attempt in attempts),
    )


def deployed_after(number: int) -> JobHarness:
    """Return a job whose attempt its TaskManager took when it had made so many heartbeats."""
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    (sent,) = harness.of(SendDeploy)
    harness.apply(DeploymentTaken(sent.order.attempt, sent.instance, number))
    harness.report(TaskRunning())
    return harness


def test_an_attempt_that_a_later_heartbeat_does_not_list_is_lost() -> None:
    harness = deployed_after(3)
    harness.apply(heartbeat(number=4))
    assert harness.status is J.RESTARTING
    assert harness.job.exceptions[0].failure.kind is FailureKind.TASK_MANAGER_LOST


def test_a_heartbeat_from_before_the_deployment_proves_nothing_however_often_it_arrives() -> None:
    harness = deployed_after(3)
    for number in (3, 2, 3, 3, 1):
        harness.apply(heartbeat(number=number))
    assert harness.state() is E.RUNNING


def test_an_attempt_that_was_listed_and_then_is_not_is_lost() -> None:
    """The answer to the deployment was lost, so only the heartbeats show when the TaskManager had the attempt."""
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    (sent,) = harness.of(SendDeploy)
    harness.apply(DeploymentUndelivered(sent.order.attempt, sent.instance, "no answer"))
    harness.report(TaskRunning())
    for message in (heartbeat(number=4), heartbeat(0, number=5), heartbeat(number=4), heartbeat(0, number=6)):
        harness.apply(message)
    assert harness.state() is E.RUNNING
    harness.apply(heartbeat(number=7))
    assert harness.status is J.RESTARTING


def test_heartbeats_that_name_what_is_there_change_nothing() -> None:
    harness = running()
    before = harness.job
    harness.apply(heartbeat(0))
    assert harness.job is before


def test_heartbeats_of_another_incarnation_are_ignored() -> None:
    harness = running()
    for _ in range(3):
        harness.apply(structs.replace(heartbeat(), instance=InstanceId("another")))
    assert harness.state() is E.RUNNING


def test_an_attempt_that_waits_to_be_sent_or_recorded_is_not_missed() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    harness.grant("0-0")
    for _ in range(3):
        harness.apply(heartbeat())
    harness.recorded()
    for _ in range(3):
        harness.apply(heartbeat())  # under way
    assert harness.state() is E.DEPLOYING


def test_an_accepted_attempt_is_not_missed() -> None:
    harness = running()
    harness.report(TaskFinished())
    for _ in range(3):
        harness.apply(heartbeat())
    harness.recorded()
    assert harness.status is J.FINISHED


def test_a_cancelled_attempt_that_is_gone_has_ended() -> None:
    harness = running()
    harness.cancel()
    harness.apply(heartbeat())
    assert harness.status is J.CANCELED


def test_unwanted_is_what_is_not_the_latest_attempt_or_has_ended() -> None:
    harness = running()
    assert unwanted_attempts(harness.job, heartbeat(0)) == ()
    harness.fail(FailureKind.ENGINE_LOST)
    harness.restart()
    harness.run_region()
    assert unwanted_attempts(harness.job, heartbeat(0, 1)) == (attempt_id(0, 0),)
    other = structs.replace(attempt_id(0, 0), job_id=JobId("b" * 32))
    assert unwanted_attempts(harness.job, structs.replace(heartbeat(), attempts=(other,))) == (other,)
    harness.finish()
    assert unwanted_attempts(harness.job, heartbeat(1)) == (attempt_id(0, 1),)


# Requirements and resources


def wanted(harness: JobHarness) -> list[tuple[str, int | None, int, int | None]]:
    requests = harness.of(Declare)[-1].requirements.requests
    return [(request.id, request.slots, request.at_least, request.at_most) for request in requests]


def test_other_requirements_are_asked_for_under_another_name_while_the_region_waits() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    assert wanted(harness) == [("0-0", 1, 1, None)]

    harness.apply(RequirementsChanged({RegionId(0): ParallelismRange(lower=2, upper=4)}))
    assert wanted(harness) == [("0-0-1", None, 2, 4)]
    harness.apply(RequirementsChanged({RegionId(0): ParallelismRange(lower=3, upper=3)}))
    assert wanted(harness) == [("0-0-2", 3, 1, None)]


def test_a_grant_of_the_earlier_request_is_not_used_for_the_new_one() -> None:
    harness = JobHarness(SMALL)
    harness.start()
    (old,) = harness.job.declared
    harness.apply(RequirementsChanged({RegionId(0): ParallelismRange(lower=2, upper=2)}))
    harness.apply(grant(old))
    assert harness.state() is E.SCHEDULED
    assert harness.of(Record) == []


def test_regions_that_run_keep_their_slots_and_later_ones_use_the_new_number() -> None:
    harness = JobHarness(CHAIN)
    harness.start()
    harness.run_region(0)
    harness.apply(
        RequirementsChanged({RegionId(0): ParallelismRange(upper=1, lower=1), RegionId(1): ParallelismRange(upper=1)})
    )
    assert harness.state(0) is E.RUNNING
    harness.finish(0)
    assert wanted(harness)[-1] == ("1-0", 1, 1, None)


def test_requirements_are_listed_step_by_step() -> None:
    harness = JobHarness(SMALL)
    ids = {vertex.name: vertex.id for vertex in SMALL.vertices}
    assert requirements_of(harness.job).vertices == {
        ids[StepName("orders")]: ParallelismRange(lower=1, upper=1),
        ids[StepName("top")]: ParallelismRange(lower=1, upper=1),
    }


def test_a_task_asks_for_the_most_that_one_of_its_steps_needs() -> None:
    graph = graph_of(
        structs.replace(source("orders"), resources=Resources(cpu=0.5, memory=2 << 30)),
        structs.replace(result("top", "orders"), resources=Resources(cpu=1.0, memory=1 << 30)),
    )
    harness = JobHarness(graph)
    harness.start()
    assert harness.job.declared[0].resources == Resources(cpu=1.0, memory=2 << 30)
    harness.run_region()
    assert harness.of(SendDeploy)[-1].order.resources == Resources(cpu=1.0, memory=2 << 30)


def test_the_priority_travels_with_every_declaration() -> None:
    harness = JobHarness(SMALL, cluster={"job.priority": "7"})
    harness.start()
    assert harness.of(Declare)[-1].requirements.priority == 7


def test_without_help_a_lost_task_manager_fails_the_job() -> None:
    harness = JobHarness(SMALL, cluster=NO_INFRASTRUCTURE_RESTARTS)
    harness.start()
    harness.run_region()
    harness.lose("tm-1")
    assert harness.status is J.FAILED
    assert harness.durable[RegionId(0)].phase is RegionPhase.DEPLOYED

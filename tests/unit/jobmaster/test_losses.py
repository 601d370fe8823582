"""What happens to a job by no fault of its own, and what it is told by others: losses, reconciliation, no resources."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.story import (
    BLOCKING,
    CHAIN,
    JOB,
    PAIR,
    SMALL,
    UNHELPED,
    Story,
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

from flintlock.jobmaster.core import unwanted
from flintlock.jobmaster.events import After, Declare, Record, Required, RestartDue, SendDeploy, TimedOut
from flintlock.jobmaster.snapshot import requirements_of
from flintlock.model.ids import InstanceId, JobId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.jobs import ParallelismRange
from flintlock.model.slots import DeployedTasks, NoResources
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind, RegionPhase, ResultRows, TaskFailed, TaskFinished

E = ExecutionState
J = JobStatus
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"}
INFRASTRUCTURE = (FailureKind.ENGINE_LOST, FailureKind.TASK_MANAGER_LOST)


def running() -> Story:
    story = Story(SMALL)
    story.start()
    story.run_region()
    return story


# Outside the strategy


@pytest.mark.parametrize("kind", INFRASTRUCTURE)
def test_a_loss_of_infrastructure_is_retried_at_once_though_there_is_no_strategy(kind: FailureKind) -> None:
    story = running()
    story.fail(kind)

    assert story.status is J.RESTARTING
    assert story.of(After)[-1] == After(0.0, RestartDue(attempt_id(0, 0)))
    story.restart()
    story.run_region()
    story.finish()
    assert (story.status, story.attempt()) == (J.FINISHED, 1)


def test_the_help_is_bounded_and_then_the_strategy_decides() -> None:
    story = Story(SMALL, cluster={**RETRY, "restart.infrastructure-attempts": "2"})
    story.start()
    story.run_region()
    delays: list[float] = []
    for _ in range(3):
        story.fail(FailureKind.ENGINE_LOST)
        delays.append(story.of(After)[-1].delay_s)
        story.restart()
        story.run_region()
    story.fail(FailureKind.ENGINE_LOST)

    assert delays == [0.0, 0.0, 1.0]
    assert (story.status, story.attempt()) == (J.FAILED, 3)


def test_a_loss_of_infrastructure_takes_nothing_from_the_strategy() -> None:
    story = Story(SMALL, cluster=RETRY)
    story.start()
    story.run_region()
    story.fail(FailureKind.TASK_MANAGER_LOST)
    story.restart()
    story.run_region()
    story.fail(FailureKind.SPARK_TASK)
    assert story.status is J.RESTARTING
    story.restart()
    story.run_region()
    story.fail(FailureKind.SPARK_TASK)
    assert story.status is J.FAILED


def test_out_of_memory_is_the_jobs_own_fault() -> None:
    story = running()
    story.fail(FailureKind.OUT_OF_MEMORY)
    assert story.status is J.FAILED


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


def with_a_missing_input() -> Story:
    story = Story(SIDE)
    story.start()
    story.run_region(0)
    story.report(TaskFinished(materialised={StepName("clean"): "/work/clean/0"}, results=(ROWS,), sinks=(staged("a"),)))
    story.recorded()
    story.published(0)
    story.run_region(1)
    gone = structs.replace(failure(FailureKind.MISSING_INPUT), missing=(StepName("clean"),))
    story.report(TaskFailed(failure=gone), region=1)
    return story


def test_a_missing_materialised_result_is_made_again_and_nothing_else_of_its_region() -> None:
    story = with_a_missing_input()
    assert (story.status, story.state(0), story.attempt(0)) == (J.RESTARTING, E.SCHEDULED, 1)
    publications = story.publications

    story.run_region(0)
    order = story.of(SendDeploy)[-1].order
    assert (order.attempt.region, order.outputs) == (0, (StepName("clean"),))
    story.restart()
    assert story.state(1) is E.CREATED, "its input is not there yet"
    story.report(TaskFinished(materialised={StepName("clean"): "/work/clean/1"}))
    story.recorded()

    assert story.state(0) is E.FINISHED
    assert story.publications == publications, "published once, and not again"
    story.run_region(1)
    assert story.of(SendDeploy)[-1].order.inputs == {"clean": "/work/clean/1"}
    story.finish(1, sinks=(staged("b"),))
    story.published(1)
    assert story.status is J.FINISHED
    outcome = story.job.regions[0].outcome
    assert outcome is not None
    assert outcome.results == (ROWS,)


def test_a_region_that_makes_its_result_again_publishes_nothing_after_a_crash_either() -> None:
    story = with_a_missing_input()
    story.run_region(0)

    after = story.again()
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


def test_a_failure_downstream_of_a_blocking_exchange_does_not_run_the_upstream_again() -> None:
    story = Story(CHAIN, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.finish(0)
    story.run_region(1)
    story.fail(region=1)
    story.restart()

    assert (story.attempt(0), story.attempt(1)) == (0, 1)


def test_a_result_that_is_lost_again_and_again_fails_the_job() -> None:
    story = with_a_missing_input()
    for attempt in (1, 2, 3):
        story.run_region(0)
        story.restart()
        story.report(TaskFinished(materialised={StepName("clean"): f"/work/clean/{attempt}"}))
        story.recorded()
        story.run_region(1)
        gone = structs.replace(failure(FailureKind.MISSING_INPUT), missing=(StepName("clean"),))
        story.report(TaskFailed(failure=gone), region=1)
    assert story.status is J.FAILED


# Exception history


def test_what_fails_while_the_job_restarts_stands_below_the_failure_that_made_it_restart() -> None:
    story = Story(PAIR, cluster=RETRY)
    story.start()
    story.run_region(0)
    story.run_region(1)
    story.lose("tm-1")

    (entry,) = story.job.exceptions
    assert (entry.region, [other.region for other in entry.concurrent]) == (0, [1])

    story.restart()
    for _ in range(2):
        timer = next(t for t in story.of(After) if t.event == RestartDue(attempt_id(0, 0)))
        story.hear(timer.event)
    assert story.status is J.RUNNING
    story.run_region(0)
    story.fail(region=0)
    assert [(e.region, e.attempt) for e in story.job.exceptions] == [(0, 0), (0, 1)]


# No resources


def test_a_request_that_nobody_can_ever_serve_fails_the_job_with_what_was_asked_and_what_exists() -> None:
    story = Story(SMALL, cluster=RETRY)
    story.start()
    story.hear(NoResources(job_id=JOB, request=RequestId("0-0"), reason="asked for 9 slots; the largest has 2"))

    assert story.status is J.FAILED
    cause = story.job.exceptions[0].failure
    assert (cause.kind, cause.exception) == (FailureKind.NO_RESOURCES, "NoResourceAvailable")
    assert "9 slots" in cause.message


def test_a_late_word_of_missing_resources_changes_nothing() -> None:
    story = running()
    before = story.job
    story.hear(NoResources(job_id=JOB, request=RequestId("0-0"), reason="late"))
    assert story.job is before


# Time limit


def test_a_job_that_has_used_up_its_time_fails() -> None:
    story = Story(SMALL, cluster={"job.timeout": "10 s"})
    story.start()
    (timer,) = [t for t in story.of(After) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == pytest.approx(10.0, abs=0.1)
    story.run_region()
    story.hear(timer.event)
    assert (story.status, story.state()) == (J.FAILING, E.CANCELING)
    story.canceled()
    assert story.status is J.FAILED
    assert "10 s" in story.job.exceptions[0].failure.message
    assert story.job.exceptions[0].region is None


def test_time_that_an_earlier_leader_saw_counts() -> None:
    story = Story(SMALL, cluster={"job.timeout": "10 s"})
    story.now_ms += 8_000
    story.start()
    (timer,) = [t for t in story.of(After) if isinstance(t.event, TimedOut)]
    assert timer.delay_s == pytest.approx(2.0, abs=0.1)


def test_a_job_without_a_time_limit_has_no_timer() -> None:
    story = Story(SMALL)
    story.start()
    assert story.of(After) == []


# Reconciliation


def held(*attempts: int, on: str = "tm-1") -> DeployedTasks:
    return DeployedTasks(
        job_id=JOB,
        task_manager=TaskManagerId(on),
        instance=InstanceId(f"{on}-life"),
        attempts=tuple(attempt_id(0, attempt) for attempt in attempts),
    )


def test_an_attempt_that_its_task_manager_does_not_name_twice_is_lost() -> None:
    story = running()
    story.hear(held())
    assert story.state() is E.RUNNING, "that heartbeat may have left before the deployment arrived"
    story.hear(held())
    assert story.status is J.RESTARTING
    assert story.job.exceptions[0].failure.kind is FailureKind.TASK_MANAGER_LOST


def test_an_attempt_that_is_named_in_between_is_not_lost() -> None:
    story = running()
    for heartbeat in (held(), held(0), held(), held(0)):
        story.hear(heartbeat)
    assert story.state() is E.RUNNING


def test_heartbeats_that_name_what_is_there_change_nothing() -> None:
    story = running()
    before = story.job
    story.hear(held(0))
    assert story.job is before


def test_another_life_of_the_task_manager_is_not_asked() -> None:
    story = running()
    for _ in range(3):
        story.hear(structs.replace(held(), instance=InstanceId("another")))
    assert story.state() is E.RUNNING


def test_an_attempt_that_waits_to_be_sent_or_recorded_is_not_missed() -> None:
    story = Story(SMALL)
    story.start()
    story.grant("0-0")
    for _ in range(3):
        story.hear(held())
    story.recorded()
    for _ in range(3):
        story.hear(held())  # under way
    assert story.state() is E.DEPLOYING


def test_an_accepted_attempt_is_not_missed() -> None:
    story = running()
    story.report(TaskFinished())
    for _ in range(3):
        story.hear(held())
    story.recorded()
    assert story.status is J.FINISHED


def test_a_cancelled_attempt_that_is_gone_has_ended() -> None:
    story = running()
    story.cancel()
    story.hear(held())
    story.hear(held())
    assert story.status is J.CANCELED


def test_unwanted_is_what_is_not_the_latest_attempt_or_has_ended() -> None:
    story = running()
    assert unwanted(story.job, held(0)) == ()
    story.fail(FailureKind.ENGINE_LOST)
    story.restart()
    story.run_region()
    assert unwanted(story.job, held(0, 1)) == (attempt_id(0, 0),)
    other = structs.replace(attempt_id(0, 0), job_id=JobId("b" * 32))
    assert unwanted(story.job, structs.replace(held(), attempts=(other,))) == (other,)
    story.finish()
    assert unwanted(story.job, held(1)) == (attempt_id(0, 1),)


# Requirements and resources


def wanted(story: Story) -> list[tuple[str, int | None, int, int | None]]:
    requests = story.of(Declare)[-1].requirements.requests
    return [(request.id, request.slots, request.at_least, request.at_most) for request in requests]


def test_other_requirements_are_asked_for_under_another_name_while_the_region_waits() -> None:
    story = Story(SMALL)
    story.start()
    assert wanted(story) == [("0-0", 1, 1, None)]

    story.hear(Required({RegionId(0): ParallelismRange(lower=2, upper=4)}))
    assert wanted(story) == [("0-0-1", None, 2, 4)]
    story.hear(Required({RegionId(0): ParallelismRange(lower=3, upper=3)}))
    assert wanted(story) == [("0-0-2", 3, 1, None)]


def test_a_grant_of_the_earlier_wish_is_not_taken_for_the_new_one() -> None:
    story = Story(SMALL)
    story.start()
    (old,) = story.job.declared
    story.hear(Required({RegionId(0): ParallelismRange(lower=2, upper=2)}))
    story.hear(grant(old))
    assert story.state() is E.SCHEDULED
    assert story.of(Record) == []


def test_regions_that_run_keep_their_slots_and_later_ones_use_the_new_number() -> None:
    story = Story(CHAIN)
    story.start()
    story.run_region(0)
    story.hear(Required({RegionId(0): ParallelismRange(upper=1, lower=1), RegionId(1): ParallelismRange(upper=1)}))
    assert story.state(0) is E.RUNNING
    story.finish(0)
    assert wanted(story)[-1] == ("1-0", 1, 1, None)


def test_what_a_job_may_use_is_told_step_by_step() -> None:
    story = Story(SMALL)
    ids = {vertex.name: vertex.id for vertex in SMALL.vertices}
    assert requirements_of(story.job).vertices == {
        ids[StepName("orders")]: ParallelismRange(lower=1, upper=1),
        ids[StepName("top")]: ParallelismRange(lower=1, upper=1),
    }


def test_a_task_asks_for_the_most_that_one_of_its_steps_needs() -> None:
    graph = graph_of(
        structs.replace(source("orders"), resources=Resources(cpu=0.5, memory=2 << 30)),
        structs.replace(result("top", "orders"), resources=Resources(cpu=1.0, memory=1 << 30)),
    )
    story = Story(graph)
    story.start()
    assert story.job.declared[0].resources == Resources(cpu=1.0, memory=2 << 30)
    story.run_region()
    assert story.of(SendDeploy)[-1].order.resources == Resources(cpu=1.0, memory=2 << 30)


def test_the_priority_travels_with_every_declaration() -> None:
    story = Story(SMALL, cluster={"job.priority": "7"})
    story.start()
    assert story.of(Declare)[-1].requirements.priority == 7


def test_without_help_a_lost_task_manager_fails_the_job() -> None:
    story = Story(SMALL, cluster=UNHELPED)
    story.start()
    story.run_region()
    story.lose("tm-1")
    assert story.status is J.FAILED
    assert story.durable[RegionId(0)].phase is RegionPhase.DEPLOYED

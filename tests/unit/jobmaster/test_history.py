"""What has happened to a job: bounded however often it restarts, and continued by the next leader."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.jobmaster.job_harness import CHAIN, FILES, JOB, PAIR, SMALL, JobHarness, attempt_id, failure

from flintlock.jobmaster.events import DiscardStaging, FailureLabelled, Record, RecordHistory
from flintlock.jobmaster.execution_graph import FIRST_ATTEMPTS, LATEST_ATTEMPTS
from flintlock.jobmaster.reporting.history import MAX_ATTEMPTS, MAX_OUTPUT_BYTES, history_of, with_history
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.model.ids import RegionId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobHistory
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind, TaskFailed

E = ExecutionState
J = JobStatus
FOREVER = {"restart-strategy.type": "exponential-delay"}


def fixed(attempts: int) -> dict[str, str]:
    return {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": str(attempts)}


def started(cluster: dict[str, str], graph: JobGraph = SMALL) -> JobHarness:
    harness = JobHarness(graph, cluster=cluster)
    harness.start()
    return harness


def fail_and_restart(harness: JobHarness, times: int, kind: FailureKind = FailureKind.SPARK_TASK) -> None:
    for _ in range(times):
        harness.run_region()
        harness.fail(kind)
        harness.restart()


def test_three_thousand_restarts_leave_small_records_and_a_short_snapshot() -> None:
    harness = started(FOREVER, FILES)
    fail_and_restart(harness, 20)
    harness.run_region()
    early = len(msgspec.msgpack.encode(harness.of(Record)[-1].record)), len(msgspec.msgpack.encode(harness.history))
    for _ in range(3000):
        harness.forget_effects()
        harness.fail()
        harness.restart()
        harness.run_region()
    late = len(msgspec.msgpack.encode(harness.of(Record)[-1].record)), len(msgspec.msgpack.encode(harness.history))

    assert late[0] <= early[0] + 16
    assert late[1] <= early[1] * 1.2
    snapshot = snapshot_of(harness.job)
    assert [execution.attempt for execution in snapshot.executions] == [0, 1, *range(3013, 3021)]
    assert snapshot.attempts_omitted == {RegionId(0): 3011}
    assert len(snapshot.executions) == FIRST_ATTEMPTS + LATEST_ATTEMPTS
    assert len(outcome_of(harness.job).scratch) == 1


def test_staging_of_an_ended_attempt_is_discarded_as_the_next_one_begins() -> None:
    harness = started(FOREVER, FILES)
    fail_and_restart(harness, 2)

    directories = [directory for effect in harness.of(DiscardStaging) for directory in effect.directories]
    assert directories == [f"/out/.flintlock-{JOB}-0-0", f"/out/.flintlock-{JOB}-0-1"]


def test_staging_of_an_attempt_that_was_never_sent_is_not_discarded() -> None:
    harness = started(FOREVER, FILES)
    harness.grant("0-0")
    harness.lose("tm-1")

    assert harness.of(DiscardStaging) == []


def test_next_leader_shows_the_same_attempts_and_failures_with_their_labels() -> None:
    harness = started(fixed(9))
    fail_and_restart(harness, 2)
    harness.apply(FailureLabelled(attempt_id(0, 1), {"team": "etl"}))
    harness.run_region()
    before = snapshot_of(harness.job)

    following = harness.again(fixed(9))
    after = snapshot_of(following.job)

    assert after.exceptions == before.exceptions
    assert after.exceptions[1].labels == {"team": "etl"}
    assert [(e.attempt, e.state) for e in after.executions] == [(0, E.FAILED), (1, E.FAILED), (2, E.RECONCILING)]
    assert after.executions[:2] == before.executions[:2]


@pytest.mark.parametrize("kind", [FailureKind.SPARK_TASK, FailureKind.USER_CODE])
def test_next_leader_counts_restarts_on(kind: FailureKind) -> None:
    harness = started(fixed(2))
    fail_and_restart(harness, 1, kind)
    harness.run_region()
    following = harness.again(fixed(2))
    following.start()
    following.fail(kind)
    assert following.status is J.RESTARTING
    following.restart()
    following.run_region()
    following.fail(kind)

    assert following.status is J.FAILED
    assert len(following.job.exceptions) == 3


def test_next_leader_fails_a_job_whose_user_code_raised_no_retry() -> None:
    """Its end was recorded, and the leader died before the job's other region had ended."""
    harness = started(fixed(2), PAIR)
    harness.run_region(0)
    harness.run_region(1)
    harness.report(TaskFailed(failure=Failure(kind=FailureKind.USER_CODE, message="no", permanent=True)))
    assert harness.history is not None

    following = harness.again(fixed(2))
    following.start()

    assert following.status is J.FAILING
    assert [entry.failure.permanent for entry in following.job.exceptions] == [True]


def test_next_leader_counts_restarts_after_losses_on() -> None:
    harness = started({"restart.infrastructure-attempts": "1"})
    harness.run_region()
    harness.lose("tm-1")
    harness.restart()
    harness.run_region(on="tm-2")
    following = harness.again({"restart.infrastructure-attempts": "1"})
    following.start()
    following.fail(FailureKind.ENGINE_LOST, on="tm-2")

    assert following.status is J.FAILED


def test_failure_whose_report_is_sent_again_counts_once() -> None:
    """The former leader died after it had recorded the failure, before the report was acknowledged."""
    harness = started(fixed(1))
    harness.run_region()
    harness.fail()
    following = harness.again(fixed(1))
    following.start()
    following.report(TaskFailed(failure=failure()), attempt=0)

    assert (following.status, following.attempt(), len(following.job.exceptions)) == (J.RUNNING, 1, 1)
    following.run_region()
    assert following.deployed == [(0, 1)]


def test_job_with_running_attempts_that_was_about_to_fail_ends_them_and_fails(two_regions: JobHarness) -> None:
    two_regions.fail(region=0)
    assert two_regions.status is J.FAILING
    following = two_regions.again({})
    following.start()

    assert following.status is J.FAILING
    assert following.cancelled == [(1, 0)]
    following.canceled(region=1)
    assert following.status is J.FAILED
    assert [entry.region for entry in following.job.exceptions] == [0]


def test_end_of_the_output_is_with_each_attempt_also_under_the_next_leader() -> None:
    harness = started(fixed(9), CHAIN)
    harness.run_region(0)
    harness.report(TaskFailed(failure=failure(), output_tail=b"first"))
    harness.restart()
    harness.run_region(0)
    harness.finish(0, output_tail=b"second")
    harness.run_region(1)
    following = snapshot_of(harness.again(fixed(9)).job)

    for snapshot in (snapshot_of(harness.job), following):
        assert [(e.region, e.attempt, e.output_tail) for e in snapshot.executions] == [
            (0, 0, b"first"),
            (0, 1, b"second"),
            (1, 0, b""),
        ]


def test_history_holds_a_bounded_part_of_the_output_the_latest_first() -> None:
    harness = started(FOREVER)
    part = MAX_OUTPUT_BYTES // 3
    for number in range(5):
        harness.run_region()
        harness.report(TaskFailed(failure=failure(), output_tail=bytes([number]) * part))
        harness.restart()

    assert harness.history is not None
    kept = [info.attempt for info in harness.history.attempts if info.output_tail]
    assert kept == [2, 3, 4]


def test_history_is_not_recorded_for_a_job_without_failures() -> None:
    harness = started({}, CHAIN)
    harness.run_region(0)
    harness.finish(0)
    harness.run_region(1)
    harness.finish(1)

    assert harness.status is J.FINISHED
    assert harness.of(RecordHistory) == []


def test_history_of_very_many_regions_is_bounded() -> None:
    harness = started(FOREVER)
    fail_and_restart(harness, 12)
    region = harness.job.regions[0]
    many = tuple(
        msgspec.structs.replace(region, plan=msgspec.structs.replace(region.plan, id=RegionId(number)))
        for number in range(400)
    )
    wide = msgspec.structs.replace(harness.job, regions=many)

    history = history_of(wide)

    assert len(history.attempts) <= MAX_ATTEMPTS
    assert {info.region for info in history.attempts} == set(range(400))
    assert history.attempts_omitted[RegionId(7)] > harness.job.regions[0].attempts_omitted


def test_records_without_a_history_are_continued_as_before() -> None:
    harness = started(fixed(1))
    harness.run_region()
    job = harness.again(fixed(1)).job

    assert with_history(job, None) is job
    assert with_history(job, JobHistory(job_id=JOB)).regions == job.regions


@pytest.fixture
def two_regions() -> JobHarness:
    harness = started({}, PAIR)
    harness.run_region(0)
    harness.run_region(1)
    return harness


def test_a_jump_of_the_wall_clock_does_not_give_a_job_more_restarts() -> None:
    attempts = {"restart-strategy.exponential-delay.attempts-before-reset-backoff": "2"}
    harness = started(FOREVER | attempts)
    fail_and_restart(harness, 2)
    harness.wall_ahead_ms = 30 * 24 * 3_600_000
    harness.run_region()
    harness.fail()

    assert harness.job.status is J.FAILED

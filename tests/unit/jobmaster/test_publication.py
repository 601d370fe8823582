"""Acceptance and publication of one job's files: retries, their limits, and a forced end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import FILES, PAIR, JobHarness, attempt_id, staged

from flintlock.jobmaster.core import refusal_to_cancel
from flintlock.jobmaster.events import PublicationDue, SendCommand, StartTimer
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.model.commands import CancelTask
from flintlock.model.ids import RegionId
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import FailureKind, FilesPublished, RegionPhase, TaskFinished, TaskRunning

E = ExecutionState
J = JobStatus


def accepted(
    cluster: dict[str, str] | None = None, *, names: Sequence[str] = ("part-0", "part-1"), removes: tuple[str, ...] = ()
) -> JobHarness:
    harness = JobHarness(FILES, cluster=cluster)
    harness.start()
    harness.run_region()
    harness.finish(sinks=(structs.replace(staged(*names), removes=removes),))
    return harness


def test_nothing_is_published_before_the_acceptance_is_recorded() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.report(TaskFinished(sinks=(staged("part-0"),)))
    assert harness.publications == []
    assert harness.status is J.RUNNING

    harness.recorded()
    assert harness.publications == [(0, "tm-1:1")]
    assert harness.durable[RegionId(0)].phase is RegionPhase.ACCEPTED
    assert snapshot_of(harness.job).publishing == (0, 3)


def test_a_region_with_files_is_finished_when_they_are_published_and_that_is_recorded() -> None:
    harness = accepted()
    harness.report(FilesPublished(done=1, total=2))
    assert (harness.status, snapshot_of(harness.job).publishing) == (J.RUNNING, (1, 2))

    harness.report(FilesPublished(done=2, total=2, complete=True))
    assert (harness.status, harness.wanted) == (J.RUNNING, [])

    harness.recorded()
    assert harness.status is J.FINISHED
    record = harness.durable[RegionId(0)]
    assert record.outcome is not None
    assert (record.phase, record.outcome.sinks) == (RegionPhase.FINISHED, ())


def test_a_job_that_publishes_can_no_longer_be_cancelled() -> None:
    harness = accepted()
    assert refusal_to_cancel(harness.job) == "is publishing its output and can no longer be cancelled"


def test_a_job_that_publishes_in_part_is_cancelled_when_that_is_done() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.finish(0, sinks=(staged("part-0"),))
    assert refusal_to_cancel(harness.job) is None

    harness.cancel()
    harness.canceled(1)
    assert (harness.status, harness.state(0), harness.state(1)) == (J.CANCELLING, E.RUNNING, E.CANCELED)
    harness.published(0)
    assert (harness.status, harness.state(0)) == (J.CANCELED, E.FINISHED)


def test_a_failing_job_waits_for_its_publication() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.finish(0, sinks=(staged("part-0"),))
    harness.fail(region=1)
    assert (harness.status, harness.state(0)) == (J.FAILING, E.RUNNING)
    harness.published(0)
    assert (harness.status, harness.state(0)) == (J.FAILED, E.FINISHED)


def test_a_lost_publisher_is_replaced_by_any_task_manager_with_a_slot() -> None:
    harness = accepted()
    harness.lose("tm-1")
    assert (harness.status, harness.state(), harness.wanted) == (J.RUNNING, E.RUNNING, ["0-0-publish"])

    harness.grant("0-0-publish", on="tm-2")
    harness.lose("tm-2")
    harness.grant("0-0-publish", on="tm-3")
    assert harness.publications == [(0, "tm-1:1"), (0, "tm-2:1"), (0, "tm-3:1")]
    harness.published(on="tm-3")
    assert harness.status is J.FINISHED
    assert harness.deployed == [(0, 0)]


def test_a_publisher_lost_while_the_acceptance_is_recorded_is_replaced_after_it() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.report(TaskFinished(sinks=(staged("part-0"),)))
    harness.lose("tm-1")
    harness.grant("0-0-publish", on="tm-2")
    assert harness.publications == []
    harness.recorded()
    assert harness.publications == [(0, "tm-2:1")]


def test_the_report_of_a_replaced_publisher_counts_when_all_files_are_published() -> None:
    harness = accepted()
    harness.lose("tm-1")
    harness.published(on="tm-1")
    assert harness.status is J.FINISHED


def test_a_failed_publication_is_tried_again_with_growing_waits() -> None:
    harness = accepted()
    for number in range(12):
        harness.publication_failed(f"reason {number}")
        harness.publication_failed(f"reason {number}")  # the same report twice counts once
        harness.wait()
    waits = [t.delay_s for t in harness.of(StartTimer)]
    assert waits[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(waits) == 12
    assert len(harness.publications) == 13
    assert harness.status is J.RUNNING


def retry_until_given_up(harness: JobHarness, *, permanent: bool = False) -> float:
    """Let a publication fail with another text each time; return for how long it was retried."""
    for number in range(5000):
        harness.publication_failed(f"SlowDown (request {number:x})", permanent=permanent)
        if harness.state() is E.FAILED:
            break
        harness.wait()
    return sum(timer.delay_s for timer in harness.of(StartTimer) if isinstance(timer.event, PublicationDue))


def test_a_publication_without_progress_is_given_up_after_a_time_whatever_its_errors_say() -> None:
    harness = accepted()
    assert 600.0 <= retry_until_given_up(harness) <= 630.0
    assert (harness.status, harness.state()) == (J.FAILED, E.FAILED)
    (entry,) = harness.job.exceptions
    assert entry.failure.kind is FailureKind.PUBLICATION
    assert "without progress: SlowDown" in entry.failure.message


def test_a_publication_that_fails_for_a_permanent_reason_is_given_up_sooner() -> None:
    harness = accepted()
    assert 120.0 <= retry_until_given_up(harness, permanent=True) <= 150.0
    assert harness.status is J.FAILED


def test_how_long_a_publication_is_retried_can_be_set() -> None:
    harness = accepted({"execution.publication.retry-timeout": "30 s"})
    assert 30.0 <= retry_until_given_up(harness) <= 60.0


def test_a_publication_that_makes_progress_is_retried_as_long_as_it_does() -> None:
    harness = accepted(names=[f"part-{number}" for number in range(200)])
    for number in range(200):
        harness.report(FilesPublished(done=number + 1, total=202))
        harness.publication_failed("connection reset")
        harness.wait()
        harness.publication_failed("connection reset")
        harness.wait()
    assert harness.status is J.RUNNING
    assert {timer.delay_s for timer in harness.of(StartTimer)} == {0.5, 1.0}


def test_a_clock_that_is_set_forward_gives_no_publication_up() -> None:
    harness = accepted()
    harness.publication_failed("no space left on device")
    harness.now_ms += 8 * 86_400_000
    harness.wait()
    harness.publication_failed("no space left on device")
    assert harness.status is J.RUNNING


def test_a_publication_can_fail_any_number_of_times() -> None:
    """A set timeout may be long: the delay stays bounded."""
    harness = accepted({"execution.publication.retry-timeout": "30 d"})
    assert retry_until_given_up(harness) > 5000
    assert harness.status is J.RUNNING
    assert max(timer.delay_s for timer in harness.of(StartTimer)) == 30.0


@pytest.mark.parametrize(
    ("done", "found"),
    [
        (0, "No file was moved or removed"),
        (1, "/out has 0 of the 2 files of this run, 3 of the 3 that it replaces and no success marker"),
        (2, "/out has 1 of the 2 files of this run, 3 of the 3 that it replaces and no success marker"),
        (5, "/out has 2 of the 2 files of this run, 1 of the 3 that it replaces and no success marker"),
    ],
)
def test_a_failed_overwrite_says_which_files_of_which_run_are_there(done: int, found: str) -> None:
    harness = accepted({"execution.publication.retry-timeout": "1 s"}, removes=("/out/a", "/out/b", "/out/c"))
    harness.report(FilesPublished(done=done, total=7))
    retry_until_given_up(harness)
    (entry,) = harness.job.exceptions
    assert entry.failure.message.endswith(f". {found}")


def test_a_failed_append_says_which_files_of_each_target_are_there() -> None:
    harness = JobHarness(PAIR, cluster={"execution.publication.retry-timeout": "1 s"})
    harness.start()
    harness.run_region()
    harness.finish(sinks=(staged("x", "y", target="/left"), staged("z", target="/right")))
    harness.report(FilesPublished(done=3, total=7))
    retry_until_given_up(harness)
    (entry,) = harness.job.exceptions
    assert entry.failure.message.endswith(
        ". /left has 1 of the 2 files of this run and no success marker; "
        "/right has 0 of the 1 files of this run and no success marker"
    )


def test_a_cancelled_job_whose_publication_cannot_succeed_is_failed() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.finish(0, sinks=(staged("part-0"),))
    harness.cancel()
    harness.canceled(1)
    retry_until_given_up(harness)
    assert harness.status is J.FAILED


# A publication that is ended by force


def test_a_forced_cancel_ends_a_publication_and_reports_what_it_leaves_behind() -> None:
    harness = accepted()
    harness.report(FilesPublished(done=2, total=4))
    assert refusal_to_cancel(harness.job) is not None
    assert refusal_to_cancel(harness.job, force=True) is None

    effects = harness.cancel(force=True)

    assert (harness.status, harness.state()) == (J.CANCELED, E.CANCELED)
    (entry,) = harness.job.exceptions
    assert entry.failure.kind is FailureKind.PUBLICATION
    assert entry.failure.message == (
        "the publication was ended by force. "
        "/out has 1 of the 2 files of this run and no success marker, or is further than that"
    )
    stop = CancelTask(attempt=attempt_id(0, 0))
    assert [effect.order for effect in effects if isinstance(effect, SendCommand)] == [stop]
    assert outcome_of(harness.job).scratch, "what is staged is removed"
    before = harness.job
    harness.published()
    assert harness.job is before


def test_a_forced_cancel_ends_a_publication_that_a_cancel_was_waiting_for() -> None:
    harness = JobHarness(PAIR)
    harness.start()
    harness.run_region(0)
    harness.run_region(1)
    harness.finish(0, sinks=(staged("part-0"),))
    harness.cancel()
    harness.canceled(1)
    assert harness.status is J.CANCELLING

    harness.cancel(force=True)

    assert harness.status is J.CANCELED


def test_a_forced_cancel_ends_a_publication_that_no_task_manager_does() -> None:
    harness = accepted()
    harness.lose("tm-1")
    harness.cancel(force=True)
    assert (harness.status, harness.wanted) == (J.CANCELED, [])


def test_a_forced_cancel_cancels_what_does_not_publish_as_any_cancel_does() -> None:
    harness = JobHarness(FILES)
    harness.start()
    harness.run_region()
    harness.cancel(force=True)
    assert (harness.status, harness.state()) == (J.CANCELLING, E.CANCELING)


def test_an_accepted_attempt_ignores_all_other_reports() -> None:
    harness = accepted()
    before = harness.job
    harness.fail()
    harness.canceled()
    harness.report(TaskRunning())
    harness.report(TaskFinished(sinks=(staged("another"),)))
    assert harness.job is before

"""Jobs that leaders were lost on are known to the leaders after them."""

from __future__ import annotations

from pathlib import Path

from flintlock.model.ids import JobId
from flintlock.monitoring.blocking_jobs import BlockingJobs

A, B, C = (JobId(letter * 32) for letter in "abc")


def test_only_work_that_never_ended_counts(tmp_path: Path) -> None:
    """Work that ends, however late, costs no leader."""
    blocking = BlockingJobs(tmp_path / "blocking-jobs")
    assert blocking.lost_leaders((A, B)) == {}
    blocking.begin(A)
    blocking.end(blocking.begin(A))
    blocking.begin(A)
    blocking.begin(B)

    assert BlockingJobs(tmp_path / "blocking-jobs").lost_leaders((A, B)) == {A: 2, B: 1}


def test_a_process_is_blocked_while_its_work_on_a_job_has_not_ended(tmp_path: Path) -> None:
    own, reader = BlockingJobs(tmp_path / "blocking-jobs", "41-first"), BlockingJobs(tmp_path / "blocking-jobs")
    assert not reader.is_blocked("41-first")
    record = own.begin(A)
    assert reader.is_blocked("41-first")
    assert not reader.is_blocked("41-second"), "a later process that has its pid"
    own.end(record)
    assert not reader.is_blocked("41-first")


def test_what_is_recorded_of_other_jobs_is_removed(tmp_path: Path) -> None:
    """Jobs that have ended are forgotten; files that are no records are left alone."""
    blocking = BlockingJobs(tmp_path)
    record = blocking.begin(C)
    other = tmp_path / "README"
    other.touch()
    blocking.begin(A)

    assert blocking.lost_leaders((A, B)) == {A: 1}
    assert not record.exists()
    assert other.exists()
    blocking.end(record)  # its work ends all the same

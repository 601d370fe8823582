"""Jobs that leaders were lost on are known to the leaders after them."""

from __future__ import annotations

from pathlib import Path

from flintlock.model.ids import JobId
from flintlock.monitoring.blocking_jobs import BlockingJobs

A, B, C = (JobId(letter * 32) for letter in "abc")


def record(blocking: BlockingJobs, job_id: JobId) -> str:
    """Record work on a job; return the record."""
    made = blocking.name(job_id)
    blocking.write(made)
    return made


def test_only_work_that_never_ended_counts(tmp_path: Path) -> None:
    """Work that ends, however late, costs no leader."""
    blocking = BlockingJobs(tmp_path / "blocking-jobs")
    assert blocking.lost_leaders((A, B)) == {}
    record(blocking, A)
    blocking.remove(record(blocking, A))
    record(blocking, A)
    record(blocking, B)

    assert BlockingJobs(tmp_path / "blocking-jobs").lost_leaders((A, B)) == {A: 2, B: 1}


def test_record_that_is_written_again_counts_once(tmp_path: Path) -> None:
    blocking = BlockingJobs(tmp_path)
    blocking.write(record(blocking, A))
    assert blocking.lost_leaders((A,)) == {A: 1}


def test_a_process_is_blocked_while_its_work_on_a_job_has_not_ended(tmp_path: Path) -> None:
    own, reader = BlockingJobs(tmp_path / "blocking-jobs", "41-first"), BlockingJobs(tmp_path / "blocking-jobs")
    assert not reader.is_blocked("41-first")
    written = record(own, A)
    assert reader.is_blocked("41-first")
    assert not reader.is_blocked("41-second"), "a later process that has its pid"
    own.remove(written)
    assert not reader.is_blocked("41-first")


def test_what_is_recorded_of_other_jobs_is_removed(tmp_path: Path) -> None:
    """Jobs that have ended are forgotten; files that are no records are left alone."""
    blocking = BlockingJobs(tmp_path)
    written = record(blocking, C)
    other = tmp_path / "README"
    other.touch()
    record(blocking, A)

    assert blocking.lost_leaders((A, B)) == {A: 1}
    assert not (tmp_path / written).exists()
    assert other.exists()
    blocking.remove(written)  # its work ends all the same

"""The failure of a job that has not ended within `job.timeout`, whether it has a JobMaster by then or not."""

from __future__ import annotations

from flintlock.model.errors import JobFailed
from flintlock.model.tasks import Failure, FailureKind


def timeout_failure(timeout_s: float) -> Failure:
    """Return the failure of a job that has reached its timeout."""
    message = f"the job has not ended within {timeout_s:g} s of its submission (job.timeout)"
    return Failure(kind=FailureKind.TIMEOUT, message=message, exception="JobTimeout")


def timed_out(timeout_s: float) -> JobFailed:
    """Return the error of a job that reaches its timeout before it has a JobMaster."""
    failure = timeout_failure(timeout_s)
    error = JobFailed(failure.message)
    error.failure = failure
    return error

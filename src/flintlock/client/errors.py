"""Errors that only a client raises. The others are in `flintlock.model.errors`."""

from __future__ import annotations

from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId


class JobCanceled(FlintlockError):
    """The job that was waited for has been cancelled."""

    def __init__(self, public: str, job_id: JobId) -> None:
        super().__init__(public)
        self.job_id = job_id

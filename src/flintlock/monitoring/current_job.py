"""Which job the event loop works on at the moment: written by the loop, read by a thread that watches it.

Everything that a JobManager does for one job happens in short pieces of work on its loop. If one of them does not end,
the loop stands still, and a standby takes the leader for dead; only this says which job it was.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

from flintlock.model.ids import JobId

BLOCKING_WORK_S: Final = 3.0
"""The CPU time of one piece of work after which its job counts as blocking: usually it takes milliseconds."""


class CurrentJob:
    """The job that the event loop works on now."""

    __slots__ = ("job_id", "serial")

    def __init__(self) -> None:
        self.job_id: JobId | None = None  # None while it is none
        self.serial = 0  # of the latest piece of work: two of one job differ

    def working_on(self, job_id: JobId) -> JobWork:
        """Return the scope of one piece of work for this job. Scopes may be nested; the innermost counts."""
        return JobWork(self, job_id)


class JobWork:
    """The scope of one piece of work. It must not contain an `await`."""

    __slots__ = ("_current", "_job_id", "_outer")

    def __init__(self, current: CurrentJob, job_id: JobId) -> None:
        self._current: Final = current
        self._job_id: Final = job_id
        self._outer: JobId | None = None

    def __enter__(self) -> None:
        current = self._current
        self._outer, current.job_id = current.job_id, self._job_id
        current.serial += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._current.job_id = self._outer
        self._current.serial += 1

"""The listing of all jobs, computed incrementally: one line for each job, the newest start first, then by id.

A job that changes is only marked; its line is computed again at the next query of the listing, once for any number of
changes. As long as no line differs, the same `JobsOverview` object is returned, so that REST can cache its encoding.
One id has one line: a running job's replaces an archived one's.

Pure. Rejected: sorting at each query. With thousands of ended jobs behind a few running ones, the order hardly changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from flintlock.model.ids import JobId
from flintlock.model.jobs import JobsOverview, JobSummary


class JobListing:
    """One line for each job, in order."""

    def __init__(self) -> None:
        self._lines: dict[JobId, JobSummary] = {}  # ended and running; emptied by `remove`
        self._order: list[tuple[int, JobId]] = []  # (-start, id) of every line, sorted
        self._changed: set[JobId] = set()  # written by `touch`, emptied by `overview`
        self._overview: JobsOverview | None = JobsOverview(jobs=())  # None: to be computed

    def touch(self, job_id: JobId) -> None:
        """Mark that a job's line may have changed."""
        self._changed.add(job_id)

    def get(self, job_id: JobId) -> JobSummary | None:
        """Return a job's line as it was last computed."""
        return self._lines.get(job_id)

    def put(self, line: JobSummary) -> None:
        """Set a job's line. An equal one changes nothing."""
        old = self._lines.get(line.job_id)
        if old == line:
            return
        if old is None or old.start_ms != line.start_ms:
            if old is not None:
                self._take_out(old)
            insort(self._order, (-line.start_ms, line.job_id))
        self._lines[line.job_id] = line
        self._overview = None

    def remove(self, job_id: JobId) -> None:
        """Drop a job's line, if it has one."""
        old = self._lines.pop(job_id, None)
        self._changed.discard(job_id)
        if old is not None:
            self._take_out(old)
            self._overview = None

    def ended(self) -> tuple[JobId, ...]:
        """Return the jobs that are listed as ended."""
        return tuple(line.job_id for line in self._lines.values() if line.status.globally_terminal)

    def overview(self, make: Callable[[JobId, JobSummary | None], JobSummary | None]) -> JobsOverview:
        """Return all lines; `make` is called with the old line for each job that may have changed."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for job_id in changed:
                line = make(job_id, self._lines.get(job_id))
                if line is not None:
                    self.put(line)
        if self._overview is None:
            lines = self._lines
            self._overview = JobsOverview(jobs=tuple([lines[job_id] for _, job_id in self._order]))
        return self._overview

    def _take_out(self, line: JobSummary) -> None:
        del self._order[bisect_left(self._order, (-line.start_ms, line.job_id))]

"""The body of GET /jobs/overview. Dashboards poll it, and most of its jobs have ended on a long-running cluster."""

from __future__ import annotations

from typing import Final

import msgspec

from flintlock.model.ids import JobId
from flintlock.model.jobs import JobsOverview, JobSummary
from flintlock.rest.jobs import translate

_encoder: Final = msgspec.json.Encoder()


class JobLineEncoder:
    """Encodes one listing after another; the line of an ended job is encoded once, because it never changes."""

    def __init__(self) -> None:
        self._ended: dict[JobId, tuple[JobSummary, bytes]] = {}  # the ended jobs of the latest listing

    def encode(self, listing: JobsOverview, now_ms: int) -> bytes:
        """Return the JSON of a JobsOverviewAnswer."""
        previous, self._ended = self._ended, {}
        return b'{"jobs":[' + b",".join([self._line(job, now_ms, previous) for job in listing.jobs]) + b"]}"

    def _line(self, job: JobSummary, now_ms: int, previous: dict[JobId, tuple[JobSummary, bytes]]) -> bytes:
        if job.end_ms < 0:
            return _encoder.encode(translate.overview_entry(job, now_ms))
        encoded = previous.get(job.job_id)
        if encoded is None or encoded[0] != job:
            encoded = (job, _encoder.encode(translate.overview_entry(job, now_ms)))
        self._ended[job.job_id] = encoded
        return encoded[1]

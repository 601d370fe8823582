"""/jobs/overview from ready bytes: what dashboards ask all the time costs next to nothing.

The whole answer is kept until a job changes, or until the durations in it have grown too old. When it has to be made
anew, the lines of ended jobs are not: they never change again, and on a cluster that runs for long they are most of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobsOverview, JobSummary
from flintlock.rest.jobs import translate
from flintlock.rest.server.http import JSON, RestServices

PATHS: Final = frozenset({"/jobs/overview", "/v1/jobs/overview"})
_OLDEST_MS: Final = 500
_encoder: Final = msgspec.json.Encoder()


class OverviewEncoder:
    """Encodes listings, one after the other; remembers the lines of ended jobs from one to the next."""

    def __init__(self) -> None:
        self._ended: dict[JobId, tuple[JobSummary, bytes]] = {}  # those of the latest listing

    def encode(self, listing: JobsOverview, now_ms: int) -> bytes:
        """Return the answer to GET /jobs/overview."""
        before, self._ended = self._ended, {}
        return b'{"jobs":[' + b",".join([self._line(job, now_ms, before) for job in listing.jobs]) + b"]}"

    def _line(self, job: JobSummary, now_ms: int, before: dict[JobId, tuple[JobSummary, bytes]]) -> bytes:
        if job.end_ms < 0:
            return _encoder.encode(translate.overview_entry(job, now_ms))
        known = before.get(job.job_id)
        if known is None or known[0] != job:
            known = (job, _encoder.encode(translate.overview_entry(job, now_ms)))
        self._ended[job.job_id] = known
        return known[1]


class OverviewCache:
    """Stands before the application and answers GET /jobs/overview; everything else passes."""

    def __init__(self, app: ASGIApp, services: RestServices, failed: Callable[[FlintlockError], ASGIApp]) -> None:
        self._app = app
        self._services = services
        self._failed = failed
        self._encoder = OverviewEncoder()
        self._listing: JobsOverview | None = None
        self._encoded_ms = 0
        self._start: dict[str, object] = {}
        self._body: dict[str, object] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        try:
            listing = await self._services.dispatcher.list_jobs()
        except FlintlockError as error:
            await self._failed(error)(scope, receive, send)
            return
        now_ms = self._services.clock_ms()
        if listing is not self._listing or now_ms - self._encoded_ms > _OLDEST_MS:
            self._encode(listing, now_ms)
        await send(self._start)
        await send(self._body)

    def _encode(self, listing: JobsOverview, now_ms: int) -> None:
        body = self._encoder.encode(listing, now_ms)
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
        self._start = {"type": "http.response.start", "status": 200, "headers": headers}
        self._body = {"type": "http.response.body", "body": body}
        self._listing, self._encoded_ms = listing, now_ms

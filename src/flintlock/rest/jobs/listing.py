"""Handlers of the listing: GET /jobs/overview and /jobs, whole or by pages, and the stream of its changes.

A response costs what it contains: the lines of ended jobs are encoded already, a long list is made and sent piece by
piece, and a client that follows the events costs what has changed. No step of the loop grows with the number of jobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

import msgspec

from flintlock.api.job_lines import encoded_line, id_and_status
from flintlock.api.jobs import WAITING, JobIdStatus
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.checking.limits import MAX_JOB_NAME, MAX_LABELS
from flintlock.model.errors import Fenced, Invalid, Unavailable
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobs import JobFilter, JobLine, JobPosition, JobQuery, JobsPage, JobsQuery, ListingChangesQuery
from flintlock.model.states import JobStatus
from flintlock.rest.server.http import HttpResponse, RestCall

MAX_PAGE: Final = 1000
"""The jobs of one page, and of one piece of a long list."""

MAX_CACHED: Final = 2000
"""The jobs of a list that is made in one step, and of which the response is cached."""

_EVENT_INTERVAL_S: Final = 0.25
_EVENT_SILENCE_S: Final = 10.0
_CLUSTER_INTERVAL_S: Final = 1.0
_ENDED_AT_FIRST: Final = 1000
_ALL: Final = -1  # a version before every other: the answer has the current one, and is not complete
_ID_DIGITS: Final = 32
_LISTED: Final = b"event: listed\ndata: {}\n\n"
_CLUSTER: Final = b"event: cluster\ndata: {}\n\n"
_STATES: Final = (*JobStatus, WAITING)
_encoder: Final = msgspec.json.Encoder()


async def overview(call: RestCall) -> HttpResponse:
    """All jobs, a line each, newest first; with `limit` or a filter one page, and `next` where there may be more."""

    def encoded(line: JobLine) -> bytes:
        return encoded_line(line, call.services.clock_ms())

    limit, after, selection = call.integer("limit", minimum=1), _position(call), read_filter(call)
    if limit is None and after is None and selection is None:
        return await _whole(call, encoded)
    if limit is not None and limit > MAX_PAGE:
        raise Invalid(f"query parameter 'limit': {limit} is more than {MAX_PAGE}; use 'after' for the next page")
    query = JobsQuery(limit=limit or MAX_PAGE, after=after, ended=_with_ended(call), filter=selection)
    page = await call.services.dispatcher.list_jobs(query)
    end = b"]}" if page.next is None else b'],"next":' + _encoder.encode(_text(page.next)) + b"}"
    return HttpResponse(body=b'{"jobs":[' + b",".join([encoded(line) for line in page.lines]) + end)


async def list_ids(call: RestCall) -> HttpResponse:
    """All jobs: id and status."""
    return await _whole(call, _id_and_status)


async def _whole(call: RestCall, encoded: Callable[[JobLine], bytes]) -> HttpResponse:
    """Return the whole list: in one piece if it is short, else piece by piece."""
    pieces = _pieces(call.services.dispatcher, encoded, ended=_with_ended(call))
    first = await anext(pieces)  # raises what the list fails with, before the response has begun
    counts = (await call.services.dispatcher.job_counts()).by_status
    if sum(counts.values()) > MAX_CACHED:
        return HttpResponse(pieces=_chained(first, pieces))
    return HttpResponse(body=first + b"".join([piece async for piece in pieces]))


async def _pieces(
    dispatcher: DispatcherGateway, encoded: Callable[[JobLine], bytes], *, ended: bool
) -> AsyncGenerator[bytes]:
    """Yield the JSON of the whole list. Jobs that are added meanwhile may be in it; no job is in it twice."""
    page: JobsPage = await dispatcher.list_jobs(JobsQuery(limit=MAX_PAGE, ended=ended))
    yield b'{"jobs":[' + b",".join([encoded(line) for line in page.lines])
    while page.next is not None:
        page = await dispatcher.list_jobs(JobsQuery(limit=MAX_PAGE, after=page.next, ended=ended))
        yield b"".join([b"," + encoded(line) for line in page.lines])
        await asyncio.sleep(0)  # a page is there at once: others get their turn
    yield b"]}"


async def _chained(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _id_and_status(line: JobLine) -> bytes:
    job_id, status = id_and_status(line)
    return _encoder.encode(JobIdStatus(id=job_id, status=status))


def _with_ended(call: RestCall) -> bool:
    return _flag(call, "ended", default="true")


def _flag(call: RestCall, name: str, default: str) -> bool:
    text = call.request.query_params.get(name, default)
    if text not in ("true", "false"):
        raise Invalid(f"query parameter {name!r}: {text!r} is neither 'true' nor 'false'")
    return text == "true"


def read_filter(call: RestCall) -> JobFilter | None:
    """Return the conditions that a request sets; None if there are none. Raises Invalid."""
    values = call.request.query_params
    name, prefix, since = values.get("name", ""), values.get("id", "").lower(), call.integer("since") or 0
    states = [text for item in values.getlist("state") for text in item.upper().split(",") if text]
    unknown = [text for text in states if text not in _STATES]
    if unknown:
        raise Invalid(f"query parameter 'state': {unknown[0]!r} is none of {', '.join(_STATES)}")
    if len(name) > MAX_JOB_NAME:
        raise Invalid(f"query parameter 'name': has more than {MAX_JOB_NAME} characters")
    if not all(letter in "0123456789abcdef" for letter in prefix) or len(prefix) > _ID_DIGITS:
        raise Invalid(f"query parameter 'id': {prefix!r} is not the beginning of a job id: up to 32 hex digits")
    labels: dict[str, str] = {}
    for text in (text for item in values.getlist("label") for text in item.split(",") if text):
        key, _, value = text.partition("=")
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise Invalid(f"query parameter 'label': there are more than {MAX_LABELS} labels")
    selection = JobFilter(
        name=name,
        states=frozenset(states),
        labels=labels,
        since_ms=since,
        id_prefix=prefix,
        submitted_by=values.get("submitted-by", ""),
    )
    return None if selection == JobFilter() else selection


def _text(position: JobPosition) -> str:
    return f"{position.start_ms}-{position.job_id}"


def _position(call: RestCall) -> JobPosition | None:
    text = call.request.query_params.get("after")
    if text is None:
        return None
    start, _, job_id = text.partition("-")
    if not (start.isascii() and start.isdigit() and len(start) < 19 and is_job_id(job_id)):
        raise Invalid("query parameter 'after': give what a page has as 'next'")
    return JobPosition(start_ms=int(start), job_id=JobId(job_id))


async def events(call: RestCall) -> HttpResponse:
    """Server-sent events: one for each job that changed, or for each change of the one that `job` names.

    With `cluster=true` also one named `cluster` whenever JobManagers, TaskManagers, their slots or the queue change.
    """
    job_id, with_cluster = _event_filter(call), _flag(call, "cluster", default="false")
    if job_id is not None:
        await call.services.dispatcher.job(JobQuery(job_id=job_id))
    await call.services.dispatcher.job_counts()  # fails with its own status; once the stream has begun that is too late
    return HttpResponse(
        pieces=job_events(call, job_id, with_cluster=with_cluster, until_ms=call.principal.expires_ms),
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache"},
    )


def _event_filter(call: RestCall) -> JobId | None:
    text = call.request.query_params.get("job")
    if text is not None and not is_job_id(text.lower()):
        raise Invalid(f"query parameter 'job': {text!r} is not a job id: 32 hex digits")
    return None if text is None else JobId(text.lower())


async def job_events(
    call: RestCall, only: JobId | None = None, *, with_cluster: bool = False, until_ms: int | None = None
) -> AsyncGenerator[bytes]:
    """Yield an event for each job that changed, beginning with all that have not ended and the latest that have.

    The event `listed` says that these were all of them: what a client knew before and was not among them is outdated.

    Yields a comment every few seconds if no job changes, so that a client can distinguish a quiet cluster from
    a lost connection. Ends when there has been no leader here for some time: the client's next request reaches the new
    one. Ends as well when the credential of the request expires, `until_ms`: the next request needs another one.
    """
    dispatcher, clock_ms = call.services.dispatcher, call.services.clock_ms
    clock_s = asyncio.get_running_loop().time
    sent_s = led_s = clock_s()
    version = _ALL
    cluster = _ClusterWatch(call) if with_cluster else None
    while until_ms is None or clock_ms() < until_ms:
        try:
            changes = await dispatcher.listing_changes(ListingChangesQuery(since=version))
            if changes.complete:
                lines: Iterable[JobLine] = (line for line in changes.lines if only in (None, id_and_status(line)[0]))
                pieces = [_event(line, clock_ms()) for line in lines]
                if pieces:
                    sent_s = clock_s()
                    yield b"".join(pieces)
            else:
                async for piece in _current(dispatcher, only, clock_ms):
                    sent_s = clock_s()
                    yield piece
            version, led_s = changes.version, clock_s()
            if cluster is not None and await cluster.has_changed(clock_s()):
                sent_s = clock_s()
                yield _CLUSTER
        except (Unavailable, Fenced):  # between two leaders
            if clock_s() - led_s > _EVENT_SILENCE_S:
                return
        if clock_s() - sent_s > _EVENT_SILENCE_S:
            sent_s = clock_s()
            yield b": nothing new\n\n"
        await asyncio.sleep(_EVENT_INTERVAL_S)


class _ClusterWatch:
    """Notices that there are other JobManagers, TaskManagers, free slots or waiting requests than before."""

    def __init__(self, call: RestCall) -> None:
        self._services: Final = call.services
        self._looked_s = -math.inf
        self._seen: object = None

    async def has_changed(self, now_s: float) -> bool:
        """Return whether they have, since the last call that looked; true the first time."""
        if now_s - self._looked_s < _CLUSTER_INTERVAL_S:
            return False
        self._looked_s = now_s
        resources = await self._services.resource_manager.overview()
        found = (
            self._services.job_managers(),
            tuple((one.id, one.slots, one.free_slots) for one in resources.task_managers),
            tuple((request.job_id, request.request, request.priority) for request in resources.waiting),
            resources.starting,
        )
        changed, self._seen = found != self._seen, found
        return changed


async def _current(
    dispatcher: DispatcherGateway, only: JobId | None, clock_ms: Callable[[], int]
) -> AsyncGenerator[bytes]:
    """Yield events for the jobs as they are."""
    if only is not None:
        yield _event((await dispatcher.job(JobQuery(job_id=only))).summary(), clock_ms())
        return
    page = await dispatcher.list_jobs(JobsQuery(limit=_ENDED_AT_FIRST))
    yield _listed(page, clock_ms)
    while page.next is not None:  # jobs that have not ended, and started before all of these
        page = await dispatcher.list_jobs(JobsQuery(limit=MAX_PAGE, after=page.next, ended=False))
        yield _listed(page, clock_ms)
        await asyncio.sleep(0)


def _listed(page: JobsPage, clock_ms: Callable[[], int]) -> bytes:
    end = _LISTED if page.next is None else b""
    return b"".join([_event(line, clock_ms()) for line in page.lines]) + end


def _event(line: JobLine, now_ms: int) -> bytes:
    return b"event: job\ndata: " + encoded_line(line, now_ms) + b"\n\n"

"""Handlers of the listing: GET /jobs/overview and /jobs, whole or by pages. Its changes are events (`rest.events`).

A response costs what it contains: the lines of ended jobs are encoded already, and a long list is made and sent piece
by piece. No step of the loop grows with the number of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec

from flintlock.api.job_lines import encoded_line, id_and_status
from flintlock.api.jobs import WAITING, JobIdStatus
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.checking.limits import MAX_JOB_NAME, MAX_LABELS
from flintlock.model.errors import Invalid
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobs import JobFilter, JobLine, JobOrder, JobPosition, JobsPage, JobsQuery
from flintlock.model.states import JobStatus
from flintlock.rest.server.http import HttpResponse, RestCall

MAX_PAGE: Final = 1000
"""The jobs of one page, and of one piece of a long list."""

MAX_CACHED: Final = 2000
"""The jobs of a list that is made in one step, and of which the response is cached."""

_ID_DIGITS: Final = 32
_STATES: Final = (*JobStatus, WAITING)
_encoder: Final = msgspec.json.Encoder()


async def overview(call: RestCall) -> HttpResponse:
    """All jobs, a line each, newest first; with `limit` or a filter one page, and `next` where there may be more."""

    def encoded(line: JobLine) -> bytes:
        return encoded_line(line, call.services.clock_ms())

    order = _order(call)
    limit, after, selection = call.integer("limit", minimum=1), _position(call, order), read_filter(call)
    if limit is None and after is None and selection is None and order is JobOrder.NEWEST:
        return await _whole(call, encoded)
    if limit is not None and limit > MAX_PAGE:
        raise Invalid(f"query parameter 'limit': {limit} is more than {MAX_PAGE}; use 'after' for the next page")
    query = JobsQuery(limit=limit or MAX_PAGE, after=after, ended=_with_ended(call), filter=selection, order=order)
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
    value = f"-{position.value}" if position.value else ""
    return f"{position.start_ms}-{position.job_id}{value}"


def _order(call: RestCall) -> JobOrder:
    text = call.request.query_params.get("sort", JobOrder.NEWEST)
    if text not in {*JobOrder}:
        raise Invalid(f"query parameter 'sort': {text!r} is none of {', '.join(JobOrder)}")
    return JobOrder(text)


def _position(call: RestCall, order: JobOrder) -> JobPosition | None:
    text = call.request.query_params.get("after")
    if text is None:
        return None
    start, _, rest = text.partition("-")
    job_id, _, value = rest.partition("-")
    if not (start.isascii() and start.isdigit() and len(start) < 19 and is_job_id(job_id) and _fits(value, order)):
        raise Invalid("query parameter 'after': give what a page has as 'next', with the same 'sort'")
    return JobPosition(start_ms=int(start), job_id=JobId(job_id), value=value)


def _fits(value: str, order: JobOrder) -> bool:
    """Return whether a position can be one of an order."""
    if order.column == "name":
        return True
    is_number = value.isascii() and value.isdigit() and len(value) < 20
    return is_number if order.column in ("end", "duration") else not value

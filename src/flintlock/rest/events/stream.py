"""GET /events: server-sent events about jobs, the cluster and the documents that a client follows.

One stream has all changes for a client, which never polls. A stream costs what has changed since it last looked; what
many streams look at is made once for all of them (`shared`).

    job         the line of a job, as in GET /jobs/overview: all jobs at the beginning, then each that changes
    listed      these were all jobs: what a client knew before and was not among them is outdated
    resumed     instead of all jobs: the stream continues behind the event whose id the client has named
    cluster     JobManagers, TaskManagers, slots or the queue have changed            `cluster=true`
    document    a document has changed, or output goes on                             `follow=PATH`
    refused     the credential of the request is not accepted any more; the last event

An id is the version of the listing that the events up to there have brought the client to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

import msgspec

from flintlock.api.job_lines import encoded_line, id_and_status
from flintlock.api.jobs import Errors
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import Fenced, Forbidden, Invalid, Unauthenticated, Unavailable
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobs import JobLine, JobQuery, JobsPage, JobsQuery, ListingChanges, ListingChangesQuery
from flintlock.rest.events.documents import Follower, followers
from flintlock.rest.server.http import HttpResponse, RestCall, RestServices

EVENT_INTERVAL_S: Final = 0.25
"""How often a stream looks for changes."""

_SILENCE_S: Final = 10.0
_CLUSTER_INTERVAL_S: Final = 1.0
_CREDENTIAL_INTERVAL_S: Final = 5.0
_ENDED_AT_FIRST: Final = 1000
_PAGE: Final = 1000
_ALL: Final = -1  # a version before every other: the answer has the current one, and is not complete
_LARGEST_VERSION: Final = (1 << 63) - 1
_encoder: Final = msgspec.json.Encoder()


async def events(call: RestCall) -> HttpResponse:
    """Server-sent events: jobs that change, and with `cluster` and `follow` the cluster and documents that change."""
    job_id, with_cluster = _event_filter(call), call.flag("cluster")
    followed = followers(call.request.query_params.getlist("follow"), call.document, call.shared)
    since = _last_event(call)
    if job_id is not None:
        await call.services.dispatcher.job(JobQuery(job_id=job_id))
    await call.services.dispatcher.job_counts()  # fails with its own status; once the stream has begun that is too late
    stream = event_stream(call, job_id, with_cluster=with_cluster, followed=followed, since=since)
    return HttpResponse(pieces=stream, content_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _event_filter(call: RestCall) -> JobId | None:
    text = call.request.query_params.get("job")
    if text is not None and not is_job_id(text.lower()):
        raise Invalid(f"query parameter 'job': {text!r} is not a job id: 32 hex digits")
    return None if text is None else JobId(text.lower())


def _last_event(call: RestCall) -> int:
    """Return the version that the client has. Browsers send the id that they received last, whatever it is."""
    text = call.request.headers.get("last-event-id", "")
    return min(int(text), _LARGEST_VERSION) if text.isascii() and text.isdigit() and len(text) < 20 else _ALL


async def event_stream(
    call: RestCall,
    only: JobId | None = None,
    *,
    with_cluster: bool = False,
    followed: Iterable[Follower] = (),
    since: int = _ALL,
) -> AsyncGenerator[bytes]:
    """Yield events, beginning with all jobs that have not ended and the latest that have, or behind version `since`.

    Yields a comment every few seconds if nothing changes, so that a client can distinguish a quiet cluster from a lost
    connection. Ends when there has been no leader here for some time: the client's next request reaches the new one.
    Ends as well when the credential of the request expires or is revoked.
    """
    clock_s = asyncio.get_running_loop().time
    sent_s = led_s = checked_s = clock_s()
    changes = _JobChanges(call.services, only, since)
    cluster = _ClusterChanges(call) if with_cluster else None
    documents = [*followed]
    while not call.has_expired():
        try:
            async for piece in changes.next():
                sent_s = clock_s()
                yield piece
            led_s = clock_s()
            if cluster is not None and await cluster.have_come():
                sent_s = clock_s()
                yield b"event: cluster\ndata: {}\n\n"
            for follower in documents:
                piece = await follower.look(clock_s())
                if piece:
                    sent_s = clock_s()
                    yield piece
        except (Unavailable, Fenced):  # between two leaders
            if clock_s() - led_s > _SILENCE_S:
                return
        if clock_s() - checked_s >= _CREDENTIAL_INTERVAL_S:
            checked_s = clock_s()
            refusal = await _refusal(call)
            if refusal:
                yield b"event: refused\ndata: " + _encoder.encode(Errors(errors=[refusal])) + b"\n\n"
                return
        if clock_s() - sent_s > _SILENCE_S:
            sent_s = clock_s()
            yield b": nothing new\n\n"
        await asyncio.sleep(EVENT_INTERVAL_S)


async def _refusal(call: RestCall) -> str:
    """Return why the credential of a request is not accepted any more; nothing if it is, or where that is unknown."""
    try:
        await call.authenticate_again()
    except (Unauthenticated, Forbidden) as error:
        return error.public
    except (Unavailable, Fenced):
        return ""  # it was accepted a short time ago
    return ""


class _JobChanges:
    """The events about jobs of one stream."""

    def __init__(self, services: RestServices, only: JobId | None, since: int) -> None:
        self._dispatcher: Final = services.dispatcher
        self._clock_ms: Final = services.clock_ms
        self._only: Final = only
        self._version = since
        self._resumes = since != _ALL

    async def next(self) -> AsyncGenerator[bytes]:
        """Yield what has changed since the last call; all jobs if that is not known."""
        changes = await self._dispatcher.listing_changes(ListingChangesQuery(since=self._version))
        if not changes.complete:
            async for piece in _current(self._dispatcher, self._only, changes.version, self._clock_ms):
                yield piece
        else:
            text = b"event: resumed\ndata: {}\n\n" if self._resumes else b""
            text += self._changed(changes)
            if text:
                yield text
        self._version, self._resumes = changes.version, False

    def _changed(self, changes: ListingChanges) -> bytes:
        lines = [line for line in changes.lines if self._only in (None, id_and_status(line)[0])]
        texts = [_event(line, self._clock_ms()) for line in lines[:-1]]
        texts += [_event(line, self._clock_ms(), changes.version) for line in lines[-1:]]
        return b"".join(texts)


class _ClusterChanges:
    """Notices for one stream that there are other JobManagers, TaskManagers, free slots or requests than before."""

    def __init__(self, call: RestCall) -> None:
        self._services: Final = call.services
        self._shared: Final = call.shared
        self._version = 0

    async def have_come(self) -> bool:
        """Return whether there are, since the last call; true the first time."""
        version, _ = await self._shared.get("", _CLUSTER_INTERVAL_S, self._look)
        changed, self._version = version != self._version, version
        return changed

    async def _look(self) -> object:
        resources = await self._services.resource_manager.task_managers()
        return (
            self._services.job_managers(),
            tuple((one.id, one.slots, one.free_slots) for one in resources.task_managers),
            resources.queue_version,
            resources.starting,
        )


async def _current(
    dispatcher: DispatcherGateway, only: JobId | None, version: int, clock_ms: Callable[[], int]
) -> AsyncGenerator[bytes]:
    """Yield events for the jobs as they are."""
    if only is not None:
        yield _event((await dispatcher.job(JobQuery(job_id=only))).summary(), clock_ms(), version)
        return
    page = await dispatcher.list_jobs(JobsQuery(limit=_ENDED_AT_FIRST))
    yield _listed(page, version, clock_ms)
    while page.next is not None:  # jobs that have not ended, and started before all of these
        page = await dispatcher.list_jobs(JobsQuery(limit=_PAGE, after=page.next, ended=False))
        yield _listed(page, version, clock_ms)
        await asyncio.sleep(0)


def _listed(page: JobsPage, version: int, clock_ms: Callable[[], int]) -> bytes:
    end = b"event: listed\nid: %d\ndata: {}\n\n" % version if page.next is None else b""
    return b"".join([_event(line, clock_ms()) for line in page.lines]) + end


def _event(line: JobLine, now_ms: int, version: int | None = None) -> bytes:
    named = b"" if version is None else b"id: %d\n" % version
    return b"event: job\n" + named + b"data: " + encoded_line(line, now_ms) + b"\n\n"

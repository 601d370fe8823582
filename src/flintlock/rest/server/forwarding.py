"""Every JobManager answers: a standby forwards requests to the leader.

    leads                        answers itself
    leads, but is cut off        503 with Retry-After: it does not know whether it still leads
    standby, leader known        forwards; what the route's row allows comes from a cache, marked with its age
    there is no leader           503 with Retry-After

Responses name the epoch of the leader that made them. What concerns the process and not the cluster (its health, its
metrics, its logs) is answered by the process that receives the request: the route's row says so. A request is
forwarded once: it carries a header, and a JobManager that receives it with the header answers only if it leads. A
JobManager does not forward to itself.

When the leader changes, requests that still wait for the previous one are given up: it may be frozen and never respond.
They end with 503, or, where the response has begun, with an aborted connection; a stream of events just ends. There is
one exception: a submission without a key that the leader may have accepted already gets 502, because a client that
repeats it could create two jobs.

Rejected: redirects, as the leader may not be reachable from where the client is, and few clients follow them with a
body; forwarding by RPC, which would need every call of every gateway a second time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import Epoch
from flintlock.model.quantities import duration_s
from flintlock.rest.server.http import ROUTE, send_error
from flintlock.rest.server.response_cache import CachedResponse, ResponseCache
from flintlock.rest.server.route import Route, ServedBy
from flintlock.rest.server.upstream import (
    FORWARDED,
    RESPONSE_TIMEOUT_S,
    ClientDisconnected,
    RequestBody,
    Upstream,
    UpstreamFailed,
    UpstreamResponse,
)

log = structlog.get_logger()

EPOCH: Final = b"flintlock-leader-epoch"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_CACHED_BYTES: Final = 4 << 20
_TOO_LARGE_FOR_S: Final = 10.0  # how long a response that was too large is forwarded without looking


class ResponseTooLarge(Unavailable):
    """A response that is not cached, but forwarded to each client piece by piece."""


class Forwarding:
    """Wraps the application of one JobManager. `run` has to run for as long as it serves.

    `leading` returns the epoch in which this JobManager leads, None if it does not; it raises Unavailable, with the
    reason, for a leader that must not answer now.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        leading: Callable[[], Epoch | None],
        leaders: KnownLeader,
        upstream: Upstream,
        clock_s: Callable[[], float],
        own_url: str,
    ) -> None:
        self._app: Final = app
        self._leading: Final = leading
        self._leaders: Final = leaders
        self._upstream: Final = upstream
        self._cache: Final = ResponseCache(clock_s)
        self._clock_s: Final = clock_s
        self._own_url: Final = own_url
        self._too_large: Final[dict[str, float]] = {}  # until when a path's response is not cached; one for each row
        self._pending: Final[dict[asyncio.Timeout, LeaderInfo]] = {}  # requests, by the leader that they wait for

    async def run(self) -> None:
        """Give up requests to a leader that no longer leads, until cancelled."""
        leader = self._leaders.latest
        while True:
            leader = await self._leaders.changed(leader)
            now_s = asyncio.get_running_loop().time()
            for timeout, requested in self._pending.items():
                if requested != leader and not timeout.expired():
                    timeout.reschedule(now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route: Route | None = scope[ROUTE] if scope["type"] == "http" else None
        if scope["type"] != "http" or (route is not None and route.served_by is ServedBy.ANY):
            await self._app(scope, receive, send)
            return
        try:
            epoch = self._leading()
        except Unavailable as paused:
            await send_error(send, 503, paused.public)
            return
        if epoch is not None:
            await self._app(scope, receive, _with_epoch(send, epoch))
            return
        leader = self._leaders.serving
        if leader is None or leader.rest == self._own_url:
            await send_error(send, 503, "no JobManager leads at present; try again")
        elif any(name == FORWARDED for name, _ in scope["headers"]):
            await send_error(send, 503, "the request was forwarded to this JobManager, which does not lead; try again")
        elif route is None or not self._may_cache(route, scope) or not await self._send_cached(route, leader, send):
            await self._forward(route, leader, scope, receive, send)

    def _may_cache(self, route: Route, scope: Scope) -> bool:
        """Return whether the response may come from the cache: the row allows it, and the request is for all of it."""
        if not route.cache_s or scope["method"] != "GET" or scope["query_string"] or _refuses_cached(scope):
            return False
        return self._too_large.get(route.path, -math.inf) < self._clock_s()

    async def _send_cached(self, route: Route, leader: LeaderInfo, send: Send) -> bool:
        """Send a cached response. False: the response is too large to be cached, and nothing was sent."""
        try:
            response = await self._cache.get(route.path, leader, route.cache_s, lambda: self._fetch(route, leader))
        except ResponseTooLarge:
            self._too_large[route.path] = self._clock_s() + _TOO_LARGE_FOR_S
            return False
        except FlintlockError as error:
            await send_error(send, 503, error.public)
            return True
        headers = [*response.headers, (b"age", b"%d" % int(self._cache.age_s(response)))]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        return True

    async def _fetch(self, route: Route, leader: LeaderInfo) -> CachedResponse:
        requested_s = self._clock_s()
        try:
            async with (
                self._waiting_for(leader, RESPONSE_TIMEOUT_S),
                self._upstream.get(leader, route.path.encode()) as response,
            ):
                if _content_length(response) > _MAX_CACHED_BYTES:
                    raise ResponseTooLarge(f"the response to {route.path} is too large to be cached")
                body = b"".join([piece async for piece in response.pieces])
        except TimeoutError:
            raise Unavailable(f"the leader at {leader.rest} does not respond; try again") from None
        return CachedResponse(status=response.status, headers=response.headers, body=body, requested_s=requested_s)

    async def _forward(
        self, route: Route | None, leader: LeaderInfo, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward one request, and return its response."""
        client = _ClientResponse(send, endless=route is not None and route.streams)
        body = RequestBody(scope, receive)
        failure: UpstreamFailed | None = None
        try:
            async with self._waiting_for(leader, None) as timeout, asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_cancel_on_disconnect(body, client, timeout), name="client-disconnect")
                try:
                    async with self._upstream.forward(leader, scope, body, _timeout_s(route, scope)) as response:
                        await client.send(response)
                except UpstreamFailed as error:
                    failure = error
                except ClientDisconnected:
                    return
                finally:
                    watching.cancel()
        except TimeoutError:
            failure = UpstreamFailed(f"the leader at {leader.rest} no longer leads; try again")
            failure.sent = True
        finally:
            if scope["method"] not in _SAFE:
                self._cache.invalidate()
        if failure is not None:
            await client.fail(failure, repeatable=not _is_without_key(route, scope))

    @asynccontextmanager
    async def _waiting_for(self, leader: LeaderInfo, limit_s: float | None) -> AsyncGenerator[asyncio.Timeout]:
        """Wait for this leader. Raises TimeoutError after `limit_s`, or when it no longer leads."""
        async with asyncio.timeout(limit_s) as timeout:
            self._pending[timeout] = leader
            try:
                yield timeout
            finally:
                del self._pending[timeout]


class _ClientResponse:
    """The response to one client."""

    def __init__(self, send: Send, *, endless: bool) -> None:
        self._send: Final = send
        self._endless: Final = endless  # a stream that has no end of its own
        self.complete = False  # all of the response is on its way: a client that disconnects now has received it
        self._begun = False  # the client has the status
        self._succeeded = False

    async def send(self, response: UpstreamResponse) -> None:
        """Send the leader's response piece by piece."""
        self._begun = True
        self._succeeded = response.status == 200
        await self._send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        async for piece in response.pieces:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self.complete = True
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: UpstreamFailed, *, repeatable: bool) -> None:
        """Report that there is no response, or end the one that has begun."""
        if not self._begun:
            status = 502 if failure.sent and not repeatable else 503
            doubt = "; it is not known whether the job was accepted: list the jobs before you submit it again"
            await send_error(self._send, status, failure.public + (doubt if status == 502 else ""))
        elif self._endless and self._succeeded:
            await self._send({"type": "http.response.body", "body": b""})
        else:
            # A response without its end makes the server close the connection: the client must not take the part
            # that it has received for the whole.
            log.warning(log_events.RESPONSE_ABORTED, reason=failure.public)


async def _cancel_on_disconnect(body: RequestBody, client: _ClientResponse, waiting: asyncio.Timeout) -> None:
    await body.client_disconnected()
    if not client.complete and not waiting.expired():
        waiting.reschedule(asyncio.get_running_loop().time())


def _with_epoch(send: Send, epoch: Epoch) -> Send:
    async def with_epoch(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (EPOCH, b"%d" % epoch)]}
        await send(message)

    return with_epoch


def _content_length(response: UpstreamResponse) -> float:
    """Return how long the body is; a list that the leader sends piece by piece has no length in advance."""
    length = next((value for name, value in response.headers if name == b"content-length"), b"")
    return int(length) if length.isdigit() else math.inf


def _refuses_cached(scope: Scope) -> bool:
    return any(name == b"cache-control" and b"no-cache" in value for name, value in scope["headers"])


def _is_without_key(route: Route | None, scope: Scope) -> bool:
    """Return whether the request should have an idempotency key, and has none."""
    if route is None or not route.idempotency_key or route.method != scope["method"]:
        return False
    return not any(name == b"idempotency-key" for name, _ in scope["headers"])


def _timeout_s(route: Route | None, scope: Scope) -> float | None:
    """Return how long to wait for each part of the response: longer where the client asks for a delayed one."""
    if route is not None and route.streams:
        return None
    wait = QueryParams(scope["query_string"]).get("wait")
    if route is None or not wait:
        return RESPONSE_TIMEOUT_S
    try:
        return RESPONSE_TIMEOUT_S + min(duration_s(wait), route.max_wait_s)
    except ValueError:
        return RESPONSE_TIMEOUT_S  # the leader reports what is wrong with it

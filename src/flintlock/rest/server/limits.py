"""Bounds of what clients can make a JobManager do at once: no client, however many requests it sends, stops the others.

    requests in progress                          503    `rest.max-concurrent-requests`
    requests whose response is delayed            503    `rest.max-waiting-requests`: long polls, streams of events
    large bodies that arrive                      503    `rest.max-concurrent-uploads`, `rest.max-upload-bytes`
    requests a second of one token                429    `security.rate-limit`
    a body that arrives too slowly                408

Each refusal says when to try again (`Retry-After`). Credentials made with the cluster's secret have no rate: their
user can end the cluster anyway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    CONCURRENT_REQUESTS,
    CONCURRENT_UPLOADS,
    RATE_LIMIT,
    UPLOAD_BYTES,
    UPLOAD_LIMIT,
    WAITING_REQUESTS,
)
from flintlock.model.access.principals import Principal
from flintlock.rest.server.connections import BODY_ARRIVED
from flintlock.rest.server.http import PRINCIPAL, ROUTE, send_error
from flintlock.rest.server.route import Route

_LARGE_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 30.0  # for a body, before its rate counts, and for each piece of it
_SLOWEST_BYTES_PER_S: Final = 1024
_MOST_BUCKETS: Final = 4096


class RequestLimits(Struct, frozen=True, kw_only=True):
    """How much at once."""

    concurrent: int
    waiting: int
    uploads: int
    upload_bytes: int  # of all of them together
    largest_upload: int  # what one of unknown size counts as
    rate: float  # requests a second of one token; 0: no limit

    @staticmethod
    def of(configuration: Configuration) -> RequestLimits:
        """Return what is configured."""
        return RequestLimits(
            concurrent=configuration.get(CONCURRENT_REQUESTS),
            waiting=configuration.get(WAITING_REQUESTS),
            uploads=configuration.get(CONCURRENT_UPLOADS),
            upload_bytes=configuration.get(UPLOAD_BYTES),
            largest_upload=configuration.get(UPLOAD_LIMIT),
            rate=configuration.get(RATE_LIMIT),
        )


class RequestBounds:
    """Wraps the application of one JobManager, behind access control."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, clock_s: Callable[[], float]) -> None:
        self._app: Final = app
        self._limits: Final = limits
        self._clock_s: Final = clock_s
        self._concurrent = 0
        self._waiting = 0
        self._uploads = 0
        self._upload_bytes = 0
        self._buckets: Final[dict[str, tuple[float, float]]] = {}  # by credential: requests left, and as of when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        retry_s = self._over_rate(scope[PRINCIPAL])
        if retry_s:
            text = f"more than {self._limits.rate:g} requests a second were sent with this token"
            await send_error(send, 429, text, retry_s=retry_s, close=True)
            return
        length = _body_bytes(scope)
        waits = _waits(scope[ROUTE], scope)
        upload = int(min(length, self._limits.largest_upload)) if length > _LARGE_BYTES else 0
        reason = self._full(waits=waits, upload=upload)
        if reason:
            await send_error(send, 503, f"{reason}; try again", retry_s=1, close=True)
            return
        self._count(waits=waits, upload=upload, by=1)
        try:
            if length and BODY_ARRIVED not in scope:
                await _serve_with_body(self._app, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            self._count(waits=waits, upload=upload, by=-1)

    def _full(self, *, waits: bool, upload: int) -> str:
        if waits and self._waiting >= self._limits.waiting:
            return f"{self._waiting} requests wait for a delayed response already"
        if not waits and self._concurrent >= self._limits.concurrent:
            return f"{self._concurrent} requests are in progress already"
        if upload and self._uploads >= self._limits.uploads:
            return f"{self._uploads} large bodies arrive already"
        if upload and self._uploads and self._upload_bytes + upload > self._limits.upload_bytes:
            return f"large bodies of {self._upload_bytes} bytes together arrive already"
        return ""

    def _count(self, *, waits: bool, upload: int, by: int) -> None:
        self._waiting += by if waits else 0
        self._concurrent += 0 if waits else by
        self._uploads += by if upload else 0
        self._upload_bytes += by * upload

    def _over_rate(self, principal: Principal) -> int:
        """Return after how many seconds to try again; 0: it is within the rate. The burst is that of one second."""
        rate = self._limits.rate
        if not rate or principal.kind in ("local", "none"):
            return 0
        key = principal.token or f"{principal.kind} {principal.name}"
        now_s = self._clock_s()
        left, as_of_s = self._buckets.get(key, (rate, now_s))
        left = min(rate, left + (now_s - as_of_s) * rate)
        if left < 1:
            self._buckets[key] = (left, now_s)
            return max(1, math.ceil((1 - left) / rate))
        if len(self._buckets) >= _MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[key] = (left - 1, now_s)
        return 0


async def _serve_with_body(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request whose body has to arrive: one that is too slow is taken for a client that disconnected."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    received, complete, too_slow, answered = 0, False, False, False

    async def receive_in_time() -> Message:
        nonlocal received, complete, too_slow
        if complete:
            return await receive()
        now_s = loop.time()
        deadline_s = min(now_s + _PATIENCE_S, begun_s + _PATIENCE_S + received / _SLOWEST_BYTES_PER_S)
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            too_slow = complete = True
            return {"type": "http.disconnect"}
        received += len(message.get("body", b""))
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def send_unless_too_slow(message: Message) -> None:
        nonlocal answered
        if too_slow and not answered:
            return  # the answer to a client that did not disconnect follows
        answered = True
        await send(message)

    await app(scope, receive_in_time, send_unless_too_slow)
    if too_slow and not answered:
        text = f"the body arrives too slowly: {received} bytes in {loop.time() - begun_s:.0f} s"
        await send_error(send, 408, text, retry_s=1, close=True)


def _body_bytes(scope: Scope) -> float:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return float(value) if value.isdigit() else math.inf
        if name == b"transfer-encoding":
            return math.inf
    return 0


def _waits(route: Route | None, scope: Scope) -> bool:
    if route is None:
        return False
    return route.streams or (route.max_wait_s > 0 and b"wait=" in scope["query_string"])

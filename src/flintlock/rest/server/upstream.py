"""HTTP from a standby to the leader: one request in, the same request out, bodies streamed both ways.

No body is buffered: a submission of hundreds of megabytes is forwarded piece by piece, and so is a stream of events.
Each wait is bounded: for a connection, for the response to begin (longer where the client asked
for a delayed one), for each piece of it. When a client disconnects, its request to the leader is cancelled.

Three kinds of requests never wait for each other. Those that are answered at once, and those with a body, which may
take long to arrive, share connections in a pool each; both pools are small, because httpcore goes through all
connections of a pool for each request. A request whose response is delayed or has no end (a long poll, a stream of
events) has a connection of its own; there may be thousands of those, up to a limit.

httpcore and not httpx: requests and responses must arrive as they were sent, headers in their order and bodies as they
were encoded; httpx exists to change both.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Final, Self, TypeAlias

import httpcore
from msgspec import Struct
from starlette.types import Receive, Scope

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.errors import Unavailable


def mark_sniffio_missing() -> None:
    """Record in sys.modules that sniffio is not installed, if it is not.

    httpcore imports sniffio for every lock and event that it makes, to learn which event loop runs. Python does not
    remember that a module is missing, and searches all of sys.path each time: a third of the cost of a request.
    """
    if find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # pyright: ignore[reportArgumentType] None: Python's record of a missing module


mark_sniffio_missing()

FORWARDED: Final = b"flintlock-forwarded"
"""A JobManager that receives a request with this header answers it itself, or refuses it."""

CONNECT_TIMEOUT_S: Final = 2.0
RESPONSE_TIMEOUT_S: Final = 30.0
_POOL_TIMEOUT_S: Final = 5.0
_MAX_CONNECTIONS: Final = 100  # of each pool
_MAX_WAITING: Final = 4000
_IDLE_S: Final = 30.0  # less than the server keeps an idle one, so that none is used as it closes

_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
_NOT_SENT: Final = _HOP_BY_HOP | {b"host", b"expect", FORWARDED}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server"}  # this server adds its own

Headers = list[tuple[bytes, bytes]]
_Connections: TypeAlias = httpcore.AsyncConnectionPool | httpcore.AsyncHTTPConnection


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class UpstreamFailed(Unavailable):
    """The leader did not respond. If `sent`, it may have received the request, and may have performed it."""

    sent: bool = False


class UpstreamResponse(Struct):
    """The head of the leader's response; the body follows in pieces."""

    status: int
    headers: Headers
    pieces: AsyncGenerator[bytes]


class RequestBody:
    """What the client sends, piece by piece; `complete` is set after the last piece."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        self.present: Final = bool(names & {b"content-length", b"transfer-encoding"})
        self.complete: Final = asyncio.Event()
        self._receive: Final = receive
        if not self.present:
            self.complete.set()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Yield the pieces. Raises ClientDisconnected."""
        while not self.complete.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            if not message.get("more_body", False):
                self.complete.set()
            piece: bytes = message.get("body", b"")
            if piece:
                yield piece

    async def client_disconnected(self) -> None:
        """Wait until the client disconnects after its request; before that, the reader of the pieces is notified."""
        await self.complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            continue


class Upstream:
    """Connections to the leader. Use it as a context manager.

    A client's request is forwarded with the client's credential, one of this JobManager's own with `credential`.
    """

    def __init__(
        self,
        credential: Callable[[], str],
        tls: ssl.SSLContext | None = None,
        max_connections: int = _MAX_CONNECTIONS,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self._credential: Final = credential
        self._tls: Final = tls
        self._short: Final = _pool(max_connections, tls)
        self._with_body: Final = _pool(max_connections, tls)
        self._max_waiting: Final = max_waiting
        self._waiting = 0  # requests whose responses are delayed or have no end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._short.aclose()
        await self._with_body.aclose()

    @asynccontextmanager
    async def get(
        self, leader: LeaderInfo, target: bytes, credential: str | None = None
    ) -> AsyncGenerator[UpstreamResponse]:
        """Send a request of this JobManager's own; with a client's credential where one is given."""
        headers = [
            (b"accept", b"*/*"),
            (b"authorization", b"Bearer " + (credential or self._credential()).encode()),
            (FORWARDED, b"1"),
        ]
        async with self._send(self._short, leader, b"GET", target, headers) as response:
            yield response

    @asynccontextmanager
    async def forward(
        self, leader: LeaderInfo, scope: Scope, body: RequestBody, timeout_s: float | None
    ) -> AsyncGenerator[UpstreamResponse]:
        """Forward a client's request; `timeout_s` bounds each wait for its response, None: it has no end.

        Raises UpstreamFailed if there is none, ClientDisconnected.
        """
        headers = [*end_to_end(scope["headers"], _NOT_SENT), (FORWARDED, b"1")]
        if body.present and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"transfer-encoding", b"chunked"))
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        content = body if body.present else None
        async with (
            self._connections(leader, body, timeout_s) as connections,
            self._send(
                connections, leader, scope["method"].encode(), target, headers, content=content, timeout_s=timeout_s
            ) as response,
        ):
            yield response

    @asynccontextmanager
    async def _connections(
        self, leader: LeaderInfo, body: RequestBody, timeout_s: float | None
    ) -> AsyncGenerator[_Connections]:
        """Return what sends a request of this kind. Raises UpstreamFailed if too many clients wait already."""
        if timeout_s is not None and timeout_s <= RESPONSE_TIMEOUT_S:
            yield self._with_body if body.present else self._short
            return
        if self._waiting >= self._max_waiting:
            raise UpstreamFailed(f"{self._waiting} requests wait already for the leader at {leader.rest}; try again")
        connection = httpcore.AsyncHTTPConnection(httpcore.URL(leader.rest).origin, ssl_context=self._tls)
        self._waiting += 1
        try:
            yield connection
        finally:
            self._waiting -= 1
            await connection.aclose()

    @asynccontextmanager
    async def _send(
        self,
        connections: _Connections,
        leader: LeaderInfo,
        method: bytes,
        target: bytes,
        headers: Headers,
        *,
        content: RequestBody | None = None,
        timeout_s: float | None = RESPONSE_TIMEOUT_S,
    ) -> AsyncGenerator[UpstreamResponse]:
        base = httpcore.URL(leader.rest)
        url = httpcore.URL(scheme=base.scheme, host=base.host, port=base.port, target=target)
        timeouts = {
            "connect": CONNECT_TIMEOUT_S,
            "pool": _POOL_TIMEOUT_S,
            "write": RESPONSE_TIMEOUT_S,
            "read": timeout_s,
        }
        request = httpcore.Request(
            method,
            url,
            headers=[(b"host", base.host + b":%d" % (base.port or 80)), *headers],
            content=content,
            extensions={"timeout": timeouts},
        )
        try:
            response = await connections.handle_async_request(request)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
            raise _failed(leader, error, sent=False) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise _failed(leader, error, sent=True) from error
        try:
            headers = end_to_end(response.headers, _NOT_RETURNED)
            yield UpstreamResponse(response.status, headers, _pieces(response, leader))
        finally:
            await response.aclose()


def _pool(max_connections: int, tls: ssl.SSLContext | None) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(
        ssl_context=tls,
        max_connections=max_connections,
        max_keepalive_connections=max_connections,
        keepalive_expiry=_IDLE_S,
    )


def end_to_end(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> Headers:
    """Return the headers that are forwarded: all but the hop-by-hop ones and `without`."""
    given = [(name.lower(), value) for name, value in headers]
    named = {item.strip().lower() for name, value in given if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in given if name not in without and name not in named]


async def _pieces(response: httpcore.Response, leader: LeaderInfo) -> AsyncGenerator[bytes]:
    try:
        async for piece in response.aiter_stream():
            yield piece
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise _failed(leader, error, sent=True) from error


def _failed(leader: LeaderInfo, error: Exception, *, sent: bool) -> UpstreamFailed:
    reason = str(error) or type(error).__name__
    failed = UpstreamFailed(f"the leader at {leader.rest} does not respond ({reason}); try again")
    failed.sent = sent
    return failed

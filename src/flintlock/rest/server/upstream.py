"""HTTP from a standby to the leader: one request in, the same request out, bodies streamed both ways.

Nothing of a body is held: a submission of hundreds of megabytes passes piece by piece, and so does a stream of events.
Connections are kept and used again. Each wait is bounded: for a connection, for the answer to begin (longer where the
client asked for an answer that is held back), for each piece of it. A client that leaves takes its request along.

httpcore and not httpx: what passes through here must arrive as it was sent, headers in their order and bodies as they
were encoded; httpx exists to do things to both.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Final, Self

import httpcore
from msgspec import Struct
from starlette.types import Receive, Scope

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.errors import Unavailable

# For every lock and event httpcore asks sniffio which loop runs, and where that is not installed it looks for it anew
# each time, through all of sys.path: a third of what a request costs. None is Python's way to say "it is not there".
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # pyright: ignore[reportArgumentType]

FORWARDED: Final = b"flintlock-forwarded"
"""Whoever gets a request with this header answers it itself or not at all."""

CONNECT_S: Final = 2.0
ANSWER_S: Final = 30.0
_POOL_S: Final = 5.0
_CONNECTIONS: Final = 1000  # long polls and event streams hold one each
_IDLE: Final = 100
_IDLE_S: Final = 30.0  # less than the server keeps an idle one, so that none is used as it closes

_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
_NOT_SENT: Final = _HOP_BY_HOP | {b"host", b"expect", FORWARDED}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server"}  # this server adds its own

Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client has left before its request was whole."""


class Broken(Unavailable):
    """The leader did not answer. `sent` says that it may have got the request, and may have done what it asks."""

    sent: bool = False


class Answered(Struct):
    """The beginning of the leader's answer, and the rest as it comes."""

    status: int
    headers: Headers
    pieces: AsyncGenerator[bytes]


class RequestBody:
    """What the client sends, piece by piece; `taken` is set once the last piece was."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        self.there: Final = bool(names & {b"content-length", b"transfer-encoding"})
        self.taken: Final = asyncio.Event()
        self._receive: Final = receive
        if not self.there:
            self.taken.set()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Yield the pieces. Raises ClientGone."""
        while not self.taken.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if not message.get("more_body", False):
                self.taken.set()
            piece: bytes = message.get("body", b"")
            if piece:
                yield piece

    async def client_left(self) -> None:
        """Wait until the client has left; before its request is whole, whoever sends that on hears of it."""
        await self.taken.wait()
        while (await self._receive())["type"] != "http.disconnect":
            continue


class Upstream:
    """Connections to whoever leads. Use it as a context."""

    def __init__(self) -> None:
        self._pool: Final = httpcore.AsyncConnectionPool(
            max_connections=_CONNECTIONS, max_keepalive_connections=_IDLE, keepalive_expiry=_IDLE_S
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    @asynccontextmanager
    async def get(self, leader: LeaderInfo, target: bytes) -> AsyncGenerator[Answered]:
        """Ask the leader on one's own behalf."""
        headers = [(b"accept", b"*/*"), (FORWARDED, b"1")]
        async with self._answer(leader, b"GET", target, headers) as answered:
            yield answered

    @asynccontextmanager
    async def forward(
        self, leader: LeaderInfo, scope: Scope, body: RequestBody, answer_s: float | None
    ) -> AsyncGenerator[Answered]:
        """Send on a client's request; `answer_s` bounds each wait for its answer.

        Raises Broken if there is none, ClientGone.
        """
        headers = [*passed_on(scope["headers"], _NOT_SENT), (FORWARDED, b"1")]
        if body.there and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"transfer-encoding", b"chunked"))
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        content = body if body.there else None
        async with self._answer(
            leader, scope["method"].encode(), target, headers, content=content, answer_s=answer_s
        ) as answered:
            yield answered

    @asynccontextmanager
    async def _answer(
        self,
        leader: LeaderInfo,
        method: bytes,
        target: bytes,
        headers: Headers,
        *,
        content: RequestBody | None = None,
        answer_s: float | None = ANSWER_S,
    ) -> AsyncGenerator[Answered]:
        base = httpcore.URL(leader.rest)
        url = httpcore.URL(scheme=base.scheme, host=base.host, port=base.port, target=target)
        request = httpcore.Request(
            method,
            url,
            headers=[(b"host", base.host + b":%d" % (base.port or 80)), *headers],
            content=content,
            extensions={"timeout": {"connect": CONNECT_S, "pool": _POOL_S, "write": ANSWER_S, "read": answer_s}},
        )
        try:
            response = await self._pool.handle_async_request(request)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
            raise _broken(leader, error, sent=False) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise _broken(leader, error, sent=True) from error
        try:
            yield Answered(response.status, passed_on(response.headers, _NOT_RETURNED), _pieces(response, leader))
        finally:
            await response.aclose()


def passed_on(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> Headers:
    """Return the headers that go on to the next hop."""
    given = [(name.lower(), value) for name, value in headers]
    named = {item.strip().lower() for name, value in given if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in given if name not in without and name not in named]


async def _pieces(response: httpcore.Response, leader: LeaderInfo) -> AsyncGenerator[bytes]:
    try:
        async for piece in response.aiter_stream():
            yield piece
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise _broken(leader, error, sent=True) from error


def _broken(leader: LeaderInfo, error: Exception, *, sent: bool) -> Broken:
    broken = Broken(f"the leader at {leader.rest} does not answer ({str(error) or type(error).__name__}); ask again")
    broken.sent = sent
    return broken

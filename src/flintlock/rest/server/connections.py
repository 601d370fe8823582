"""Connections of clients: one that does not send the head of a request in time, or sends one without an end, is closed.

uvicorn waits without a limit for a first request, and for the rest of one that has begun, and its parser keeps what has
arrived. Thousands of connections that send a byte now and then would use up the descriptors of the process, and one
that sends headers for ever its memory.

A request that is refused before its body has arrived is answered at once. What follows is dropped, for a short time:
a connection that is closed while data arrives would take the response with it.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BODY_ARRIVED: Final = "flintlock.body-arrived"
"""The key of a request's scope that is there once all of its body has arrived."""

_MOST_WAITING_BYTES: Final = 32 << 10
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class JoinedWrites:
    """A transport whose small writes of one step of the loop leave together.

    uvicorn writes the head and the body of a response one after the other: each would cost a system call, and wake the
    client up once more.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport: Final = transport
        self._loop: Final = loop
        self._waiting: Final[list[bytes]] = []
        self._waiting_bytes = 0

    def write(self, data: bytes) -> None:
        """Write data at the end of this step, or at once if much waits: the transport decides when to pause."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what waits, and close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._transport.write(data)


class TimedHttpProtocol(HttpToolsProtocol):
    """HTTP with a timeout for the head of each request, and for a body that is no longer read."""

    head_timeout_s: ClassVar[float] = 20.0
    unread_body_timeout_s: ClassVar[float] = 10.0
    max_head_bytes: ClassVar[int] = 64 << 10
    _head_bytes = 0  # received since a head is expected
    _expects_head = False
    #: Set while a head is expected that did not arrive in one piece, or the end of a body that is answered already.
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a first request."""
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)
        self._expects_head = True
        self._start_timer(self.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Pass on what has arrived, unless it is more than the head of any request has."""
        super().data_received(data)
        if not self._expects_head:
            return
        if self._timer is None:
            self._start_timer(self.head_timeout_s)
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Expect the rest of the head: from now on its time counts."""
        super().on_message_begin()
        self._stop_timer()
        self._expects_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header without the white space around its value, which is no part of it; the parser leaves the end."""
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._stop_timer()
        self._expects_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the end of a body that was not read, but not for long."""
        super().on_response_complete()
        if not self.pipeline and self.cycle.more_body and not self.transport.is_closing():
            self._start_timer(self.unread_body_timeout_s)

    def on_message_complete(self) -> None:
        """The body is complete."""
        self._stop_timer()
        cast("dict[str, object]", self.scope)[BODY_ARRIVED] = True
        super().on_message_complete()

    def _start_timer(self, timeout_s: float) -> None:
        self._timer = self.loop.call_later(timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

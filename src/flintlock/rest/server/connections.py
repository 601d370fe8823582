"""Connections of clients: one that does not send the head of a request in time is closed.

uvicorn waits without a limit for a first request, and for the rest of one that has begun. Thousands of connections that
send a byte now and then would use up the descriptors of the process.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TimedHttpProtocol(HttpToolsProtocol):
    """HTTP with a timeout for the head of each request."""

    head_timeout_s: ClassVar[float] = 20.0
    _awaited_head: asyncio.TimerHandle | None = None  # set while a head is expected

    def connection_made(self, transport: Any) -> None:
        """Expect a first request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Expect the rest of the head."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._stop_waiting()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._stop_waiting()
        self._awaited_head = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._awaited_head is not None:
            self._awaited_head.cancel()
            self._awaited_head = None

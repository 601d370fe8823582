"""The outermost layer of the REST server: every request has an id, which is the cause of all that it sets off.

A client may bring one in `X-Request-Id`; one that is missing or not well-formed is replaced. The id is passed on to
the leader with a forwarded request, and returned in the header of every response.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.model.causes import CauseId, caused_by, well_formed

REQUEST_ID: Final = b"x-request-id"


class RequestIds:
    """Wraps an application; `new_id` makes the ids of requests without one."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], CauseId]) -> None:
        self._app: Final = app
        self._new_id: Final = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request under its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = None
        for name, value in scope["headers"]:
            if name == REQUEST_ID:
                given = value
                break
        cause = (well_formed(given.decode("latin-1")) if given is not None else None) or self._new_id()
        encoded = (REQUEST_ID, cause.encode())
        headers = scope["headers"] if given is None else without_id(scope["headers"])
        scope["headers"] = [*headers, encoded]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*without_id(message.get("headers", ())), encoded]
            await send(message)

        with caused_by(cause):
            await self._app(scope, receive, send_with_id)


def without_id(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers without an id. Those of a response are lower-case too: they are this package's own."""
    return [header for header in headers if header[0] != REQUEST_ID]


def request_ids() -> Callable[[], CauseId]:
    """Return a function that makes ids: of this process, and counted. Random ones would cost a system call each."""
    process, numbers = secrets.token_hex(6), count(1)
    return lambda: CauseId(f"{process}-{next(numbers)}")

"""The outermost layer of the REST server: every request has an id, which is the cause of all that it sets off.

A client may bring one in `X-Request-Id`; one that is missing or not well-formed is replaced. The id is passed on to
the leader with a forwarded request, and returned in the header of every response.
"""

from __future__ import annotations

from collections.abc import Callable
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
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        cause = well_formed(given.decode("latin-1")) or self._new_id()
        encoded = cause.encode()
        headers = [*((name, value) for name, value in scope["headers"] if name != REQUEST_ID), (REQUEST_ID, encoded)]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = ((name, value) for name, value in message.get("headers", ()) if name.lower() != REQUEST_ID)
                message = {**message, "headers": [*others, (REQUEST_ID, encoded)]}
            await send(message)

        with caused_by(cause):
            await self._app({**scope, "headers": headers}, receive, send_with_id)

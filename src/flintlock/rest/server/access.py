"""Access control: what comes before every route. It decides whether a request is served, never what it does.

    the name that the request is for, and the page that sends it    403    `web_pages`
    the credential                                                  401    `security.authentication`
    the role that the row of the route needs                        403

A standby does the same before it forwards: nothing reaches the leader that the standby would not serve itself, and the
leader checks the caller's credential again. What the leader gets from a standby has no header of a browser any more:
the standby has compared them with its own name.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.api import jobs as shapes
from flintlock.model.errors import FlintlockError, Forbidden, Unauthenticated, Unavailable
from flintlock.model.principals import ANONYMOUS, Principal, Role
from flintlock.rest.server.http import JSON, PRINCIPAL, ROUTE, json_response
from flintlock.rest.server.route import Route
from flintlock.rest.server.routes import TABLE
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.authentication import Authentication

_READ: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"authorization"})
_ONCE: Final = frozenset({b"host", b"authorization"})
_OF_BROWSERS: Final = frozenset({b"origin", b"referer", b"cookie"})
_NO_CREDENTIAL: Final = (
    "the request has no credential: the commands and the Python client of the user who runs the cluster find theirs;"
    " all others need a token (an administrator makes one with `flintlock token create`), in security.token-file,"
    " FLINTLOCK_SECURITY_TOKEN or the header `Authorization: Bearer …`"
)


class AccessControl:
    """Wraps the application of one JobManager. Without `authentication`, every caller is an administrator."""

    def __init__(self, app: ASGIApp, *, authentication: Authentication | None, web: WebPolicy) -> None:
        self._app: Final = app
        self._authentication: Final = authentication
        self._web: Final = web

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = TABLE.find(scope["method"], bare_path(scope["path"]))
        found: dict[bytes, bytes] = {}
        try:
            for name, value in scope["headers"]:
                if name in _READ:
                    if name in _ONCE and name in found:
                        raise Forbidden(f"the request has more than one header {name.decode()!r}")
                    found[name] = value
            reason = self._web.refusal(found)
            if reason is not None:
                raise Forbidden(reason)
            origin = found.get(b"origin")
            if self._web.origins and self._web.allows_origin(origin) and origin is not None:
                send = _sending_to(origin, send)
                if scope["method"] == "OPTIONS":
                    await _allow(send)
                    return
            principal = await self._admit(route, found.get(b"authorization"))
        except FlintlockError as error:
            await send_refusal(send, error)
            return
        headers = [
            header
            for header in scope["headers"]
            if header[0] not in _OF_BROWSERS and not header[0].startswith(b"sec-fetch-")
        ]
        await self._app({**scope, "headers": headers, PRINCIPAL: principal, ROUTE: route}, receive, send)

    async def _admit(self, route: Route | None, header: bytes | None) -> Principal:
        """Return who sends the request. Raises Unauthenticated, Forbidden, Unavailable."""
        if route is not None and route.role is None:
            return ANONYMOUS
        if self._authentication is None:
            return ANONYMOUS
        principal = await self._authenticate(self._authentication, header)
        needed = Role.VIEWER if route is None or route.role is None else route.role
        if not principal.role.includes(needed):
            raise Forbidden(
                f"{principal.name} has the role {principal.role}; this needs the role {needed}: ask an administrator of"
                f" the cluster for a token with it (`flintlock token create --role {needed}`)"
            )
        return principal

    async def _authenticate(self, authentication: Authentication, header: bytes | None) -> Principal:
        if header is None:
            raise Unauthenticated(_NO_CREDENTIAL)
        kind, _, credential = header.partition(b" ")
        if kind.lower() != b"bearer":
            raise Unauthenticated("the header Authorization is not of the form `Bearer …`")
        credential = credential.strip()
        return authentication.remembered(credential) or await authentication.authenticate(credential)


def bare_path(path: str) -> str:
    """Return a path without the prefix of its version."""
    return path.removeprefix("/v1") if path.startswith("/v1/") else path


async def send_refusal(send: Send, error: FlintlockError) -> None:
    """Send the response to a request that is not served. What the client still sends is not read."""
    body = json_response(shapes.Errors(errors=[error.public])).body
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    status = 403
    if isinstance(error, Unauthenticated):
        status = 401
        headers.append((b"www-authenticate", b'Bearer realm="flintlock"'))
    elif isinstance(error, Unavailable):
        status = 503
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _sending_to(origin: bytes, send: Send) -> Send:
    """Let pages of an allowed origin read responses. They send a token: cookies are never allowed."""

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
            message = {**message, "headers": [*message.get("headers", ()), *allowed]}
        await send(message)

    return send_with_origin


async def _allow(send: Send) -> None:
    """Answer the question of a browser whether a page of an allowed origin may send a request."""
    headers = [
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, x-request-id"),
        (b"access-control-max-age", b"600"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

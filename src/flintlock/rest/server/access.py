"""Access control: what comes before every route. It decides whether a request is served, never what it does.

    the name that the request is for, and the page that sends it    403    `web_pages`
    the credential                                                  401    `security.authentication`
    the role that the row of the route needs                        403

A standby does the same before it forwards: nothing reaches the leader that the standby would not serve itself, and the
leader checks the caller's credential again. What the leader gets from a standby has no header of a browser any more:
the standby has compared them with its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.model.access.principals import ANONYMOUS, UNKNOWN_CALLER, Principal, Role
from flintlock.model.causes import current_cause
from flintlock.model.errors import FlintlockError, Forbidden, Unauthenticated
from flintlock.model.ids import is_job_id
from flintlock.rest.server.http import AUTHENTICATE, PRINCIPAL, ROUTE, send_error
from flintlock.rest.server.route import Route, bare_path
from flintlock.rest.server.routes import TABLE
from flintlock.rest.server.upstream import FORWARDED
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.audit import Audit, audit_record
from flintlock.security.authentication import Authentication

_READ: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"authorization", b"cookie"})
_SAFE: Final = frozenset({"GET", "HEAD"})
_ONCE: Final = frozenset({b"host", b"authorization"})
_OF_BROWSERS: Final = frozenset({b"origin", b"referer", b"cookie"})
_STATUS: Final[Mapping[type[FlintlockError], int]] = {Unauthenticated: 401, Forbidden: 403}
_NO_CREDENTIAL: Final = (
    "the request has no credential: the commands and the Python client of the user who runs the cluster find theirs;"
    " all others need a token (an administrator makes one with `flintlock token create`), in security.token-file,"
    " FLINTLOCK_SECURITY_TOKEN or the header `Authorization: Bearer …`"
)


class AccessControl:
    """Wraps the application of one JobManager. Without `authentication`, every caller is an administrator.

    `cookie` is the name of the one that carries a browser's session.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authentication: Authentication | None,
        web: WebPolicy,
        cookie: str = "",
        audit: Audit | None = None,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._app: Final = app
        self._cookie: Final = cookie.encode()
        self._audit: Final = audit
        self._clock_ms: Final = clock_ms
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
        credential, principal = None, UNKNOWN_CALLER
        try:
            found = _read_headers(scope["headers"])
            any_page = route is not None and route.any_page
            reason = self._web.refusal(found, any_page=any_page)
            if reason is not None:
                raise Forbidden(reason)
            if any_page and scope["method"] == "OPTIONS":
                await _allow(_sending_to(b"*", send))
                return
            origin = found.get(b"origin")
            if self._web.origins and self._web.allows_origin(origin) and origin is not None:
                send = _sending_to(origin, send)
                if scope["method"] == "OPTIONS":
                    await _allow(send)
                    return
            if route is None or route.role is not None:
                credential = _credential(found, scope["method"], self._cookie)
                principal = await self._authenticate(credential)
                _check_role(route, principal)
        except FlintlockError as error:
            status = _STATUS.get(type(error), 503)
            self._write(scope, principal, status, error.public)
            await send_error(send, status, error.public, close=True)
            return
        if b"origin" in found or b"cookie" in found or b"sec-fetch-site" in found:
            scope["headers"] = _without_browser(scope["headers"], credential)
        scope[PRINCIPAL], scope[ROUTE] = principal, route
        if route is not None and route.streams:
            scope[AUTHENTICATE] = lambda: self._authenticate_again(route, credential)
        if scope["method"] in _SAFE or self._audit is None:
            await self._app(scope, receive, send)
        else:
            await self._serve_audited(scope, receive, send, principal)

    async def _authenticate_again(self, route: Route, credential: bytes | None) -> None:
        """Verify the credential of a request that is still being served. Raises what refuses a new one."""
        _check_role(route, await self._authenticate(credential))

    async def _serve_audited(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        """Serve a request that changes something, and write its line when the outcome is known."""
        status = 0

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            self._write(scope, principal, status)

    def _write(self, scope: Scope, principal: Principal, status: int, reason: str = "") -> None:
        if self._audit is None:
            return
        path = bare_path(scope["path"])
        parts = path.split("/")
        job = parts[2].lower() if len(parts) > 2 and parts[1] in ("jobs", "quarantine") else ""
        client = scope.get("client")
        self._audit.write(
            audit_record(
                principal,
                clock_ms=self._clock_ms,
                client=client[0] if client else "",
                forwarded=FORWARDED in {name for name, _ in scope["headers"]},
                request=f"{scope['method']} {path}",
                job=job if is_job_id(job) else "",
                status=status,
                reason=reason,
                cause=current_cause() or "",
            )
        )

    async def _authenticate(self, credential: bytes | None) -> Principal:
        """Return who sends the request. Raises Unauthenticated, Unavailable."""
        if self._authentication is None:
            return ANONYMOUS
        if credential is None:
            raise Unauthenticated(_NO_CREDENTIAL)
        return self._authentication.remembered(credential) or await self._authentication.authenticate(credential)


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers that decide. Raises Forbidden for two of which there can be one: which one counts?"""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _READ:
            if name in _ONCE and name in found:
                raise Forbidden(f"the request has more than one header {name.decode()!r}")
            found[name] = value
    return found


def _check_role(route: Route | None, principal: Principal) -> None:
    """Raise Forbidden if the caller's role is not enough. What is no route needs a caller, whatever the role."""
    needed = Role.VIEWER if route is None or route.role is None else route.role
    if not principal.role.includes(needed):
        raise Forbidden(
            f"{principal.name} has the role {principal.role}; this needs the role {needed}: ask an administrator of"
            f" the cluster for a token with it (`flintlock token create --role {needed}`)"
        )


def _credential(headers: Mapping[bytes, bytes], method: str, cookie: bytes) -> bytes | None:
    """Return the credential of a request, None if it has none. Raises Unauthenticated, Forbidden.

    A cookie is attached by the browser, also to the requests of foreign pages. So it authorises a change only where
    the browser says that a page of this cluster sends the request.
    """
    header = headers.get(b"authorization")
    if header is not None:
        kind, _, credential = header.partition(b" ")
        if kind.lower() != b"bearer":
            raise Unauthenticated("the header Authorization is not of the form `Bearer …`")
        return credential.strip()
    session = _session_in(headers.get(b"cookie", b""), cookie)
    if session is None:
        return None
    own_page = b"origin" in headers or headers.get(b"sec-fetch-site") == b"same-origin"
    if method not in _SAFE and not own_page:
        raise Forbidden("a session alone changes nothing: the request has no header Origin of a page of this cluster")
    return session


def _session_in(cookies: bytes, wanted: bytes) -> bytes | None:
    """Return the session in a `Cookie` header; None if it has none."""
    for item in cookies.split(b";"):
        name, _, value = item.strip().partition(b"=")
        if name == wanted and value:
            return value
    return None


def _without_browser(headers: Iterable[tuple[bytes, bytes]], credential: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return the headers for the leader: without those of a browser, and with a session as a credential."""
    left = [
        header
        for header in headers
        if header[0] not in _OF_BROWSERS and not header[0].startswith(b"sec-fetch-") and header[0] != b"authorization"
    ]
    return left if credential is None else [*left, (b"authorization", b"Bearer " + credential)]


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
        (
            b"access-control-allow-headers",
            b"authorization, content-type, idempotency-key, x-request-id, x-requested-with",
        ),
        (b"access-control-max-age", b"600"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})

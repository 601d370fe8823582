"""The ASGI application: the routes of the table, its cached responses, and the status codes of errors."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Final, TypeAlias

import structlog
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flintlock.api import jobs as shapes
from flintlock.model import log_events
from flintlock.model.access.principals import Role
from flintlock.model.errors import (
    Conflict,
    Fenced,
    FlintlockError,
    Forbidden,
    Invalid,
    KeyReused,
    NotFound,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from flintlock.model.jobs import JobQuery
from flintlock.rest.events.documents import FollowedDocument, Response
from flintlock.rest.events.shared import SharedValues
from flintlock.rest.server.http import (
    ANY_PAGE,
    BYTES,
    OWN_PAGES,
    ROUTE,
    HttpResponse,
    RestCall,
    RestServices,
    json_response,
)
from flintlock.rest.server.request_body import header
from flintlock.rest.server.response_cache import CachedResponse, ResponseCache
from flintlock.rest.server.route import RequestTimer, Route, bare_path
from flintlock.rest.server.routes import ROUTES, TABLE

log = structlog.get_logger()
Serve: TypeAlias = Callable[[Request], Awaitable[HttpResponse]]

PREFIXES: Final = ("", "/v1")
_WITHOUT_LENGTH: Final = (204, 304)

#: The status of an error: that of its first matching class.
STATUS_OF: Final[Mapping[type[FlintlockError], int]] = {
    NotFound: 404,
    Conflict: 409,
    KeyReused: 422,
    TooLarge: 413,
    Unauthenticated: 401,
    Forbidden: 403,
    Refused: 400,
    Unavailable: 503,
    Fenced: 503,
    FlintlockError: 500,
}


def rest_app(services: RestServices) -> ASGIApp:
    """Return the application. Every path is served bare and under /v1. One for each registry: timers register there."""
    by_path: dict[str, dict[str, Serve]] = {}
    documents = FollowedDocuments(by_path)
    for row in ROUTES:
        by_path.setdefault(row.path, {})[row.method] = _timed(_serve(row, services, documents), row, services)
    cached = {row: by_path[row.path]["GET"] for row in ROUTES if row.cache_version}
    return CachedRoutes(TableRouter(by_path), services, cached)


class CachedRoutes:
    """Serves the routes whose rows have a `cache_version` from ready bytes, and passes on everything else.

    It comes before the router, which would cost more than the response.
    """

    def __init__(self, app: ASGIApp, services: RestServices, routes: Mapping[Route, Serve]) -> None:
        self._app: Final = app
        self._services: Final = services
        self._routes: Final = {prefix + row.path: (row, serve) for prefix in PREFIXES for row, serve in routes.items()}
        self._cache: Final = ResponseCache(self._now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] not in ("GET", "HEAD") or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        row, serve = found

        async def fetch() -> CachedResponse:
            requested_s = self._now_s()
            made = await serve(Request(scope, receive, send))
            return CachedResponse(
                status=made.status, headers=raw_headers(made), body=made.body, requested_s=requested_s
            )

        try:
            version = await row.cache_version(self._services) if row.cache_version else None
            if version is None:
                await self._app(scope, receive, send)
                return
            response = await self._cache.get(row.path, version, row.cache_s, fetch)
        except FlintlockError as error:
            await _send(_failed(error, row.path), scope, receive, send)
            return
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})

    def _now_s(self) -> float:
        return self._services.clock_ms() / 1000


class FollowedDocuments:
    """Serves the documents that streams of events follow, by the same handlers as requests."""

    def __init__(self, serve: Mapping[str, Mapping[str, Serve]]) -> None:
        self._serve: Final = serve
        self.values: Final = SharedValues()

    def find(self, path: str) -> FollowedDocument | None:
        """Return the document of a path, with its query; None if there is none that can be followed.

        The rows of all of them are for viewers: each caller who may follow events may read them.
        """
        bare, _, query = path.partition("?")
        row = TABLE.find("GET", bare_path(bare))
        if row is None or not row.follow_s:
            return None
        is_output = row.answers is shapes.JobLogs
        if is_output and not {"region", "attempt"} <= QueryParams(query).keys():
            return None  # it would be that of several attempts
        return FollowedDocument(path=path, every_s=row.follow_s, is_output=is_output, read=partial(self._read, row))

    async def _read(self, row: Route, path: str) -> Response:
        bare, _, query = path.partition("?")
        parts = bare_path(bare).split("/")
        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": bare,
            "query_string": query.encode(),
            "headers": [],
            "path_params": {name: parts[index] for index, name in _parameters(row.path)},
        }
        made = await self._serve[row.path]["GET"](Request(scope))
        if made.status == 503:
            raise Unavailable("there is no leader at present")
        return Response(made.status, made.body)


class TableRouter:
    """Serves each request by the row that access control has found for it.

    A method that a path does not have gets 405, with those that are allowed; what no row is for gets 404.
    """

    def __init__(self, serve: Mapping[str, Mapping[str, Serve]]) -> None:
        self._serve: Final = {path: _with_head(methods) for path, methods in serve.items()}
        self._parameters: Final = {path: _parameters(path) for path in serve}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            made = await self._made(scope, receive, send)
        except HTTPException as error:
            made = json_response(shapes.Errors(errors=[error.detail]), error.status_code, error.headers)
        except Exception as error:  # a bug of one handler ends one request
            log.error(log_events.REQUEST_FAILED, path=scope["path"], exc_info=error)
            text = "internal error; the JobManager's log has the details"
            made = json_response(shapes.Errors(errors=[text]), 500)
        await _send(made, scope, receive, send)

    async def _made(self, scope: Scope, receive: Receive, send: Send) -> HttpResponse:
        row: Route | None = scope[ROUTE]
        if row is None:
            raise HTTPException(404, f"{scope['path']} was not found")
        methods = self._serve[row.path]
        serve = methods.get(scope["method"])
        if serve is None:
            allowed = {"Allow": ", ".join(sorted(methods))}
            raise HTTPException(405, f"{scope['method']} is not allowed at {scope['path']}", headers=allowed)
        parameters = self._parameters[row.path]
        if parameters:
            parts = bare_path(scope["path"]).split("/")
            scope["path_params"] = {name: parts[index] for index, name in parameters}
        return await serve(Request(scope, receive, send))


def _with_head(methods: Mapping[str, Serve]) -> dict[str, Serve]:
    return {"HEAD": methods["GET"], **methods} if "GET" in methods else {**methods}


def _parameters(path: str) -> tuple[tuple[int, str], ...]:
    """Return the segments of a path that are parameters."""
    return tuple((index, part[1:-1]) for index, part in enumerate(path.split("/")) if part.startswith("{"))


def error_response(error: FlintlockError) -> HttpResponse:
    """Return the response that reports an error."""
    status = next(code for kind, code in STATUS_OF.items() if isinstance(error, kind))
    lines = [*error.problems] if isinstance(error, Invalid) else [error.public]
    return json_response(shapes.Errors(errors=lines), status, {"Retry-After": "1"} if status == 503 else {})


def _serve(row: Route, services: RestServices, documents: FollowedDocuments) -> Serve:
    async def serve(request: Request) -> HttpResponse:
        encoding = (header(request, b"content-encoding") or "identity").lower()
        if encoding != "identity":
            raise HTTPException(415, f"Content-Encoding {encoding!r} is not supported: send the body as it is")
        _check_content_type(row, request)
        try:
            call = RestCall(
                request=request,
                services=services,
                max_wait_s=row.max_wait_s,
                shared=documents.values,
                document=documents.find,
            )
            if row.of_own_job and not call.principal.role.includes(Role.OPERATOR):
                await _check_owner(call)
            return await row.handler(call)
        except FlintlockError as error:
            return _failed(error, request.scope["path"])

    return serve


def _check_content_type(row: Route, request: Request) -> None:
    """Refuse a POST whose body is of no type that the row has: a form of any web page can send those."""
    if row.method != "POST" or not row.body:
        return
    kind = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if kind not in row.body and (kind or BYTES not in row.body):  # bytes need not be announced as such
        given = f"the content type {kind!r} is not accepted" if kind else "the request has no content type"
        raise HTTPException(415, f"{given}: send {' or '.join(row.body)}")


async def _check_owner(call: RestCall) -> None:
    """Raise Forbidden if the job was submitted under another name, NotFound if there is none."""
    job = await call.services.dispatcher.job(JobQuery(job_id=call.job_id))
    if job.graph.submitted_by != call.principal.name:
        raise Forbidden(
            f"job {call.job_id} was submitted by {job.graph.submitted_by or 'an unknown caller'}, and"
            f" {call.principal.name} has the role {call.principal.role}: only operators may change the jobs of others"
        )


def _timed(serve: Serve, row: Route, services: RestServices) -> Serve:
    if row.timer is None:
        return serve
    timer: RequestTimer = row.timer(services.registry)

    async def timed(request: Request) -> HttpResponse:
        started_s = time.perf_counter()
        status = 500
        try:
            response = await serve(request)
            status = response.status
        finally:
            timer.observe(status, time.perf_counter() - started_s)
        return response

    return timed


def _failed(error: FlintlockError, path: str) -> HttpResponse:
    if not isinstance(error, Refused | Unavailable | Fenced):
        log.error(log_events.REQUEST_FAILED, path=path, exc_info=error)
    return error_response(error)


async def _send(made: HttpResponse, scope: Scope, receive: Receive, send: Send) -> None:
    if made.pieces is not None:
        stream = StreamingResponse(made.pieces, made.status, headers=made.headers, media_type=made.content_type)
        stream.raw_headers.append(OWN_PAGES)
        try:
            await stream(scope, receive, send)
        except Exception as error:
            log.error(log_events.REQUEST_FAILED, path=scope["path"], exc_info=error)
            raise  # the server aborts the connection: the client must not take a part for the whole
        return
    await send({"type": "http.response.start", "status": made.status, "headers": raw_headers(made)})
    await send({"type": "http.response.body", "body": made.body})


def raw_headers(made: HttpResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response that has a body, as a server takes them."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in made.headers.items()]
    headers.append((b"content-type", _content_type(made.content_type)))
    headers.append(ANY_PAGE if made.any_page else OWN_PAGES)
    if made.status not in _WITHOUT_LENGTH:
        headers.append((b"content-length", b"%d" % len(made.body)))
    return headers


@cache
def _content_type(kind: str) -> bytes:
    """Return a content type; text is UTF-8. There are few: each is a constant of its handler."""
    return (f"{kind}; charset=utf-8" if kind.startswith("text/") and "charset=" not in kind else kind).encode()

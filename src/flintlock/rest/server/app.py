"""The ASGI application: the routes of the table, its cached responses, and the status codes of errors."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from flintlock.api import jobs as shapes
from flintlock.model import log_events
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
from flintlock.model.principals import Role
from flintlock.rest.server.http import BYTES, HttpResponse, RestCall, RestServices, json_response
from flintlock.rest.server.response_cache import CachedResponse, ResponseCache
from flintlock.rest.server.route import RequestTimer, Route
from flintlock.rest.server.routes import ROUTES

log = structlog.get_logger()
Serve: TypeAlias = Callable[[Request], Awaitable[Response]]

PREFIXES: Final = ("", "/v1")

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
    for row in ROUTES:
        by_path.setdefault(row.path, {})[row.method] = _timed(_serve(row, services), row, services)
    routes = [StarletteRoute(prefix + path, Methods(serve)) for prefix in PREFIXES for path, serve in by_path.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _unexpected})
    return CachedRoutes(app, services, {row: by_path[row.path]["GET"] for row in ROUTES if row.cache_version})


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
                status=made.status_code, headers=made.raw_headers, body=bytes(made.body), requested_s=requested_s
            )

        try:
            version = await row.cache_version(self._services) if row.cache_version else None
            if version is None:
                await self._app(scope, receive, send)
                return
            response = await self._cache.get(row.path, version, row.cache_s, fetch)
        except FlintlockError as error:
            await _failed(error, row.path)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})

    def _now_s(self) -> float:
        return self._services.clock_ms() / 1000


class Methods:
    """One path with all its methods. Any other method gets 405, with the methods that are allowed.

    The router itself would try /jobs/{jobid} for every method that /jobs/overview does not have.
    """

    def __init__(self, serve: Mapping[str, Serve]) -> None:
        self._serve = {"HEAD": serve["GET"], **serve} if "GET" in serve else {**serve}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        serve = self._serve.get(scope["method"])
        if serve is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._serve))})
        response = await serve(Request(scope, receive, send))
        await response(scope, receive, send)


def error_response(error: FlintlockError) -> HttpResponse:
    """Return the response that reports an error."""
    status = next(code for kind, code in STATUS_OF.items() if isinstance(error, kind))
    lines = [*error.problems] if isinstance(error, Invalid) else [error.public]
    return json_response(shapes.Errors(errors=lines), status, {"Retry-After": "1"} if status == 503 else {})


def _serve(row: Route, services: RestServices) -> Serve:
    async def serve(request: Request) -> Response:
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise HTTPException(415, f"Content-Encoding {encoding!r} is not supported: send the body as it is")
        _check_content_type(row, request)
        try:
            call = RestCall(request=request, services=services, max_wait_s=row.max_wait_s)
            if row.of_own_job and not call.principal.role.includes(Role.OPERATOR):
                await _check_owner(call)
            return _response(await row.handler(call))
        except FlintlockError as error:
            return _failed(error, request.url.path)

    return serve


def _check_content_type(row: Route, request: Request) -> None:
    """Refuse a POST whose body is of no type that the row has: a form of any web page can send those."""
    if row.method != "POST" or not row.body:
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
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

    async def timed(request: Request) -> Response:
        started_s = time.perf_counter()
        status = 500
        try:
            response = await serve(request)
            status = response.status_code
        finally:
            timer.observe(status, time.perf_counter() - started_s)
        return response

    return timed


def _failed(error: FlintlockError, path: str) -> Response:
    if not isinstance(error, Refused | Unavailable | Fenced):
        log.error(log_events.REQUEST_FAILED, path=path, exc_info=error)
    return _response(error_response(error))


def _response(made: HttpResponse) -> Response:
    if made.pieces is not None:
        return StreamingResponse(made.pieces, made.status, headers=dict(made.headers), media_type=made.content_type)
    return Response(made.body, made.status, headers=dict(made.headers), media_type=made.content_type)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return await _unexpected(request, error)
    text = {
        404: f"{request.url.path} was not found",
        405: f"{request.method} is not allowed at {request.url.path}",
    }
    errors = shapes.Errors(errors=[text.get(error.status_code, str(error.detail))])
    return _response(json_response(errors, error.status_code, error.headers))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error(log_events.REQUEST_FAILED, path=request.url.path, exc_info=error)
    text = "internal error; the JobManager's log has the details"
    return _response(json_response(shapes.Errors(errors=[text]), 500))

"""The ASGI application: routes from the table, and errors to status codes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Final, TypeAlias

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flintlock.api import jobs as shapes
from flintlock.model import log_events
from flintlock.model.errors import (
    Conflict,
    Fenced,
    FlintlockError,
    Invalid,
    KeyReused,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
)
from flintlock.rest.metrics.registry import Submissions
from flintlock.rest.server.http import Answer, Call, RestServices, answer
from flintlock.rest.server.openapi import openapi
from flintlock.rest.server.overview import OverviewCache
from flintlock.rest.server.routes import ENDPOINTS, EVENTS, Endpoint

log = structlog.get_logger()
Serve: TypeAlias = Callable[[Request], Awaitable[Response]]

#: Which status an error becomes: the first that fits.
STATUS_OF: Final[Mapping[type[FlintlockError], int]] = {
    NotFound: 404,
    Conflict: 409,
    KeyReused: 422,
    TooLarge: 413,
    Refused: 400,
    Unavailable: 503,
    Fenced: 503,
    FlintlockError: 500,
}


def rest_app(services: RestServices) -> ASGIApp:
    """Return the application. Every path answers bare and under /v1. One for each registry: it counts submissions."""
    by_path: dict[str, dict[str, Serve]] = {}
    for row in ENDPOINTS:
        by_path.setdefault(row.path, {})[row.method] = _endpoint(row, services)
    by_path["/jobs"]["POST"] = _measured(by_path["/jobs"]["POST"], Submissions(services.registry))
    by_path[EVENTS.path] = {"GET": _stream(services)}
    by_path["/openapi.json"] = {"GET": _openapi(services)}
    routes = [Route(prefix + path, Methods(serve)) for prefix in ("", "/v1") for path, serve in by_path.items()]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _unexpected})
    return OverviewCache(app, services, lambda error: _failed(error, "/jobs/overview"))


class Methods:
    """One path with all its methods. A method that it does not have gets 405 with those that it has.

    Left to the router, a path such as /jobs/overview would be looked for among /jobs/{jobid} for every other method.
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


def error_answer(error: FlintlockError) -> Answer:
    """Say what went wrong, with the status that fits."""
    status = next(code for kind, code in STATUS_OF.items() if isinstance(error, kind))
    lines = [*error.problems] if isinstance(error, Invalid) else [error.public]
    return answer(shapes.Errors(errors=lines), status, {"Retry-After": "1"} if status == 503 else {})


def _endpoint(row: Endpoint, services: RestServices) -> Serve:
    async def serve(request: Request) -> Response:
        try:
            return _response(await row.handler(Call(request=request, services=services)))
        except FlintlockError as error:
            return _failed(error, request.url.path)

    return serve


def _measured(serve: Serve, submissions: Submissions) -> Serve:
    async def measured(request: Request) -> Response:
        started_s = time.perf_counter()
        status = 500
        try:
            response = await serve(request)
            status = response.status_code
        finally:
            submissions.answered(status, time.perf_counter() - started_s)
        return response

    return measured


def _stream(services: RestServices) -> Serve:
    async def serve(request: Request) -> Response:
        try:
            await services.dispatcher.list_jobs()  # once the stream has begun, it is too late for another status
        except FlintlockError as error:
            return _failed(error, request.url.path)
        source = EVENTS.source(Call(request=request, services=services))
        return StreamingResponse(source, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    return serve


def _openapi(services: RestServices) -> Serve:
    encoded = cache(lambda: msgspec.json.encode(openapi(services.versions.flintlock)))  # made when first asked for

    async def serve(_: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    return serve


def _failed(error: FlintlockError, path: str) -> Response:
    if not isinstance(error, Refused | Unavailable | Fenced):
        log.error(log_events.REQUEST_FAILED, path=path, exc_info=error)
    return _response(error_answer(error))


def _response(made: Answer) -> Response:
    if made.pieces is not None:
        return StreamingResponse(made.pieces, made.status, headers=dict(made.headers), media_type=made.content_type)
    return Response(made.body, made.status, headers=dict(made.headers), media_type=made.content_type)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return await _unexpected(request, error)
    text = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not allowed at {request.url.path}",
    }
    told = shapes.Errors(errors=[text.get(error.status_code, str(error.detail))])
    return _response(answer(told, error.status_code, error.headers))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error(log_events.REQUEST_FAILED, path=request.url.path, exc_info=error)
    return _response(answer(shapes.Errors(errors=["internal error; the JobManager's log has it"]), 500))

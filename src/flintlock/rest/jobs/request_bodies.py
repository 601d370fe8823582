"""Reads and checks the small JSON bodies of requests about jobs."""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

import msgspec
from starlette.requests import Request

from flintlock.api.requests import (
    ClientHeartbeatRequest,
    DisposalRequest,
    RerunRequest,
    SavepointRequest,
    StopRequest,
    VertexRequirementsRequest,
)
from flintlock.model.checking.documents import document_problems
from flintlock.model.checking.problems import MAX_MESSAGE, abbreviated, reported
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.errors import Invalid
from flintlock.rest.server.request_body import decode, off_loop, read_document

_LIMIT: Final = 1 << 20
_Body = TypeVar("_Body", bound=msgspec.Struct)


async def read_requirements(request: Request) -> dict[str, VertexRequirementsRequest]:
    """Return the requirements in the body. Raises Invalid with every problem and the step that has it."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _requirements(decode(body)))


def _requirements(document: object) -> dict[str, VertexRequirementsRequest]:
    if not isinstance(document, dict):
        raise Invalid("the body must be a mapping from vertex ids to their requirements")
    given = cast("dict[str, Any]", document)
    if not given:
        raise Invalid("the body names no vertex: give the parallelism of at least one")
    suggestions = Suggestions()
    problems = reported(
        _line(path, message)
        for name, item in given.items()
        for path, message in document_problems(VertexRequirementsRequest, item, (name,), suggestions)
    )
    if not problems:
        read = msgspec.convert(given, dict[str, VertexRequirementsRequest])
        problems = reported(
            _line((name, "parallelism"), f"lowerBound {bounds.lower} is more than upperBound {bounds.upper}")
            for name, bounds in ((name, item.parallelism) for name, item in read.items())
            if bounds.lower > bounds.upper
        )
        if not problems:
            return read
    raise Invalid("; ".join(problems), problems=problems)


async def read_heartbeat(request: Request) -> ClientHeartbeatRequest:
    """Return the heartbeat in the body. Raises Invalid with every problem."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _converted(ClientHeartbeatRequest, decode(body)))


async def read_rerun(request: Request) -> RerunRequest:
    """Return the request to run a job again. Raises Invalid with every problem."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _converted(RerunRequest, decode(body)))


async def read_savepoint(request: Request) -> SavepointRequest:
    """Return the request for a savepoint. Raises Invalid with every problem."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _converted(SavepointRequest, decode(body)))


async def read_stop(request: Request) -> StopRequest:
    """Return the request to stop a job with a savepoint. Raises Invalid with every problem."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _converted(StopRequest, decode(body)))


async def read_disposal(request: Request) -> DisposalRequest:
    """Return the request to remove a savepoint. Raises Invalid with every problem."""
    body = await read_document(request, _LIMIT)
    return await off_loop(len(body), lambda: _converted(DisposalRequest, decode(body)))


def _converted(kind: type[_Body], document: object) -> _Body:
    problems = reported(_line(path, message) for path, message in document_problems(kind, document))
    if problems:
        raise Invalid("; ".join(problems), problems=problems)
    return msgspec.convert(document, kind)


def _line(path: tuple[str, ...], message: str) -> str:
    return f"{abbreviated('.'.join(path)) or 'the body'}: {abbreviated(message, MAX_MESSAGE)}"

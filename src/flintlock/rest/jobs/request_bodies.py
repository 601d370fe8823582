"""Reads and checks the small JSON bodies of requests about jobs."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from starlette.requests import Request

from flintlock.api.requests import ClientHeartbeatRequest, VertexRequirementsRequest
from flintlock.model.checking.documents import document_problems
from flintlock.model.errors import Invalid
from flintlock.rest.jobs.submission import read_document

_LIMIT: Final = 4 << 20


async def read_requirements(request: Request) -> dict[str, VertexRequirementsRequest]:
    """Return the requirements in the body. Raises Invalid with every problem and the step that has it."""
    document = await read_document(request, _LIMIT)
    if not isinstance(document, dict):
        raise Invalid("the body must be a mapping from vertex ids to their requirements")
    given = cast("dict[str, Any]", document)
    if not given:
        raise Invalid("the body names no vertex: give the parallelism of at least one")
    problems = [
        f"{'.'.join(path)}: {message}"
        for name, item in given.items()
        for path, message in document_problems(VertexRequirementsRequest, item, (name,))
    ]
    if not problems:
        read = msgspec.convert(given, dict[str, VertexRequirementsRequest])
        problems = [
            f"{name}.parallelism: lowerBound {bounds.lower} is more than upperBound {bounds.upper}"
            for name, bounds in ((name, item.parallelism) for name, item in read.items())
            if bounds.lower > bounds.upper
        ]
        if not problems:
            return read
    raise Invalid("; ".join(problems), problems=tuple(problems))


async def read_heartbeat(request: Request) -> ClientHeartbeatRequest:
    """Return the heartbeat in the body. Raises Invalid with every problem."""
    document = await read_document(request, _LIMIT)
    problems = tuple(
        f"{'.'.join(path) or 'the body'}: {message}"
        for path, message in document_problems(ClientHeartbeatRequest, document)
    )
    if problems:
        raise Invalid("; ".join(problems), problems=problems)
    return msgspec.convert(document, ClientHeartbeatRequest)

"""What REST takes beside jobs: small JSON documents, checked against the structs that describe them."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request

from flintlock.model.documents import document_problems
from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import MAX_PARALLELISM
from flintlock.rest.jobs.submission import read_document

_LIMIT: Final = 4 << 20

Parallelism = Annotated[int, Meta(ge=1, le=MAX_PARALLELISM)]


class _Body(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base: camelCase outside, nothing unknown."""


class ParallelismBounds(_Body, frozen=True, kw_only=True):
    """How many slots a step may have."""

    lower_bound: Parallelism = 1
    upper_bound: Parallelism


class VertexRequirements(_Body, frozen=True, kw_only=True):
    """What one step may use."""

    parallelism: ParallelismBounds


Requirements = dict[str, VertexRequirements]
"""GET and PUT /jobs/:jobid/resource-requirements: by vertex id."""


class ClientHeartbeatBody(_Body, frozen=True, kw_only=True):
    """PATCH /jobs/:jobid/clientHeartbeat: the client is there until then, in milliseconds since 1970."""

    expired_timestamp: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


async def read_requirements(request: Request) -> Requirements:
    """Return the requirements in the body. Raises Invalid with every problem and the step that has it."""
    document = await read_document(request, _LIMIT)
    if not isinstance(document, dict):
        raise Invalid("the body must be a mapping from vertex ids to what they may use")
    given = cast("dict[str, Any]", document)
    if not given:
        raise Invalid("the body names no vertex: give at least one with its parallelism")
    problems = [
        f"{'.'.join(path)}: {message}"
        for name, item in given.items()
        for path, message in document_problems(VertexRequirements, item, (name,))
    ]
    if not problems:
        read = msgspec.convert(given, Requirements)
        problems = [
            f"{name}.parallelism: lowerBound {bounds.lower_bound} is more than upperBound {bounds.upper_bound}"
            for name, bounds in ((name, item.parallelism) for name, item in read.items())
            if bounds.lower_bound > bounds.upper_bound
        ]
        if not problems:
            return read
    raise Invalid("; ".join(problems), problems=tuple(problems))


async def read_heartbeat(request: Request) -> ClientHeartbeatBody:
    """Return the heartbeat in the body. Raises Invalid with every problem."""
    document = await read_document(request, _LIMIT)
    problems = tuple(
        f"{'.'.join(path) or 'the body'}: {message}"
        for path, message in document_problems(ClientHeartbeatBody, document)
    )
    if problems:
        raise Invalid("; ".join(problems), problems=problems)
    return msgspec.convert(document, ClientHeartbeatBody)

"""Reads and checks the requirements of the steps of a job."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from starlette.requests import Request

from flintlock.api.requests import VertexRequirementsRequest
from flintlock.model.checking.documents import document_problems
from flintlock.model.checking.problems import reported
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.errors import Invalid
from flintlock.rest.server.request_body import SMALL_DOCUMENT_BYTES, decode, off_loop, problem_line, read_document


async def read_requirements(request: Request) -> dict[str, VertexRequirementsRequest]:
    """Return the requirements in the body. Raises Invalid with every problem and the step that has it."""
    body = await read_document(request, SMALL_DOCUMENT_BYTES)
    return await off_loop(len(body), lambda: _requirements(decode(body)))


def _requirements(document: object) -> dict[str, VertexRequirementsRequest]:
    if not isinstance(document, dict):
        raise Invalid("the body must be a mapping from vertex ids to their requirements")
    given = cast("dict[str, Any]", document)
    if not given:
        raise Invalid("the body names no vertex: give the parallelism of at least one")
    suggestions = Suggestions()
    problems = reported(
        problem_line(path, message)
        for name, item in given.items()
        for path, message in document_problems(VertexRequirementsRequest, item, (name,), suggestions)
    )
    if not problems:
        read = msgspec.convert(given, dict[str, VertexRequirementsRequest])
        problems = reported(
            problem_line((name, "parallelism"), f"lowerBound {bounds.lower} is more than upperBound {bounds.upper}")
            for name, bounds in ((name, item.parallelism) for name, item in read.items())
            if bounds.lower > bounds.upper
        )
        if not problems:
            return read
    raise Invalid("; ".join(problems), problems=problems)

"""Reading the body of a request: bounded in size, decoded and checked away from the event loop.

What a client sends never decides how long the loop stands still: a body is read up to its limit, a large one is decoded
and checked in a thread, and its values are counted before it is decoded, because one call of the decoder holds Python's
lock until it is done. There is one such thread: documents are checked one after another, and however many arrive, the
loop shares the lock with one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from flintlock.model.checking.documents import document_problems
from flintlock.model.checking.limits import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_VALUES
from flintlock.model.checking.problems import MAX_MESSAGE, abbreviated, reported
from flintlock.model.errors import Invalid, TooLarge

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)

SMALL_BYTES: Final = 8 << 10
"""Up to this size a document is decoded and checked on the loop: a thread would take longer to start with it."""

SMALL_DOCUMENT_BYTES: Final = 1 << 20
"""What a document may have that is not a job graph."""

_UPLOAD_LIMIT_TEXT: Final = "rest.server.max-content-length"
_documents: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="documents")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` on a document of this size returns; on the loop only if it is small."""
    if size <= SMALL_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_documents, copy_context().run, work)


def header(request: Request, name: bytes) -> str | None:
    """Return the first header of this lower-case name. Starlette's own mapping takes several times as long."""
    for given, value in request.scope["headers"]:
        if given == name:
            return value.decode("latin-1")
    return None


async def read_stream(request: Request, limit: int, allowed_by: str = _UPLOAD_LIMIT_TEXT) -> AsyncGenerator[bytes]:
    """Yield the body piece by piece. Raises TooLarge as soon as it is, Invalid if it is not complete."""
    length = header(request, b"content-length") or ""
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"the body has {length} bytes; {allowed_by} allows {limit}")
    seen, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise Invalid("the body is incomplete")
        piece, more = message.get("body", b""), message.get("more_body", False)
        seen += len(piece)
        if seen > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes that {allowed_by} allows")
        yield piece


async def read_document(request: Request, limit: int) -> bytes:
    """Return a body that is a document. Raises Invalid, TooLarge: it may have `limit` bytes, and is never large."""
    if limit <= MAX_DOCUMENT_BYTES:
        return b"".join([piece async for piece in read_stream(request, limit)])
    stream = read_stream(request, MAX_DOCUMENT_BYTES, "the limit of a document")
    return b"".join([piece async for piece in stream])


async def read_as(request: Request, kind: type[Body], limit: int = SMALL_DOCUMENT_BYTES) -> Body:
    """Return a body as what it has to be. Raises Invalid with every problem and its place, TooLarge."""
    body = await read_document(request, limit)
    return await off_loop(len(body), lambda: _converted(kind, decode(body)))


def _converted(kind: type[Body], document: object) -> Body:
    problems = reported(problem_line(path, message) for path, message in document_problems(kind, document))
    if problems:
        raise Invalid("; ".join(problems), problems=problems)
    return msgspec.convert(document, kind)


def problem_line(path: tuple[str, ...], message: str) -> str:
    """Return a problem as a line with its place."""
    return f"{abbreviated('.'.join(path)) or 'the body'}: {abbreviated(message, MAX_MESSAGE)}"


def decode(body: bytes) -> object:
    """Return a document, decoded from JSON. Raises Invalid with the place of what is not UTF-8 or not JSON."""
    values = 1 + body.count(b",") + body.count(b"[") + body.count(b"{")
    if values > MAX_DOCUMENT_VALUES:
        raise Invalid(f"the request has about {values} values; at most {MAX_DOCUMENT_VALUES} are allowed")
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise Invalid(f"the request is not JSON: {utf8_problem(body) or 'a text in it is not UTF-8'}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"the request is not JSON: {error}") from None


def utf8_problem(body: bytes) -> str | None:
    """Return where and why a text is not UTF-8; None if it is."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8: {error.reason} at byte {error.start}"
    return None

"""Documents of the API that a stream follows: they are sent when they have changed, and output piece by piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams

from flintlock.api.jobs import JobLogs
from flintlock.model.errors import Invalid
from flintlock.rest.events.shared import SharedValues

MAX_FOLLOWED: Final = 8
"""The documents that one stream follows."""

_BYTES_A_SECOND: Final = 256 * 1024
_encoder: Final = msgspec.json.Encoder()
_output: Final = msgspec.json.Decoder(JobLogs)


@dataclass(frozen=True)
class Response:
    """What a GET request of a document was answered."""

    status: int
    body: bytes


@dataclass(frozen=True, kw_only=True)
class FollowedDocument:
    """One that can be followed: how often it is looked at, and how it is read."""

    path: str  # with its query, as the client names it
    every_s: float
    is_output: bool  # of an attempt: each response continues the one before
    read: Callable[[str], Awaitable[Response]]  # by path; raises Unavailable, Fenced between two leaders


class Follower:
    """Follows one document for one stream."""

    def __init__(self, document: FollowedDocument, values: SharedValues) -> None:
        self._document: Final = document
        self._values: Final = values
        self._path = document.path  # of output: with the offset of what was not read yet
        self._next_s = 0.0
        self._version = 0
        self._begun = self._ended = False

    async def look(self, now_s: float) -> bytes:
        """Return an event if the document has changed since the last one; nothing otherwise, or if it is not due."""
        if self._ended or now_s < self._next_s:
            return b""
        response = await (self._next_output(now_s) if self._document.is_output else self._changed(now_s))
        if response is None:
            return b""
        if not self._document.is_output:
            # A large document is looked at less often: a stream sends no more of it than so many bytes a second.
            self._next_s = now_s + max(self._document.every_s, len(response.body) / _BYTES_A_SECOND)
        return _event(self._document.path, response)

    async def _changed(self, now_s: float) -> Response | None:
        self._next_s = now_s + self._document.every_s
        path = self._path

        async def read() -> Response:
            return await self._document.read(path)

        version, value = await self._values.get(path, self._document.every_s, read)
        if version == self._version or not isinstance(value, Response):
            return None
        self._version = version
        return value

    async def _next_output(self, now_s: float) -> Response | None:
        """Return the output that was printed since the last piece, None if there is none."""
        response = await self._document.read(self._path)
        self._next_s = now_s + self._document.every_s
        if response.status != 200:
            self._ended = response.status == 404
            return response
        parts = _output.decode(response.body).logs
        if not parts:
            return None  # it has not begun yet
        part = parts[0]
        path, _, query = self._path.partition("?")
        self._path = f"{path}?{urlencode({**QueryParams(query), 'offset': part.next_offset})}"
        if part.next_offset < part.size:
            self._next_s = now_s  # there is more already
        self._ended = part.complete and part.next_offset >= part.size
        is_news, self._begun = bool(part.text) or self._ended or not self._begun, True
        return response if is_news else None


def followers(paths: list[str], find: Callable[[str], FollowedDocument | None], values: SharedValues) -> list[Follower]:
    """Return what follows these paths. Raises Invalid."""
    if len(paths) > MAX_FOLLOWED:
        raise Invalid(f"query parameter 'follow': {len(paths)} documents are more than {MAX_FOLLOWED}")
    found: list[Follower] = []
    for path in paths:
        document = find(path)
        if document is None:
            raise Invalid(f"query parameter 'follow': {path!r} is no document that can be followed")
        found.append(Follower(document, values))
    return found


def _event(path: str, response: Response) -> bytes:
    named = _encoder.encode(path)
    return b'event: document\ndata: {"path":%b,"status":%d,"body":%b}\n\n' % (named, response.status, response.body)

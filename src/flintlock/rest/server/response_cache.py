"""A cache of responses: requests that many clients repeat all the time are answered from one response.

The row of a route sets how old a cached response may be when it is sent (`cache_s`), counted from the time at which it
was requested. A response also belongs to a version, and is dropped when the version is another one. On a standby the
version is the leader's identity: nothing of an earlier leader is sent. On the leader it is the object that the response
was made from. A client that changes something through a standby sees the change in its next response: forwarding a
change invalidates every cached response, including those that are still being fetched.

Rejected: refreshing in advance, by a timer. A standby that receives no requests has nothing to fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.errors import Unavailable


class CachedResponse(Struct, frozen=True, kw_only=True):
    """A complete response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    requested_s: float


Fetch: TypeAlias = Callable[[], Awaitable[CachedResponse]]
_Key: TypeAlias = tuple[str, int, int]


class ResponseCache:
    """The latest response of each path."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s: Final = clock_s
        self._latest: Final[dict[str, tuple[object, CachedResponse]]] = {}  # by path, with its version
        self._fetches: Final[dict[_Key, asyncio.Future[CachedResponse]]] = {}  # in progress; many may wait for one
        self._invalidations = 0

    def invalidate(self) -> None:
        """Drop every response: something was changed through this JobManager."""
        self._invalidations += 1
        self._latest.clear()

    async def get(self, path: str, version: object, max_age_s: float, fetch: Fetch) -> CachedResponse:
        """Return a response of this version that is young enough; `fetch` makes one.

        Concurrent callers share one fetch, and all of them get the error that it raises.
        """
        latest = self._latest.get(path)
        if latest is not None and latest[0] is version and self.age_s(latest[1]) <= max_age_s:
            return latest[1]
        key = (path, id(version), self._invalidations)  # the caller's reference keeps the id from being used again
        in_progress = self._fetches.get(key)
        if in_progress is not None:
            return await asyncio.shield(in_progress)
        return await self._fetch(key, version, fetch)

    def age_s(self, response: CachedResponse) -> float:
        """Return how old a response is."""
        return self._clock_s() - response.requested_s

    async def _fetch(self, key: _Key, version: object, fetch: Fetch) -> CachedResponse:
        done: asyncio.Future[CachedResponse] = asyncio.get_running_loop().create_future()
        self._fetches[key] = done
        try:
            response = await fetch()
        except BaseException as error:
            cancelled = Unavailable("the request for this response was cancelled; try again")
            done.set_exception(error if isinstance(error, Exception) else cancelled)
            done.exception()  # there may be no other caller: an exception that is never retrieved would be logged
            raise
        finally:
            del self._fetches[key]
        done.set_result(response)
        if key[2] == self._invalidations and response.status == 200:
            self._latest[key[0]] = (version, response)
        return response

"""The queue for slots: requests in the order in which they are served.

A request that leaves from the middle is only marked, and dropped when it reaches the head, or together with all other
marked ones once they are many: jobs may come and go while the head waits for days.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from msgspec import Struct

from flintlock.model.ids import JobId, RequestId
from flintlock.model.slots import SlotGrant, SlotRequest

Place: TypeAlias = tuple[int, int, int, int]
"""Priority (negated: the highest goes first), when the job was submitted, its number, the request's number. Unique."""


class QueuedRequest(Struct, eq=False):
    """A declared request. It waits while `grant` is None."""

    job_id: JobId
    spec: SlotRequest  # as declared
    place: Place
    since_s: float  # on the loop's clock, which is never set
    grant: SlotGrant | None = None
    reported_unservable: bool = False  # whether its job was sent NoResources


class QueuedJob(Struct):
    """A job with at least one declared request."""

    number: int  # decides between jobs that were submitted in the same millisecond
    name: str = ""
    priority: int = 0
    submitted_ms: int = 0
    requests: dict[RequestId, QueuedRequest] = {}


class RequestQueue:
    """Requests that wait, the next one to serve first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Place, QueuedRequest]] = []  # includes requests that were removed
        self._waiting: dict[Place, QueuedRequest] = {}
        self.version = 0  # grows with each change

    def __len__(self) -> int:
        return len(self._waiting)

    def remembered(self) -> int:
        """Return the number of stored places, including those of removed requests; 0 once no request waits."""
        return len(self._heap)

    def add(self, request: QueuedRequest) -> None:
        """Add a request at its place."""
        self.version += 1
        self._waiting[request.place] = request
        heappush(self._heap, (request.place, request))

    def remove(self, place: Place) -> None:
        """Remove the request at that place. Harmless if there is none."""
        if self._waiting.pop(place, None) is None:
            return
        self.version += 1
        if len(self._heap) >= 2 * len(self._waiting):
            self._heap = list(self._waiting.items())
            heapify(self._heap)

    def head(self) -> QueuedRequest | None:
        """Return the request that is served next."""
        while self._heap:
            place, request = self._heap[0]
            if self._waiting.get(place) is request:
                return request
            heappop(self._heap)
        return None

    def replace(self, requests: Iterable[QueuedRequest]) -> None:
        """Replace the whole queue by these."""
        self.version += 1
        self._waiting = {request.place: request for request in requests}
        self._heap = list(self._waiting.items())
        heapify(self._heap)

    def __contains__(self, place: Place) -> bool:
        return place in self._waiting

    def all(self) -> list[QueuedRequest]:
        """Return all requests, in no particular order."""
        return list(self._waiting.values())

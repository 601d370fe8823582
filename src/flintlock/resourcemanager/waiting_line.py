"""The queue for slots: requests in the order in which they are served.

Whoever leaves from the middle is only marked, and dropped when the queue comes across it, or with all others of its
kind once they are many: jobs may come and go while the head waits for days.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from msgspec import Struct

from flintlock.model.ids import JobId, RequestId
from flintlock.model.slots import SlotGrant, SlotRequest

Place: TypeAlias = tuple[int, int, int]
"""Priority (negated: the highest goes first), number of the job, number of the request. No two have the same."""


class Request(Struct, eq=False):
    """A request in force. It waits while `grant` is None."""

    job_id: JobId
    wish: SlotRequest
    place: Place
    since_ms: int
    grant: SlotGrant | None = None
    told: bool = False  # that nobody can ever serve it


class Job(Struct):
    """A job that wants something."""

    number: int
    name: str = ""
    priority: int = 0
    requests: dict[RequestId, Request] = {}


class WaitingLine:
    """Requests that wait, the next one first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Place, Request]] = []  # those who left among them
        self._waiting: dict[Place, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def remembered(self) -> int:
        """Return how many places are remembered, of some who have gone too; none once nobody waits."""
        return len(self._heap)

    def enter(self, request: Request) -> None:
        """Let a request wait, in its place."""
        self._waiting[request.place] = request
        heappush(self._heap, (request.place, request))

    def leave(self, place: Place) -> None:
        """Let a request go, wherever it stands. Harmless if it is not here."""
        if self._waiting.pop(place, None) is not None and len(self._heap) >= 2 * len(self._waiting):
            self._heap = list(self._waiting.items())
            heapify(self._heap)

    def head(self) -> Request | None:
        """Return who is served next."""
        while self._heap:
            place, request = self._heap[0]
            if self._waiting.get(place) is request:
                return request
            heappop(self._heap)
        return None

    def replace(self, requests: Iterable[Request]) -> None:
        """Let these wait, and nobody else."""
        self._waiting = {request.place: request for request in requests}
        self._heap = list(self._waiting.items())
        heapify(self._heap)

    def __contains__(self, place: Place) -> bool:
        return place in self._waiting

    def all(self) -> list[Request]:
        """Return everybody, in no particular order."""
        return list(self._waiting.values())

    def in_order(self) -> list[Request]:
        """Return everybody, the next one first."""
        return [self._waiting[place] for place in sorted(self._waiting)]

"""The requests that wait for slots, in order, as others see them.

Describing them all takes long where many wait. So each one is described once, some hundred in one step of the loop, and
only for those who ask for the list: what needs no more than a number asks for that.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from flintlock.model.ids import JobId
from flintlock.model.slots import WaitingRequest
from flintlock.resourcemanager.request_queue import Place, QueuedJob, QueuedRequest, RequestQueue

_CLOCK_SET_MS: Final = 1000
_AT_ONCE: Final = 1000  # requests that are described in one step: some milliseconds


class WaitingList:
    """What waits in the queues of a SlotManager. It reads them, and changes nothing."""

    def __init__(
        self, jobs: Mapping[JobId, QueuedJob], queues: tuple[RequestQueue, ...], behind_streaming: RequestQueue
    ) -> None:
        self._jobs: Final = jobs
        self._queues: Final = queues
        self._behind_streaming: Final = behind_streaming
        self._known: dict[Place, WaitingRequest] = {}  # the requests that were described, by their places
        self._known_under: tuple[int, float] = (0, 0.0)  # the version of `behind_streaming`, and when the clock began
        self._listed: tuple[WaitingRequest, ...] | None = None  # all of them, in order; None: to be put together
        self._listed_version = 0
        self.described = 0  # how many requests so far

    @property
    def version(self) -> int:
        """Return what grows with each change of the queues."""
        return sum(queue.version for queue in self._queues)

    def in_order(self) -> list[QueuedRequest]:
        """Return the requests, the next one to serve first."""
        everything = (request for queue in self._queues for request in queue.all())
        return sorted(everything, key=lambda request: request.place)

    def describe(self, now_s: float, now_ms: int) -> tuple[WaitingRequest, ...]:
        """Return the requests, in order. The wall clock shows `now_ms`, whatever it showed before."""
        for _ in self.describe_some(now_s, now_ms):
            continue
        if self._listed is None or self._listed_version != self.version:
            places = [request.place for request in self.in_order()]
            if len(self._known) > 2 * len(places):  # most have left the queue
                self._known = {place: self._known[place] for place in places}
            self._listed, self._listed_version = tuple([self._known[place] for place in places]), self.version
        return self._listed

    def describe_some(self, now_s: float, now_ms: int) -> Iterator[None]:
        """Describe the requests that are not described yet; yields after each bounded part of the work."""
        began_ms = now_ms - now_s * 1000
        version, known_began_ms = self._known_under
        if version != self._behind_streaming.version or abs(known_began_ms - began_ms) >= _CLOCK_SET_MS:
            self._known, self._known_under, self._listed = {}, (self._behind_streaming.version, began_ms), None
        if self._listed is not None and self._listed_version == self.version:
            return
        known = self._known
        for some in _parts([each for queue in self._queues for each in queue.all() if each.place not in known]):
            for request in some:
                job = self._jobs.get(request.job_id)
                if job is not None:  # else it has left the queue since
                    known[request.place] = self._describe(request, job, began_ms)
            if len(some) == _AT_ONCE:
                yield

    def _describe(self, request: QueuedRequest, job: QueuedJob, began_ms: float) -> WaitingRequest:
        self.described += 1
        return WaitingRequest(
            job_id=request.job_id,
            request=request.spec.id,
            slots=request.spec.slots,
            resources=request.spec.resources,
            since_ms=round(began_ms + request.since_s * 1000),
            name=job.name,
            priority=job.priority,
            behind_streaming=request.place in self._behind_streaming and not request.spec.endless,
        )


def _parts(requests: Iterable[QueuedRequest]) -> Iterator[tuple[QueuedRequest, ...]]:
    """Yield the requests in parts of one step's work."""
    remaining = iter(requests)
    while part := tuple(islice(remaining, _AT_ONCE)):
        yield part

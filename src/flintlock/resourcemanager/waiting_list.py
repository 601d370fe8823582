"""The requests that wait for slots, in order, as others see them.

Sorting and describing them all takes a step of the loop that grows with the queue, so it is done once for each state of
the queue, and only for those who ask for the list: what needs no more than a number asks for that.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flintlock.model.ids import JobId
from flintlock.model.slots import WaitingRequest
from flintlock.resourcemanager.request_queue import QueuedJob, QueuedRequest, RequestQueue

_CLOCK_SET_MS: Final = 1000


class WaitingList:
    """What waits in the queues of a SlotManager. It reads them, and changes nothing."""

    def __init__(
        self, jobs: Mapping[JobId, QueuedJob], queues: tuple[RequestQueue, ...], behind_streaming: RequestQueue
    ) -> None:
        self._jobs: Final = jobs
        self._queues: Final = queues
        self._behind_streaming: Final = behind_streaming
        self._described: tuple[int, float, tuple[WaitingRequest, ...]] | None = None  # of a version, under a clock
        self.made = 0  # how often the list was made

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
        version, began_ms = self.version, now_ms - now_s * 1000
        known = self._described
        if known is not None and known[0] == version and abs(known[1] - began_ms) < _CLOCK_SET_MS:
            return known[2]
        self.made += 1
        described = tuple(self._describe(request, began_ms) for request in self.in_order())
        self._described = version, began_ms, described
        return described

    def _describe(self, request: QueuedRequest, began_ms: float) -> WaitingRequest:
        job = self._jobs[request.job_id]
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

"""The slots of one registered TaskManager: which are free, and what uses the others."""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.ids import AttemptId, JobId, RequestId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import AttemptSlots, TaskManagerRegistration
from flintlock.resourcemanager.capacity import Capacity, need
from flintlock.resourcemanager.request_queue import QueuedRequest


class Pool(Struct):
    """The slots of one registered TaskManager."""

    offer: TaskManagerRegistration
    whole: Capacity
    free: list[int]
    left: Resources
    idle_since_s: float
    ready: bool = True
    requests: dict[tuple[JobId, RequestId], QueuedRequest] = {}
    carried: dict[AttemptId, AttemptSlots] = {}  # runs since before this leader, and is not claimed yet
    heartbeat: int = 0  # the latest one: it lists what is carried

    def endless(self) -> Capacity:
        """Return what streaming queries use of it."""
        endless = [request for request in self.requests.values() if request.spec.endless]
        used = [(request.spec, len(request.grant.slots)) for request in endless if request.grant is not None]
        needs = [need(spec.resources, slots, self.whole) for spec, slots in used]
        return Capacity(
            sum(slots for _, slots in used), sum(one.cpu for one in needs), sum(one.memory for one in needs)
        )

    def take_resources(self, asked: Resources | None, slots: int) -> None:
        """Subtract what a request or an attempt takes with this many slots; a negative number returns it.

        A claimed attempt that has done its work has no slots any more, and takes nothing.
        """
        if not slots:
            return
        needed, sign = need(asked, abs(slots), self.whole), 1 if slots > 0 else -1
        self.left = Resources(cpu=self.left.cpu - sign * needed.cpu, memory=self.left.memory - sign * needed.memory)

    def uncarry(self, attempt: AttemptId) -> tuple[int, ...]:
        """Return what an attempt that is carried over takes of the TaskManager, and its slots."""
        item = self.carried.pop(attempt)
        self.take_resources(item.resources, -len(item.slots))
        return item.slots

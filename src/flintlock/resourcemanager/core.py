"""What a ResourceManager decides: which TaskManagers count, and who gets which of their slots.

Jobs wait in the order in which they first declared that they want something, and a job's own requests in the order in
which it declared them. Order is strict: the first request that somebody could serve waits for its slots, and nobody
overtakes it, so a large request is not starved by small ones. The exception is a request larger than any registered
TaskManager: it waits aside, in its place, until such a TaskManager comes.

Requests are levels, not events. A request stays in force until a declaration no longer holds it; if its TaskManager is
lost before that, it waits again, in its old place, and its job (which is told of the loss first) takes the new slots or
drops the request.

Messages may be late, and nothing in them tells which of two lives of a TaskManager is the younger: a registration that
was under way when its engine died may arrive after the next one. So a registration alone changes nothing. The first
heartbeat of that life does: only one whose registration was answered sends it, and it sends it at once.

This core changes in place: with ten thousand requests waiting, a copy for each event would be all that it does. It
takes time as data, and gives back what others have to be told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from msgspec import Struct, structs

from flintlock.model.errors import NotFound, Refused
from flintlock.model.ids import InstanceId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    AllocatedSlot,
    Heartbeat,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerInfo,
    TaskManagerLost,
    TaskManagerRegistration,
    WaitingRequest,
)
from flintlock.resourcemanager.free_slots import FreeSlots

Word: TypeAlias = SlotGrant | TaskManagerLost
"""What a JobMaster is told. For one job, order matters: a loss comes before the grants that follow from it."""

_Place: TypeAlias = tuple[int, int]  # number of the job, number of the request

#: How many lives of one TaskManager are remembered that are over, or not yet begun.
_REMEMBERED_LIVES: Final = 8


class _TaskManager(Struct):
    """A registered TaskManager."""

    offer: TaskManagerRegistration
    heard_s: float
    free: list[int]
    engine_ready: bool = True
    requests: dict[_Place, _Request] = {}


class _Request(Struct):
    """A request in force. It waits while `grant` is None."""

    job_id: JobId
    wish: SlotRequest
    place: _Place
    since_ms: int
    grant: SlotGrant | None = None
    withdrawn: bool = False  # no longer in force; the queue drops it when it comes across it


class _Job(Struct):
    """A job that wants something."""

    number: int
    requests: dict[RequestId, _Request] = {}


class ResourceManagerCore:
    """Equal calls in equal order give equal answers."""

    def __init__(self, versions: Versions, heartbeat_timeout_s: float) -> None:
        self._versions: Final = versions
        self._timeout_s: Final = heartbeat_timeout_s
        self._task_managers: dict[TaskManagerId, _TaskManager] = {}
        self._offers: dict[
            TaskManagerId, dict[InstanceId, TaskManagerRegistration]
        ] = {}  # emptied by a first heartbeat
        self._over: dict[TaskManagerId, deque[InstanceId]] = {}  # lives that ended; known for late messages of them
        self._silent: dict[TaskManagerId, InstanceId] = {}  # given up for silence: may come back before its successor
        self._free: Final = FreeSlots()
        self._jobs: dict[JobId, _Job] = {}  # entered by the first declaration, left by an empty one
        self._numbers = 0
        self._queue: list[tuple[_Place, _Request]] = []  # a heap; holds every request that waits, and withdrawn ones
        self._aside: list[tuple[_Place, _Request]] = []  # waiting for a larger TaskManager than there is
        self._withdrawn = 0  # how many in both lists are
        self._largest = 0  # slots of the largest registered TaskManager

    # TaskManagers

    def register(self, offer: TaskManagerRegistration, now_s: float) -> None:
        """Take an offer. It counts, and replaces the life before it, from its first heartbeat on.

        Raises Refused if its versions are not the cluster's, or if this life of it is over: it has said good-bye, or
        another has registered since. One that was only silent may come back.
        """
        self._check(offer)
        known = self._task_managers.get(offer.id)
        if known is not None and known.offer.instance == offer.instance:
            known.heard_s = now_s
            return
        offers = self._offers.setdefault(offer.id, {})
        offers[offer.instance] = offer
        while len(offers) > _REMEMBERED_LIVES:
            del offers[next(iter(offers))]

    def heartbeat(self, message: Heartbeat, now_s: float) -> tuple[bool, list[Word]]:
        """Note a sign of life. False: this life of that TaskManager is not known here."""
        words = self._admit(message, now_s)
        task_manager = self._known(message)
        if task_manager is None:
            return False, []
        task_manager.heard_s = now_s
        hardware = structs.replace(task_manager.offer.hardware, free_memory=message.free_memory)
        task_manager.offer = structs.replace(task_manager.offer, hardware=hardware)
        if task_manager.engine_ready != message.engine_ready:
            task_manager.engine_ready = message.engine_ready
            self._index(task_manager)
        return True, words + self._allocate()

    def unregister(self, message: Heartbeat) -> list[Word]:
        """Let a TaskManager go that says good-bye. What it said before and arrives later is not heard any more."""
        self._bury(message.id, message.instance)
        task_manager = self._known(message)
        if task_manager is None:
            return []
        return [*self._lose(task_manager, "it has shut down"), *self._allocate()]

    def hear_silence(self, now_s: float) -> list[Word]:
        """Give up all TaskManagers that were silent for too long."""
        silent = [tm for tm in self._task_managers.values() if now_s - tm.heard_s > self._timeout_s]
        words: list[Word] = []
        for task_manager in silent:
            words += self._lose(task_manager, f"it was silent for {now_s - task_manager.heard_s:.1f} s")
            self._silent[task_manager.offer.id] = task_manager.offer.instance
        return words + self._allocate() if silent else words

    def next_silence_s(self, now_s: float) -> float:
        """Return for how long from now nobody can become too silent."""
        heard_s = min((tm.heard_s for tm in self._task_managers.values()), default=now_s)
        return max(heard_s + self._timeout_s - now_s, 0.0)

    def address(self, task_manager: TaskManagerId) -> str:
        """Return where a TaskManager is. Raises NotFound."""
        known = self._task_managers.get(task_manager)
        if known is None:
            raise NotFound(f"TaskManager {task_manager!r} is not registered")
        return known.offer.address

    def addresses(self) -> list[str]:
        """Return where all TaskManagers are, those with a working engine first."""
        by_readiness = sorted(self._task_managers.values(), key=lambda tm: not tm.engine_ready)
        return [tm.offer.address for tm in by_readiness]

    def is_registered(self, message: Heartbeat) -> bool:
        """Tell whether this life of that TaskManager counts."""
        return self._known(message) is not None

    # Jobs

    def declare(self, requirements: ResourceRequirements, now_ms: int) -> list[Word]:
        """Replace all that a job wants. What is in both keeps its slots or its place."""
        job = self._jobs.get(requirements.job_id)
        if job is None:
            if not requirements.requests:
                return []
            job = self._jobs[requirements.job_id] = _Job(number=self._number())
        wishes = {wish.id: wish for wish in requirements.requests}
        for request in [known for known in job.requests.values() if wishes.get(known.wish.id) != known.wish]:
            del job.requests[request.wish.id]
            self._withdraw(request)
        for wish in wishes.values():
            if wish.id in job.requests:
                continue
            place = (job.number, self._number())
            request = _Request(requirements.job_id, wish, place, now_ms)
            job.requests[wish.id] = request
            heappush(self._queue, (place, request))
        if not job.requests:
            del self._jobs[requirements.job_id]
        return self._allocate()

    def is_granted(self, grant: SlotGrant) -> bool:
        """Tell whether a grant still stands."""
        job = self._jobs.get(grant.job_id)
        request = None if job is None else job.requests.get(grant.request)
        return request is not None and request.grant is grant

    def queue_length(self) -> int:
        """Return how many places are remembered, of some who have gone too; none once nobody waits."""
        return len(self._queue) + len(self._aside)

    # What others see

    def overview(self, now_s: float, now_ms: int) -> ResourceOverview:
        """Return all TaskManagers, and who waits, in order."""
        waiting = sorted(
            (request for job in self._jobs.values() for request in job.requests.values() if request.grant is None),
            key=lambda request: request.place,
        )
        return ResourceOverview(
            task_managers=tuple(_info(tm, now_s, now_ms) for tm in self._task_managers.values()),
            waiting=tuple(
                WaitingRequest(
                    job_id=request.job_id,
                    request=request.wish.id,
                    slots=request.wish.slots,
                    since_ms=request.since_ms,
                )
                for request in waiting
            ),
        )

    # Inside

    def _check(self, offer: TaskManagerRegistration) -> None:
        theirs, ours = offer.versions, self._versions
        if theirs != ours:
            raise Refused(
                f"TaskManager {offer.id!r} does not fit this cluster: it runs {_versions(theirs)}, "
                f"the JobManager {_versions(ours)}"
            )
        if offer.slots < 1:
            raise Refused(f"TaskManager {offer.id!r} offers {offer.slots} slots; it needs at least one")
        if offer.instance in self._over.get(offer.id, ()):
            raise Refused(f"instance {offer.instance} of TaskManager {offer.id!r} is over: it must register as another")

    def _admit(self, message: Heartbeat, now_s: float) -> list[Word]:
        """Let a TaskManager begin the life that it has registered, in the place of its former one."""
        offer = self._offers.get(message.id, {}).pop(message.instance, None)
        if offer is None:
            return []
        words: list[Word] = []
        former = self._task_managers.get(offer.id)
        if former is not None:
            words = self._lose(former, "a newer instance of it has registered")
            self._bury(offer.id, former.offer.instance)
        silent = self._silent.pop(offer.id, offer.instance)
        if silent != offer.instance:
            self._bury(offer.id, silent)
        self._task_managers[offer.id] = task_manager = _TaskManager(
            offer=offer, heard_s=now_s, free=list(range(offer.slots))
        )
        self._index(task_manager)
        self._size_changed()
        return words

    def _known(self, message: Heartbeat) -> _TaskManager | None:
        task_manager = self._task_managers.get(message.id)
        if task_manager is None or task_manager.offer.instance != message.instance:
            return None
        return task_manager

    def _lose(self, task_manager: _TaskManager, reason: str) -> list[Word]:
        """Forget a TaskManager; return what each job that held slots of it is told, once."""
        offer = task_manager.offer
        del self._task_managers[offer.id]
        self._free.remove(offer.id)
        self._size_changed()
        for place, request in task_manager.requests.items():
            request.grant = None
            heappush(self._queue, (place, request))
        jobs = dict.fromkeys(request.job_id for request in task_manager.requests.values())
        return [
            TaskManagerLost(job_id=job_id, task_manager=offer.id, instance=offer.instance, reason=reason)
            for job_id in jobs
        ]

    def _bury(self, task_manager: TaskManagerId, instance: InstanceId) -> None:
        self._offers.get(task_manager, {}).pop(instance, None)
        self._over.setdefault(task_manager, deque(maxlen=_REMEMBERED_LIVES)).append(instance)

    def _withdraw(self, request: _Request) -> None:
        request.withdrawn = True
        if request.grant is None:
            self._withdrawn += 1
            return
        task_manager = self._task_managers[request.grant.task_manager]
        task_manager.free += request.grant.slots
        del task_manager.requests[request.place]
        request.grant = None
        self._index(task_manager)

    def _allocate(self) -> list[Word]:
        """Serve the queue, from its head, for as long as the head can be served."""
        grants: list[Word] = []
        while self._queue and self._task_managers:
            place, request = self._queue[0]
            if request.withdrawn:
                heappop(self._queue)
                self._withdrawn -= 1
            elif request.wish.slots is not None and request.wish.slots > self._largest:
                self._aside.append(heappop(self._queue))
            elif (found := self._free.find(request.wish)) is not None:
                heappop(self._queue)
                grants.append(self._grant(request, place, *found))
            else:
                break
        self._compact()
        return grants

    def _grant(self, request: _Request, place: _Place, task_manager_id: TaskManagerId, slots: int) -> SlotGrant:
        task_manager = self._task_managers[task_manager_id]
        task_manager.free.sort()
        taken, task_manager.free = task_manager.free[:slots], task_manager.free[slots:]
        offer = task_manager.offer
        request.grant = SlotGrant(
            job_id=request.job_id,
            request=request.wish.id,
            task_manager=offer.id,
            instance=offer.instance,
            address=offer.address,
            slots=tuple(taken),
        )
        task_manager.requests[place] = request
        self._index(task_manager)
        return request.grant

    def _index(self, task_manager: _TaskManager) -> None:
        offer = task_manager.offer
        if task_manager.engine_ready:
            self._free.put(offer.id, free=len(task_manager.free), total=offer.slots)
        else:
            self._free.remove(offer.id)

    def _size_changed(self) -> None:
        """Let those who waited aside back into the queue if one of them may fit now."""
        largest = max((tm.offer.slots for tm in self._task_managers.values()), default=0)
        if largest > self._largest and self._aside:
            self._queue += self._aside
            self._aside.clear()
            heapify(self._queue)
        self._largest = largest

    def _compact(self) -> None:
        """Drop those who no longer wait, once they are many: jobs may come and go while the head waits for days."""
        if self._withdrawn and self._withdrawn * 2 >= self.queue_length():
            self._queue = [entry for entry in self._queue if not entry[1].withdrawn]
            self._aside = [entry for entry in self._aside if not entry[1].withdrawn]
            heapify(self._queue)
            self._withdrawn = 0

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _info(task_manager: _TaskManager, now_s: float, now_ms: int) -> TaskManagerInfo:
    offer = task_manager.offer
    return TaskManagerInfo(
        id=offer.id,
        instance=offer.instance,
        address=offer.address,
        slots=offer.slots,
        free_slots=len(task_manager.free),
        last_heartbeat_ms=now_ms - round((now_s - task_manager.heard_s) * 1000),
        hardware=offer.hardware,
        engine=offer.engine,
        allocated=_allocated(task_manager.requests.values()),
    )


def _allocated(requests: Iterable[_Request]) -> tuple[AllocatedSlot, ...]:
    slots: dict[JobId, int] = {}
    for request in requests:
        if request.grant is not None:
            slots[request.job_id] = slots.get(request.job_id, 0) + len(request.grant.slots)
    return tuple(AllocatedSlot(job_id=job_id, slots=count) for job_id, count in slots.items())


def _versions(versions: Versions) -> str:
    return f"Flintlock {versions.flintlock}, Python {versions.python}, PySpark {versions.pyspark}"

"""Who gets which slots: the queue of requests, and the TaskManagers that serve it.

Requests are served by priority, the highest first. Among jobs of one priority the one that first declared that it wants
something goes first, and a job's own requests in the order in which it declared them. Order is strict: the first
request that somebody could serve waits for its slots, and nobody overtakes it, so a large request is not starved by
small ones. The exception is a request that no registered TaskManager could serve even when idle: it waits aside, in
its place, until such a TaskManager comes. If none is to be expected, its job is told so, once (`NoResources`): in
standalone mode when the cluster had its time to start up, in active mode when a fresh worker would not do either. A
TaskManager that was lost is given the same time to come back.

Requests are levels, not events. A request stays in force until a declaration no longer holds it; if its TaskManager is
lost before that, it waits again, in its old place, and its job (which is told of the loss first) takes the new slots or
drops the request.

After a change of leader, TaskManagers bring along what they run. Its slots are nobody's until a JobMaster claims them:
a claim waits for that one TaskManager, outside of the queue. What is not claimed is ended by its TaskManager, as nobody
wants it, and its slots are free then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from flintlock.model.errors import InvariantBroken, Refused
from flintlock.model.ids import AttemptId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import (
    AllocatedSlot,
    AttemptSlots,
    NoResources,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerRegistration,
    WaitingRequest,
)
from flintlock.resourcemanager.capacity import (
    Capacity,
    Kinds,
    asked_for,
    capacity_of,
    could_serve,
    need,
    room_for,
    total,
)
from flintlock.resourcemanager.demand import missing_workers
from flintlock.resourcemanager.free_slots import FreeSlots
from flintlock.resourcemanager.waiting_line import Job, Request, WaitingLine


class SlotRules(Struct, frozen=True, kw_only=True):
    """How slots are given out, as configured."""

    spread: bool = False  # over all TaskManagers, instead of filling one before the next
    most: Capacity = Capacity(0)  # of all TaskManagers together; 0: no limit
    patience_s: float = 30.0  # how long TaskManagers may take to come, or to come back
    fresh: Capacity | None = None  # what a worker has that could be started; None: nobody starts any


class Counts(Struct, frozen=True, kw_only=True):
    """Totals."""

    task_managers: int = 0
    slots: int = 0
    free_slots: int = 0
    waiting: int = 0


class _Pool(Struct):
    """The slots of one registered TaskManager."""

    offer: TaskManagerRegistration
    whole: Capacity
    free: list[int]
    left: Resources
    idle_since_s: float
    ready: bool = True
    requests: dict[tuple[JobId, RequestId], Request] = {}
    brought: dict[AttemptId, tuple[int, ...]] = {}  # what runs in it since before, and nobody has claimed yet


class SlotManager:
    """Equal calls in equal order give equal answers. Decisions are made by `allocate`, whatever led to them."""

    def __init__(self, rules: SlotRules) -> None:
        self._rules: Final = rules
        self._pools: dict[TaskManagerId, _Pool] = {}
        self._kinds: Final = Kinds()
        self._free: Final = FreeSlots(spread=rules.spread)
        self._jobs: dict[JobId, Job] = {}  # entered by the first declaration, left by an empty one
        self._numbers = 0
        self._queue: Final = WaitingLine()
        self._aside: Final = WaitingLine()  # those whom no registered TaskManager could serve
        self._claims: dict[TaskManagerId, list[Request]] = {}  # they wait for one TaskManager, in no queue
        self._untold: list[Request] = []  # of those, whose jobs may have to be told; emptied once patience is over
        self._patient_until_s = math.inf

    # TaskManagers

    def begin(self, now_s: float) -> None:
        """Count the time that TaskManagers may take to come."""
        self._patient_until_s = now_s + self._rules.patience_s

    def check_room(self, offer: TaskManagerRegistration) -> None:
        """Raise Refused if the cluster may not have as much as it would have with this TaskManager."""
        most = self._rules.most
        with_it = self._total_with(capacity_of(offer), besides=offer.id)
        if most.slots and with_it.slots > most.slots:
            what = f"{with_it.slots} slots; slotmanager.number-of-slots.max is {most.slots}"
        elif most.cpu and with_it.cpu > most.cpu:
            what = f"{with_it.cpu:g} cores; slotmanager.max-total-resource.cpu is {most.cpu:g}"
        elif most.memory and with_it.memory > most.memory:
            what = f"{with_it.memory} bytes of memory; slotmanager.max-total-resource.memory is {most.memory}"
        else:
            return
        raise Refused(f"with TaskManager {offer.id!r} the cluster would have {what}")

    def add(self, offer: TaskManagerRegistration, now_s: float, brings: Iterable[AttemptSlots] = ()) -> None:
        """Take in a TaskManager, its slots free but for those that hold what it brings along."""
        whole = capacity_of(offer)
        left = Resources(cpu=whole.cpu, memory=whole.memory)
        brought = {held.attempt: held.slots for held in brings}
        taken = {slot for slots in brought.values() for slot in slots}
        free = [slot for slot in range(offer.slots) if slot not in taken]
        pool = _Pool(offer, whole, free, left, now_s, brought=brought)
        self._pools[offer.id] = pool
        self._index(pool)
        if self._kinds.add(whole) or len(self._pools) == 1:
            self._sort_out()

    def remove(self, task_manager: TaskManagerId, now_s: float) -> list[JobId]:
        """Forget a TaskManager; return the jobs that held slots of it, each once. Their requests wait again."""
        pool = self._pools.pop(task_manager)
        self._free.remove(task_manager)
        if self._patient_until_s < math.inf:
            self._patient_until_s = max(self._patient_until_s, now_s + self._rules.patience_s)
        for request in pool.requests.values():
            request.grant = None
            self._wait(request)
        if self._kinds.remove(pool.whole) or not self._pools:
            self._sort_out()
        return list(dict.fromkeys(job_id for job_id, _ in pool.requests))

    def release_brought(self, task_manager: TaskManagerId, reported: Iterable[AttemptSlots]) -> bool:
        """Free the slots of what was brought along, never claimed, and has ended. True if there was any."""
        pool = self._pools[task_manager]
        if not pool.brought:
            return False
        here = {item.attempt for item in reported}
        ended = [attempt for attempt in pool.brought if attempt not in here]
        for attempt in ended:
            pool.free += pool.brought.pop(attempt)
        if ended:
            self._index(pool)
        return bool(ended)

    def serve_claims(self) -> list[SlotGrant | NoResources]:
        """Give those who claim an attempt its slots, or tell them that it is not where it was."""
        words: list[SlotGrant | NoResources] = []
        for name in [name for name in self._claims if name in self._pools]:
            words += [self._claimed(request, self._pools[name]) for request in self._claims.pop(name)]
        return words

    def holders(self, task_manager: TaskManagerId) -> set[JobId]:
        """Return the jobs that hold slots of a TaskManager."""
        pool = self._pools.get(task_manager)
        return set() if pool is None else {job_id for job_id, _ in pool.requests}

    def set_ready(self, task_manager: TaskManagerId, ready: bool) -> bool:
        """Note whether its engine works: only then its slots are given out. True if that is news."""
        pool = self._pools[task_manager]
        if pool.ready is ready:
            return False
        pool.ready = ready
        self._index(pool)
        return True

    def idle_since_s(self, task_manager: TaskManagerId) -> float | None:
        """Return since when nobody has slots of it; None if somebody has, or if it is not registered."""
        pool = self._pools.get(task_manager)
        return None if pool is None or pool.requests else pool.idle_since_s

    def is_ready(self, task_manager: TaskManagerId) -> bool:
        """Tell whether its engine works."""
        return self._pools[task_manager].ready

    # Jobs

    def declare(self, requirements: ResourceRequirements, now_ms: int, now_s: float) -> None:
        """Replace all that a job wants. What is in both keeps its slots or its place."""
        job = self._jobs.get(requirements.job_id)
        if job is None:
            if not requirements.requests:
                return
            job = self._jobs[requirements.job_id] = Job(self._number(), requirements.name, requirements.priority)
        job.name = requirements.name
        wishes = {wish.id: wish for wish in requirements.requests}
        for request in [known for known in job.requests.values() if wishes.get(known.wish.id) != known.wish]:
            del job.requests[request.wish.id]
            self._withdraw(request, now_s)
        if job.priority != requirements.priority:
            self._reorder(job, requirements.priority)
        for wish in wishes.values():
            if wish.id not in job.requests:
                place = (-job.priority, job.number, self._number())
                request = job.requests[wish.id] = Request(requirements.job_id, wish, place, now_ms)
                self._wait(request)
        if not job.requests:
            del self._jobs[requirements.job_id]

    def allocate(self) -> list[SlotGrant]:
        """Serve the queue, from its head, for as long as the head can be served."""
        grants: list[SlotGrant] = []
        while (request := self._queue.head()) is not None:
            found = self._free.find(request.wish)
            if found is None:
                break
            self._queue.leave(request.place)
            grants.append(self._grant(request, *found))
        return grants

    def give_up(self, now_s: float) -> list[NoResources]:
        """Return the requests, each once, that can never be served and whose jobs do not know it yet."""
        if not self._untold or now_s < self._patient_until_s:
            return []
        untold, self._untold = self._untold, []
        hopeless = sorted(
            (request for request in untold if not request.told and self._aside_still(request)),
            key=lambda request: request.place,
        )
        for request in hopeless:
            request.told = True
        return [
            NoResources(job_id=request.job_id, request=request.wish.id, reason=self._reason(request.wish))
            for request in hopeless
        ]

    def next_give_up_s(self) -> float:
        """Return when `give_up` has to be asked again, at the latest."""
        return self._patient_until_s if self._untold else math.inf

    def is_granted(self, grant: SlotGrant) -> bool:
        """Tell whether a grant still stands."""
        job = self._jobs.get(grant.job_id)
        request = None if job is None else job.requests.get(grant.request)
        return request is not None and request.grant is grant

    # What others see

    def counts(self) -> Counts:
        """Return the totals."""
        pools = self._pools.values()
        return Counts(
            task_managers=len(pools),
            slots=sum(pool.whole.slots for pool in pools),
            free_slots=sum(len(pool.free) for pool in pools),
            waiting=len(self._queue) + len(self._aside),
        )

    def remembered(self) -> int:
        """Return how many places are remembered, of some who have gone too; none once nobody waits."""
        return self._queue.remembered() + self._aside.remembered()

    def waiting(self) -> tuple[WaitingRequest, ...]:
        """Return who waits, in order."""
        return tuple(
            WaitingRequest(
                job_id=request.job_id,
                request=request.wish.id,
                slots=request.wish.slots,
                since_ms=request.since_ms,
                name=self._jobs[request.job_id].name,
                priority=self._jobs[request.job_id].priority,
            )
            for request in self._all_waiting()
        )

    def use_of(self, task_manager: TaskManagerId) -> tuple[int, Resources, tuple[AllocatedSlot, ...]]:
        """Return a TaskManager's free slots and resources, and each job's share."""
        pool = self._pools[task_manager]
        slots: dict[JobId, int] = {}
        for (job_id, _), request in pool.requests.items():
            slots[job_id] = slots.get(job_id, 0) + (len(request.grant.slots) if request.grant is not None else 0)
        shares = tuple(AllocatedSlot(job_id=job_id, slots=count) for job_id, count in slots.items())
        return len(pool.free), pool.left, shares

    # For whoever starts workers

    def missing_workers(self, coming: int, at_most: int) -> int:
        """Return how many workers more would serve who waits now, beside what is free and `coming` that were started.

        The queue is served, in thought, by the same rules as in earnest. Never more than `at_most`, or than the
        limits of the cluster allow.
        """
        fresh = self._rules.fresh
        if fresh is None or at_most <= 0 or not (self._queue or self._aside):
            return 0
        there = total([*(pool.whole for pool in self._pools.values()), *[fresh] * coming])
        return missing_workers(
            self._all_waiting(),
            self._free.copy(),
            fresh,
            coming=coming,
            at_most=min(at_most, room_for(fresh, there, self._rules.most)),
            blocks=lambda request: request.place in self._queue,
        )

    # Inside

    def _claimed(self, request: Request, pool: _Pool) -> SlotGrant | NoResources:
        claim = request.wish.claim
        if claim is None:
            raise InvariantBroken(f"request {request.wish.id} of job {request.job_id} claims nothing")
        if claim.instance != pool.offer.instance or claim.attempt not in pool.brought:
            reason = f"TaskManager {claim.task_manager} has come back without the task"
            return NoResources(job_id=request.job_id, request=request.wish.id, reason=reason)
        return self._give(request, pool, pool.brought.pop(claim.attempt))

    def _wait(self, request: Request) -> None:
        if request.wish.claim is not None:
            self._claims.setdefault(request.wish.claim.task_manager, []).append(request)
        elif (not self._pools and self._rules.fresh is None) or self._kinds.could_serve(request.wish):
            self._queue.enter(request)
        else:
            self._set_aside(request)

    def _set_aside(self, request: Request) -> None:
        self._aside.enter(request)
        if not request.told:
            self._untold.append(request)

    def _aside_still(self, request: Request) -> bool:
        fresh = self._rules.fresh
        if fresh is not None and could_serve(fresh, request.wish):
            return False
        return request.place in self._aside and bool(self._pools or fresh is not None)

    def _sort_out(self) -> None:
        """Part those who wait for their turn from those who wait for another TaskManager."""
        waiting = [*self._queue.all(), *self._aside.all()]
        self._queue.replace(())
        self._aside.replace(())
        self._untold = []
        for request in waiting:
            self._wait(request)

    def _withdraw(self, request: Request, now_s: float) -> None:
        if request.grant is None:
            self._queue.leave(request.place)
            self._aside.leave(request.place)
            self._unclaim(request)
            return
        pool = self._pools[request.grant.task_manager]
        self._use(pool, request, -len(request.grant.slots))
        pool.free += request.grant.slots
        del pool.requests[request.job_id, request.wish.id]
        pool.idle_since_s = now_s
        request.grant = None
        self._index(pool)

    def _unclaim(self, request: Request) -> None:
        claim = request.wish.claim
        if claim is None or request not in self._claims.get(claim.task_manager, ()):
            return
        self._claims[claim.task_manager].remove(request)
        if not self._claims[claim.task_manager]:
            del self._claims[claim.task_manager]

    def _grant(self, request: Request, task_manager: TaskManagerId, slots: int) -> SlotGrant:
        pool = self._pools[task_manager]
        pool.free.sort()
        taken, pool.free = pool.free[:slots], pool.free[slots:]
        return self._give(request, pool, tuple(taken))

    def _give(self, request: Request, pool: _Pool, slots: tuple[int, ...]) -> SlotGrant:
        self._use(pool, request, len(slots))
        request.grant = SlotGrant(
            job_id=request.job_id,
            request=request.wish.id,
            task_manager=pool.offer.id,
            instance=pool.offer.instance,
            address=pool.offer.address,
            slots=slots,
        )
        pool.requests[request.job_id, request.wish.id] = request
        self._index(pool)
        return request.grant

    def _use(self, pool: _Pool, request: Request, slots: int) -> None:
        """Take what the request needs with so many slots; a negative number gives it back."""
        needed, sign = need(request.wish, abs(slots), pool.whole), 1 if slots > 0 else -1
        pool.left = Resources(cpu=pool.left.cpu - sign * needed.cpu, memory=pool.left.memory - sign * needed.memory)

    def _index(self, pool: _Pool) -> None:
        if pool.ready:
            self._free.put(pool.offer.id, free=len(pool.free), left=pool.left, whole=pool.whole)
        else:
            self._free.remove(pool.offer.id)

    def _reorder(self, job: Job, priority: int) -> None:
        """Give a job's requests other places. New numbers, in the old order: no place is ever used twice."""
        job.priority = priority
        for request in sorted(job.requests.values(), key=lambda request: request.place):
            former, request.place = request.place, (-priority, job.number, self._number())
            for line in (self._queue, self._aside):
                if former in line:
                    line.leave(former)
                    line.enter(request)

    def _all_waiting(self) -> list[Request]:
        if not len(self._aside):
            return self._queue.in_order()
        return sorted([*self._queue.all(), *self._aside.all()], key=lambda request: request.place)

    def _reason(self, wish: SlotRequest) -> str:
        exists = f"registered: {self._kinds}" if self._pools else "no TaskManager is registered"
        if self._rules.fresh is not None:
            exists += f"; one that would be started has {self._rules.fresh}"
        return f"no TaskManager can ever serve it. Asked of one TaskManager: {asked_for(wish)}; {exists}"

    def _total_with(self, more: Capacity, besides: TaskManagerId | None = None) -> Capacity:
        return total([more, *(pool.whole for name, pool in self._pools.items() if name != besides)])

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

"""Allocation of slots: the queue of requests, and the TaskManagers that serve it.

Requests are served by priority, the highest first. Among jobs of one priority the one that was submitted first goes
first, whenever it declares its requests and whichever leader serves it, and a job's own requests in the order in which
it declared them. Order is strict: the first request that a registered TaskManager could serve waits for its slots, and
no other overtakes it, so a large request is not starved by small ones. Two kinds of requests wait apart, with their
places:

- Unservable: no registered TaskManager could serve it even when idle. It waits until such a TaskManager registers. If
  none is to be expected, its job is notified, once (`NoResources`): in standalone mode when the cluster had its time to
  start up, in active mode when a fresh worker could not serve it either. A TaskManager that was lost is given the same
  time to come back.
- Behind streaming: streaming queries use slots that it needs. They do not end by themselves, so all later jobs would
  wait with it for ever. It returns to the queue when such a query ends or a TaskManager registers. Only what ends
  overtakes it, and further queries of streaming jobs that run: another streaming job could keep it waiting for ever.

Requests are levels, not events. A request stays in force until a declaration no longer contains it; if its TaskManager
is lost before that, it waits again, at its old place, and its job (which is notified of the loss first) takes the new
slots or drops the request.

After a change of leader, TaskManagers report the attempts that they carry over. Their slots are reserved until a
JobMaster claims them: a claim waits for that one TaskManager, outside of the queue. What no JobMaster claims is
unwanted: its TaskManager cancels it, and its slots become free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from flintlock.model.errors import InvariantBroken, Refused
from flintlock.model.ids import AttemptId, JobId, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import (
    AllocatedSlot,
    AttemptSlots,
    NoResources,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.capacity import (
    Capacity,
    CapacityClasses,
    asked_for,
    capacity_of,
    could_become_free,
    could_serve,
    room_for,
    total,
)
from flintlock.resourcemanager.free_slots import FreeSlots
from flintlock.resourcemanager.pool import Pool
from flintlock.resourcemanager.request_queue import Place, QueuedJob, QueuedRequest, RequestQueue
from flintlock.resourcemanager.waiting_list import WaitingList
from flintlock.resourcemanager.workers import missing_workers


class SlotRules(Struct, frozen=True, kw_only=True):
    """How slots are allocated, as configured."""

    spread: bool = False  # over all TaskManagers, instead of filling one before the next
    limit: Capacity = Capacity(0)  # of all TaskManagers together; 0: no limit
    start_up_s: float = 30.0  # how long TaskManagers may take to register, or to register again
    fresh: Capacity | None = None  # of a worker that could be started; None: standalone mode


class Counts(Struct, frozen=True, kw_only=True):
    """Totals over all registered TaskManagers."""

    task_managers: int = 0
    slots: int = 0
    free_slots: int = 0
    waiting: int = 0


class SlotManager:
    """Equal calls in equal order give equal answers. Decisions are made by `allocate`, whatever led to them."""

    def __init__(self, rules: SlotRules) -> None:
        self._rules: Final = rules
        self._pools: dict[TaskManagerId, Pool] = {}
        self._classes: Final = CapacityClasses()
        self._free: Final = FreeSlots(spread=rules.spread)
        self._jobs: Final[dict[JobId, QueuedJob]] = {}  # added by the first declaration, removed by an empty one
        self._numbers = 0
        self._queue: Final = RequestQueue()
        self._unservable: Final = RequestQueue()  # requests that no registered TaskManager could serve
        self._behind_streaming: Final = RequestQueue()  # requests for slots that streaming queries use
        self.waiting: Final = WaitingList(self._jobs, self._queues(), self._behind_streaming)
        self._claims: dict[TaskManagerId, list[QueuedRequest]] = {}  # each waits for one TaskManager, in no queue
        self._unreported: list[QueuedRequest] = []  # unservable, their jobs not notified; emptied by give_up
        self._expected_until_s = math.inf

    # TaskManagers

    def begin(self, now_s: float) -> None:
        """Start the time that TaskManagers may take to register."""
        self._expected_until_s = now_s + self._rules.start_up_s

    def check_room(self, offer: TaskManagerRegistration) -> None:
        """Raise Refused if the cluster would exceed its limits with this TaskManager."""
        limit = self._rules.limit
        with_it = self._total_with(capacity_of(offer), besides=offer.id)
        if limit.slots and with_it.slots > limit.slots:
            what = f"{with_it.slots} slots; slotmanager.number-of-slots.max is {limit.slots}"
        elif limit.cpu and with_it.cpu > limit.cpu:
            what = f"{with_it.cpu:g} cores; slotmanager.max-total-resource.cpu is {limit.cpu:g}"
        elif limit.memory and with_it.memory > limit.memory:
            what = f"{with_it.memory} bytes of memory; slotmanager.max-total-resource.memory is {limit.memory}"
        else:
            return
        raise Refused(f"with TaskManager {offer.id!r} the cluster would have {what}")

    def add(
        self, offer: TaskManagerRegistration, now_s: float, carries: Iterable[AttemptSlots] = (), heartbeat: int = 0
    ) -> None:
        """Add a TaskManager; its slots are free except for those of the attempts that its heartbeat carries over."""
        whole = capacity_of(offer)
        left = Resources(cpu=whole.cpu, memory=whole.memory)
        carried = {item.attempt: item for item in carries}
        taken = {slot for item in carried.values() for slot in item.slots}
        free = [slot for slot in range(offer.slots) if slot not in taken]
        pool = Pool(offer, whole, free, left, now_s, carried=carried, heartbeat=heartbeat)
        for item in carried.values():
            pool.take_resources(item.resources, len(item.slots))
        self._pools[offer.id] = pool
        self._index(pool)
        self._queue_again()
        if self._classes.add(whole) or len(self._pools) == 1:
            self._reclassify()

    def remove(self, task_manager: TaskManagerId, now_s: float) -> list[JobId]:
        """Remove a TaskManager; return the jobs that had slots of it, each once. Their requests wait again."""
        pool = self._pools.pop(task_manager)
        self._free.remove(task_manager)
        if self._expected_until_s < math.inf:
            self._expected_until_s = max(self._expected_until_s, now_s + self._rules.start_up_s)
        for request in pool.requests.values():
            request.grant = None
            self._wait(request)
        self._queue_again()
        if self._classes.remove(pool.whole) or not self._pools:
            self._reclassify()
        return list(dict.fromkeys(job_id for job_id, _ in pool.requests))

    def release_carried(
        self, task_manager: TaskManagerId, reported: Iterable[AttemptSlots], heartbeat: int = 0
    ) -> bool:
        """Free the slots of attempts that were carried over, never claimed, and have ended. True if there were any."""
        pool = self._pools[task_manager]
        if heartbeat < pool.heartbeat:  # made before, and late: perhaps before what is carried had arrived there
            return False
        pool.heartbeat = heartbeat
        if not pool.carried:
            return False
        here = {item.attempt for item in reported}
        ended = [attempt for attempt in pool.carried if attempt not in here]
        for attempt in ended:
            pool.free += pool.uncarry(attempt)
        if ended:
            self._index(pool)
        return bool(ended)

    def find_carried(self, job_id: JobId) -> tuple[AttemptId, TaskManagerId] | None:
        """Return an attempt of a job that a TaskManager carries over and that no JobMaster has claimed, if any."""
        return next(
            (
                (attempt, name)
                for name, pool in self._pools.items()
                for attempt in pool.carried
                if attempt.job_id == job_id
            ),
            None,
        )

    def serve_claims(self) -> list[SlotGrant | NoResources]:
        """Grant claims of attempts that their TaskManager carries over, and reject the others."""
        messages: list[SlotGrant | NoResources] = []
        for name in [name for name in self._claims if name in self._pools]:
            pool, requests = self._pools[name], self._claims.pop(name)
            elsewhere = [request for request in requests if not _is_claimed_of(request, pool)]
            if elsewhere:  # another TaskManager has the same id
                self._claims[name] = elsewhere
            messages += [self._serve_claim(request, pool) for request in requests if request not in elsewhere]
        return messages

    def holders(self, task_manager: TaskManagerId) -> set[JobId]:
        """Return the jobs that have slots of a TaskManager."""
        pool = self._pools.get(task_manager)
        return set() if pool is None else {job_id for job_id, _ in pool.requests}

    def set_ready(self, task_manager: TaskManagerId, ready: bool) -> bool:
        """Record whether its engine works: only then its slots are allocated. True if that has changed."""
        pool = self._pools[task_manager]
        if pool.ready is ready:
            return False
        pool.ready = ready
        self._index(pool)
        return True

    def idle_since_s(self, task_manager: TaskManagerId) -> float | None:
        """Return since when no job has slots of it; None if one has, or if it is not registered."""
        pool = self._pools.get(task_manager)
        return None if pool is None or pool.requests else pool.idle_since_s

    def is_ready(self, task_manager: TaskManagerId) -> bool:
        """Return whether its engine works."""
        return self._pools[task_manager].ready

    # Jobs

    def declare(self, requirements: ResourceRequirements, now_s: float) -> None:
        """Replace all requests of a job. Those in both declarations keep their slots or their place."""
        job = self._jobs.get(requirements.job_id)
        if job is None:
            if not requirements.requests:
                return
            job = self._jobs[requirements.job_id] = QueuedJob(
                self._number(), requirements.name, requirements.priority, requirements.submitted_ms
            )
        job.name = requirements.name
        declared = {spec.id: spec for spec in requirements.requests}
        for request in [known for known in job.requests.values() if declared.get(known.spec.id) != known.spec]:
            del job.requests[request.spec.id]
            self._withdraw(request, now_s)
        if job.priority != requirements.priority:
            self._reorder(job, requirements.priority)
        for spec in declared.values():
            if spec.id not in job.requests:
                place = self._place(job)
                request = job.requests[spec.id] = QueuedRequest(requirements.job_id, spec, place, now_s)
                self._wait(request)
        if not job.requests:
            del self._jobs[requirements.job_id]

    def allocate(self) -> list[SlotGrant]:
        """Serve the queue, from its head, for as long as the head can be served."""
        grants: list[SlotGrant] = []
        while (request := self._queue.head()) is not None:
            waits = self._waits_its_turn(request)
            found = None if waits else self._free.find(request.spec)
            if found is None and not waits and self._could_become_free(request.spec):
                break
            self._queue.remove(request.place)
            if found is None:
                self._behind_streaming.add(request)
            else:
                grants.append(self._grant(request, *found))
        return grants

    def give_up(self, now_s: float) -> list[NoResources]:
        """Return a notification for each unservable request whose job was not notified yet, once the time is over."""
        if not self._unreported or now_s < self._expected_until_s:
            return []
        unreported, self._unreported = self._unreported, []
        expired = sorted(
            (request for request in unreported if not request.reported_unservable and self._is_unservable(request)),
            key=lambda request: request.place,
        )
        for request in expired:
            request.reported_unservable = True
        return [
            NoResources(job_id=request.job_id, request=request.spec.id, reason=self._unservable_reason(request.spec))
            for request in expired
        ]

    def next_give_up_s(self) -> float:
        """Return when `give_up` has to be called next, at the latest."""
        return self._expected_until_s if self._unreported else math.inf

    def is_granted(self, grant: SlotGrant) -> bool:
        """Return whether a grant was not withdrawn."""
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
            waiting=sum(len(queue) for queue in self._queues()),
        )

    def remembered(self) -> int:
        """Return the number of stored places, including those of removed requests; 0 once no request waits."""
        return sum(queue.remembered() for queue in self._queues())

    def use_of(self, task_manager: TaskManagerId) -> tuple[int, Resources, tuple[AllocatedSlot, ...]]:
        """Return a TaskManager's free slots and resources, and each job's share."""
        pool = self._pools[task_manager]
        slots: dict[JobId, int] = {}
        for (job_id, _), request in pool.requests.items():
            slots[job_id] = slots.get(job_id, 0) + (len(request.grant.slots) if request.grant is not None else 0)
        shares = tuple(AllocatedSlot(job_id=job_id, slots=count) for job_id, count in slots.items())
        return len(pool.free), pool.left, shares

    # For active mode

    def missing_workers(self, coming: int, at_most: int) -> int:
        """Return how many more workers the waiting requests need, beside free slots and `coming` started workers.

        Simulates allocation with the same rules as `allocate`. Never more than `at_most`, or than the limits of the
        cluster allow.
        """
        fresh = self._rules.fresh
        if fresh is None or at_most <= 0 or not any(self._queues()):
            return 0
        there = total([*(pool.whole for pool in self._pools.values()), *[fresh] * coming])
        return missing_workers(
            self.waiting.in_order(),
            self._free.copy(),
            fresh,
            coming=coming,
            at_most=min(at_most, room_for(fresh, there, self._rules.limit)),
            blocks=lambda request: request.place in self._queue,
        )

    # Inside

    def _serve_claim(self, request: QueuedRequest, pool: Pool) -> SlotGrant | NoResources:
        claim = request.spec.claim
        if claim is None:
            raise InvariantBroken(f"request {request.spec.id} of job {request.job_id} claims nothing")
        if claim.instance != pool.offer.instance or claim.attempt not in pool.carried:
            reason = f"TaskManager {claim.task_manager} has registered again without the task"
            return NoResources(job_id=request.job_id, request=request.spec.id, reason=reason)
        return self._assign(request, pool, pool.uncarry(claim.attempt), listed_by=pool.heartbeat)

    def _wait(self, request: QueuedRequest) -> None:
        if request.spec.claim is not None:
            self._claims.setdefault(request.spec.claim.task_manager, []).append(request)
        elif (not self._pools and self._rules.fresh is None) or self._classes.could_serve(request.spec):
            self._queue.add(request)
        else:
            self._add_unservable(request)

    def _add_unservable(self, request: QueuedRequest) -> None:
        self._unservable.add(request)
        if not request.reported_unservable:
            self._unreported.append(request)

    def _is_unservable(self, request: QueuedRequest) -> bool:
        fresh = self._rules.fresh
        if fresh is not None and could_serve(fresh, request.spec):
            return False
        return request.place in self._unservable and bool(self._pools or fresh is not None)

    def _waits_its_turn(self, request: QueuedRequest) -> bool:
        """Return whether a streaming query must not overtake what waits behind others: it would not end either.

        One whose job has slots already may: the job does its work only when all of its queries run.
        """
        first = self._behind_streaming.head()
        if not request.spec.endless or first is None or request.place < first.place:
            return False
        return not any(each.grant is not None for each in self._jobs[request.job_id].requests.values())

    def _could_become_free(self, spec: SlotRequest) -> bool:
        """Return whether a TaskManager could serve it once everything but streaming queries has ended."""
        if not self._pools:
            return True
        return any(could_become_free(pool.whole, pool.endless(), spec) for pool in self._pools.values())

    def _queue_again(self) -> None:
        """Let requests for slots that streaming queries used wait at their place again."""
        for request in self._behind_streaming.all():
            self._behind_streaming.remove(request.place)
            self._queue.add(request)

    def _reclassify(self) -> None:
        """Divide all waiting requests again into servable and unservable ones."""
        waiting = [request for queue in self._queues() for request in queue.all()]
        for queue in self._queues():
            queue.replace(())
        self._unreported = []
        for request in waiting:
            self._wait(request)

    def _withdraw(self, request: QueuedRequest, now_s: float) -> None:
        if request.grant is None:
            if request.place in self._behind_streaming:
                self._queue_again()
            for queue in self._queues():
                queue.remove(request.place)
            self._unclaim(request)
            return
        pool = self._pools[request.grant.task_manager]
        pool.take_resources(request.spec.resources, -len(request.grant.slots))
        pool.free += request.grant.slots
        del pool.requests[request.job_id, request.spec.id]
        pool.idle_since_s = now_s
        request.grant = None
        self._index(pool)
        if request.spec.endless:
            self._queue_again()

    def _unclaim(self, request: QueuedRequest) -> None:
        claim = request.spec.claim
        if claim is None or request not in self._claims.get(claim.task_manager, ()):
            return
        self._claims[claim.task_manager].remove(request)
        if not self._claims[claim.task_manager]:
            del self._claims[claim.task_manager]

    def _grant(self, request: QueuedRequest, task_manager: TaskManagerId, slots: int) -> SlotGrant:
        pool = self._pools[task_manager]
        pool.free.sort()
        taken, pool.free = pool.free[:slots], pool.free[slots:]
        return self._assign(request, pool, tuple(taken))

    def _assign(
        self, request: QueuedRequest, pool: Pool, slots: tuple[int, ...], listed_by: int | None = None
    ) -> SlotGrant:
        pool.take_resources(request.spec.resources, len(slots))
        request.grant = SlotGrant(
            job_id=request.job_id,
            request=request.spec.id,
            task_manager=pool.offer.id,
            instance=pool.offer.instance,
            address=pool.offer.address,
            slots=slots,
            listed_by=listed_by,
        )
        pool.requests[request.job_id, request.spec.id] = request
        self._index(pool)
        return request.grant

    def _index(self, pool: Pool) -> None:
        if pool.ready:
            self._free.put(pool.offer.id, free=len(pool.free), left=pool.left, whole=pool.whole)
        else:
            self._free.remove(pool.offer.id)

    def _reorder(self, job: QueuedJob, priority: int) -> None:
        """Move a job's requests to other places. New numbers, in the old order: no place is ever used twice."""
        job.priority = priority
        self._queue_again()
        for request in sorted(job.requests.values(), key=lambda request: request.place):
            former, request.place = request.place, self._place(job)
            for queue in self._queues():
                if former in queue:
                    queue.remove(former)
                    queue.add(request)

    def _place(self, job: QueuedJob) -> Place:
        return (-job.priority, job.submitted_ms, job.number, self._number())

    def _queues(self) -> tuple[RequestQueue, ...]:
        return self._queue, self._unservable, self._behind_streaming

    def _unservable_reason(self, spec: SlotRequest) -> str:
        exists = f"registered: {self._classes}" if self._pools else "no TaskManager is registered"
        if self._rules.fresh is not None:
            exists += f"; one that would be started has {self._rules.fresh}"
        return f"no TaskManager can ever serve it. Asked of one TaskManager: {asked_for(spec)}; {exists}"

    def _total_with(self, more: Capacity, besides: TaskManagerId | None = None) -> Capacity:
        return total([more, *(pool.whole for name, pool in self._pools.items() if name != besides)])

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _is_claimed_of(request: QueuedRequest, pool: Pool) -> bool:
    """Return whether a claim is one of the slots of the TaskManager at that address."""
    claim = request.spec.claim
    return claim is None or claim.address in ("", pool.offer.address)

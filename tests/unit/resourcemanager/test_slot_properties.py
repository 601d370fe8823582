"""Properties of slot allocation for any declarations of jobs and events of TaskManagers."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from flintlock.model.ids import InstanceId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import (
    Hardware,
    Heartbeat,
    NoResources,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerInfo,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.core import (
    ResourceManagerCore,
    ResourceManagerEffect,
    TaskManagerEntered,
    TaskManagerLeft,
)
from flintlock.resourcemanager.slot_manager import SlotRules
from flintlock.testing.samples import VERSIONS

JOBS = [JobId(letter * 32) for letter in "abcd"]
NAMES = [TaskManagerId(f"tm-{number}") for number in range(3)]
REQUESTS = st.builds(
    SlotRequest,
    id=st.sampled_from([RequestId(f"r{number}") for number in range(3)]),
    slots=st.none() | st.integers(1, 5),
    at_most=st.none() | st.integers(1, 5),
    resources=st.none()
    | st.builds(Resources, cpu=st.sampled_from([0.0, 0.5, 1.0, 3.0]), memory=st.sampled_from([0, 3, 9])),
    endless=st.sampled_from([False, False, True]),
)
TIMEOUT_S = 50.0
START_UP_S = 20.0
MEMORY = 12  # of each TaskManager


def offer_of(name: TaskManagerId, instance: InstanceId, slots: int) -> TaskManagerRegistration:
    """A TaskManager with as many cores as slots."""
    hardware = Hardware(cpu_cores=slots, physical_memory=MEMORY)
    return TaskManagerRegistration(
        id=name, instance=instance, address=f"{name}:1", slots=slots, versions=VERSIONS, hardware=hardware
    )


def wanted_slots(request: SlotRequest, total: int) -> int:
    """How many slots a request gets of a TaskManager with this many."""
    return request.slots if request.slots is not None else min(total, request.at_most or total)


def takes(request: SlotRequest, slots: int, total: int) -> tuple[float, int]:
    """Cores and memory that belong to the slots."""
    asked = request.resources or Resources()
    return asked.cpu or float(slots), asked.memory or MEMORY * slots // total


def fits(request: SlotRequest, total: int, free: int, used: tuple[float, int]) -> bool:
    """Whether a TaskManager with these slots, free slots and resources in use could serve a request."""
    slots = wanted_slots(request, total)
    if slots > free:
        return False
    cpu, memory = takes(request, slots, total)
    return used[0] + cpu <= total + 1e-6 and used[1] + memory <= MEMORY


class SlotAssignment(RuleBasedStateMachine):
    """TaskManagers register and are lost, jobs declare and withdraw; a model is built from what jobs are sent."""

    SPREAD = False

    def __init__(self) -> None:
        super().__init__()
        self.core = ResourceManagerCore(VERSIONS, TIMEOUT_S, SlotRules(start_up_s=START_UP_S, spread=self.SPREAD))
        self.core.slots.begin(0.0)
        self.now_s = 0.0
        self.patient_until_s = START_UP_S
        self.priorities: dict[JobId, int] = {}
        self.unservable: set[tuple[JobId, RequestId, SlotRequest]] = set()  # notified
        self.instances = 0
        self.machines: dict[TaskManagerId, tuple[InstanceId, int]] = {}  # registered: instance and slots
        self.heartbeat_s: dict[TaskManagerId, float] = {}
        self.ready: dict[TaskManagerId, bool] = {}
        self.declared: dict[JobId, dict[RequestId, SlotRequest]] = {}
        self.held: dict[tuple[JobId, RequestId], SlotGrant] = {}  # as sent to the jobs
        self.arrivals: list[JobId] = []  # jobs with requests, in order of their first declaration
        self.asked: list[tuple[JobId, RequestId]] = []  # requests in order of arrival

    # Events

    @rule(name=st.sampled_from(NAMES), slots=st.integers(1, 4), answered=st.sampled_from([True, True, True, False]))
    def register(self, name: TaskManagerId, slots: int, answered: bool) -> None:
        """A new incarnation of a TaskManager registers; from its first heartbeat on, the former is over."""
        self.instances += 1
        instance = InstanceId(f"instance-{self.instances}")
        offer = offer_of(name, instance, slots)
        before = self.machines.get(name)
        self.core.register(offer, self.now_s)
        if not answered:
            return
        known, effects = self.core.heartbeat(Heartbeat(id=name, instance=instance), self.now_s)
        assert known
        self.machines[name] = (instance, slots)
        self.heartbeat_s[name], self.ready[name] = self.now_s, True
        self.record(effects, {before[0]} if before else set())

    @rule(name=st.sampled_from(NAMES))
    def register_again(self, name: TaskManagerId) -> None:
        """The answer to a registration was lost, and it is repeated."""
        if name in self.machines:
            instance, slots = self.machines[name]
            self.core.register(offer_of(name, instance, slots), self.now_s)
            self.heartbeat_s[name] = self.now_s

    @rule(name=st.sampled_from(NAMES), engine_ready=st.booleans())
    def heartbeat(self, name: TaskManagerId, engine_ready: bool) -> None:
        if name not in self.machines:
            return
        message = Heartbeat(id=name, instance=self.machines[name][0], engine_ready=engine_ready)
        known, effects = self.core.heartbeat(message, self.now_s)
        assert known
        self.heartbeat_s[name], self.ready[name] = self.now_s, engine_ready
        self.record(effects, set())

    @rule(name=st.sampled_from(NAMES))
    def unregister(self, name: TaskManagerId) -> None:
        if name in self.machines:
            instance = self.machines.pop(name)[0]
            self.record(self.core.unregister(Heartbeat(id=name, instance=instance), self.now_s), {instance})

    @rule(seconds=st.floats(1.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        silent = [name for name in self.machines if self.now_s - self.heartbeat_s[name] > TIMEOUT_S]
        gone = {self.machines.pop(name)[0] for name in silent}
        self.record(self.core.on_tick(self.now_s), gone)

    @rule(
        job=st.sampled_from(JOBS),
        requests=st.lists(REQUESTS, max_size=3, unique_by=lambda request: request.id),
        priority=st.sampled_from([0, 0, 0, 5, -5]),
    )
    def declare(self, job: JobId, requests: list[SlotRequest], priority: int) -> None:
        before = self.declared.get(job, {})
        after = {request.id: request for request in requests}
        for request_id in before:
            if after.get(request_id) != before[request_id]:
                self.held.pop((job, request_id), None)
                self.asked.remove((job, request_id))
                self.unservable.discard((job, request_id, before[request_id]))
        self.asked += [(job, request.id) for request in requests if before.get(request.id) != request]
        if not after and job in self.arrivals:
            self.arrivals.remove(job)
        elif after and job not in self.arrivals:
            self.arrivals.append(job)
        self.declared[job] = after
        self.priorities[job] = priority
        requirements = ResourceRequirements(job_id=job, requests=tuple(requests), priority=priority)
        self.record(self.core.declare(requirements, self.now_s), set())

    @rule(job=st.sampled_from(JOBS))
    def declare_the_same_again(self, job: JobId) -> None:
        requests = tuple(self.declared.get(job, {}).values())
        requirements = ResourceRequirements(job_id=job, requests=requests, priority=self.priorities.get(job, 0))
        assert self.core.declare(requirements, self.now_s) == []

    # The model

    def record(self, effects: list[ResourceManagerEffect], gone: set[InstanceId]) -> None:
        """Record what is sent to jobs: each loss once, before the grants that follow from it."""
        effects = [effect for effect in effects if not isinstance(effect, TaskManagerEntered | TaskManagerLeft)]
        if gone:
            self.patient_until_s = max(self.patient_until_s, self.now_s + START_UP_S)
        holders = {(job, grant.instance) for (job, _), grant in self.held.items() if grant.instance in gone}
        losses = [(effect.job_id, effect.instance) for effect in effects if isinstance(effect, TaskManagerLost)]
        assert sorted(losses) == sorted(holders)
        for key in [key for key, grant in self.held.items() if grant.instance in gone]:
            del self.held[key]
        grants = [effect for effect in effects if isinstance(effect, SlotGrant)]
        assert effects[: len(losses)] == [effect for effect in effects if isinstance(effect, TaskManagerLost)]
        queue = self.queue()
        for grant in grants:
            key = (grant.job_id, grant.request)
            assert key == self.head(queue), "strictly in order"
            queue.remove(key)
            self.check_size(grant)
            self.held[key] = grant
        self.record_unservable([effect for effect in effects if isinstance(effect, NoResources)])

    def record_unservable(self, effects: list[NoResources]) -> None:
        """Exactly the unservable requests are reported, once, after the start-up time."""
        reported = {(effect.job_id, effect.request, self.declared[effect.job_id][effect.request]) for effect in effects}
        assert len(reported) == len(effects)
        assert not reported & self.unservable
        self.unservable |= reported
        if self.machines and self.now_s >= self.patient_until_s:
            due = {(*key, self.declared[key[0]][key[1]]) for key in self.queue() if not self.possible(*key)}
            assert due <= self.unservable
            assert reported <= due
        else:
            assert reported == set()

    def queue(self) -> list[tuple[JobId, RequestId]]:
        """The waiting requests: by the job's arrival, then by the request's."""
        return sorted(
            (key for key in self.asked if key not in self.held),
            key=lambda key: (-self.priorities[key[0]], self.arrivals.index(key[0]), self.asked.index(key)),
        )

    def possible(self, job: JobId, request_id: RequestId) -> bool:
        """Whether some registered TaskManager could serve it if it were empty."""
        request = self.declared[job][request_id]
        return any(fits(request, total, total, (0.0, 0)) for _, total in self.machines.values())

    def head(self, queue: list[tuple[JobId, RequestId]]) -> tuple[JobId, RequestId] | None:
        """The request that is served next: the first that can be, unless streaming queries use what it needs."""
        overtakes = False
        for job, request_id in queue:
            if not self.possible(job, request_id):
                continue
            runs = any(held == job for held, _ in self.held)
            if self.behind_streaming(job, request_id):
                overtakes = True
            elif not (overtakes and self.declared[job][request_id].endless and not runs):
                return job, request_id
        return None

    def behind_streaming(self, job: JobId, request_id: RequestId) -> bool:
        """Whether streaming queries use so much of every TaskManager that it cannot serve the request."""
        request = self.declared[job][request_id]
        return not any(self.fits_beside_streaming(request, name) for name in self.machines)

    def fits_beside_streaming(self, request: SlotRequest, name: TaskManagerId) -> bool:
        total = self.machines[name][1]
        endless = {key for key in self.held if self.declared[key[0]][key[1]].endless}
        free, used = self.free(name, endless), self.used(name, endless)
        exact = structs.replace(request, slots=request.slots or request.at_most)
        return fits(exact if free < total else request, total, free, used)

    def check_size(self, grant: SlotGrant) -> None:
        request = self.declared[grant.job_id][grant.request]
        instance, total = self.machines[grant.task_manager]
        assert grant.instance == instance
        assert self.ready[grant.task_manager]
        assert len(grant.slots) == wanted_slots(request, total)
        assert set(grant.slots) <= set(range(total))

    def free(self, name: TaskManagerId, held: Collection[tuple[JobId, RequestId]] | None = None) -> int:
        """Slots that are free; beside certain requests only, if these are given."""
        held = self.held if held is None else held
        taken = [len(self.held[key].slots) for key in held if self.held[key].task_manager == name]
        return self.machines[name][1] - sum(taken)

    def used(self, name: TaskManagerId, held: Collection[tuple[JobId, RequestId]] | None = None) -> tuple[float, int]:
        """Cores and memory in use; by certain requests, if these are given."""
        total = self.machines[name][1]
        shares = [
            takes(self.declared[job][request], len(grant.slots), total)
            for (job, request), grant in self.held.items()
            if grant.task_manager == name and (held is None or (job, request) in held)
        ]
        return sum(cpu for cpu, _ in shares), sum(memory for _, memory in shares)

    # Invariants

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        taken = [(grant.task_manager, slot) for grant in self.held.values() for slot in grant.slots]
        assert len(taken) == len(set(taken))

    @invariant()
    def no_request_waits_while_the_slots_of_the_head_are_free(self) -> None:
        head = self.head(self.queue())
        if head is None:
            return
        request = self.declared[head[0]][head[1]]
        for name, (_, total) in self.machines.items():
            assert not self.ready[name] or not fits(request, total, self.free(name), self.used(name))

    @invariant()
    def no_task_manager_grants_more_cores_or_memory_than_it_has(self) -> None:
        for name, (_, total) in self.machines.items():
            cpu, memory = self.used(name)
            assert cpu <= total + 1e-6
            assert memory <= MEMORY

    @invariant()
    def the_overview_agrees_with_the_model(self) -> None:
        overview = self.core.overview(self.now_s, 0)
        assert [(w.job_id, w.request) for w in overview.waiting] == self.queue()
        behind = {(w.job_id, w.request) for w in overview.waiting if w.behind_streaming}
        assert all(self.behind_streaming(*key) for key in behind)
        assert {info.id: self.seen(info) for info in overview.task_managers} == {
            name: (instance, total, self.free(name)) for name, (instance, total) in self.machines.items()
        }

    def seen(self, info: TaskManagerInfo) -> tuple[InstanceId, int, int]:
        assert sum(allocated.slots for allocated in info.allocated) == info.slots - info.free_slots
        cpu, memory = self.used(info.id)
        assert abs(info.free_resources.cpu + cpu - info.slots) < 1e-6
        assert info.free_resources.memory + memory == MEMORY
        return info.instance, info.slots, info.free_slots

    def teardown(self) -> None:
        """When the last job has ended, nothing is left of any."""
        for job in JOBS:
            self.core.declare(ResourceRequirements(job_id=job), 0)
        assert all(tm.free_slots == tm.slots for tm in self.core.overview(self.now_s, 0).task_managers)
        assert self.core.slots.remembered() == 0


class SpreadSlotAssignment(SlotAssignment):
    """The same properties where slots are spread."""

    SPREAD = True


TestSlotAssignment = SlotAssignment.TestCase
TestSlotAssignment.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestSpreadSlotAssignment = SpreadSlotAssignment.TestCase
TestSpreadSlotAssignment.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)

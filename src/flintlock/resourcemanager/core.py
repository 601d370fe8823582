"""What a ResourceManager decides: which TaskManagers count, and which job gets which of their slots.

`incarnations` knows which incarnation of a TaskManager a message belongs to, `slot_manager` allocates slots; this core
joins them: a TaskManager that registers adds slots, one that is lost removes them, and jobs are notified of a loss
before the grants that follow from it.

It changes in place (the package docstring says why). It takes time as data, and returns what has to be sent, in order.
A heartbeat that changes nothing costs only its record.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct, structs

from flintlock.model.errors import NotFound, Refused
from flintlock.model.ids import InstanceId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    Heartbeat,
    NoResources,
    RegisteredTaskManagers,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    TaskManagerInfo,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.incarnations import Incarnations
from flintlock.resourcemanager.slot_manager import SlotManager, SlotRules

JobMasterMessage: TypeAlias = SlotGrant | TaskManagerLost | NoResources
"""What is sent to a JobMaster. For one job, order matters: a loss comes before the grants that follow from it."""


class TaskManagerEntered(Struct, frozen=True):
    """This incarnation of a TaskManager counts from now on."""

    id: TaskManagerId
    instance: InstanceId
    address: str
    worker: bool = False  # a leader has started it


class TaskManagerLeft(Struct, frozen=True):
    """This incarnation does not count any more. `returns`: its process continues, as another incarnation."""

    id: TaskManagerId
    instance: InstanceId
    reason: str
    returns: bool = False


ResourceManagerEffect: TypeAlias = JobMasterMessage | TaskManagerEntered | TaskManagerLeft
"""What follows from an event: messages to JobMasters, and changes of TaskManagers for the shell."""


class _TaskManager(Struct):
    """A registered TaskManager."""

    offer: TaskManagerRegistration
    last_heartbeat_s: float
    heard_s: float  # when its latest heartbeat was received, or answered: the next one follows an interval later
    free_memory: int
    engine_ready: bool = True
    reachable: bool = True  # False: it sends heartbeats, but refuses connections
    lease_s: float = 0.0  # under which its attempts run, as it reports: perhaps one of an earlier leader
    metrics: dict[str, float] = {}

    @property
    def ready(self) -> bool:
        """Whether tasks can be deployed to it."""
        return self.engine_ready and self.reachable


class ResourceManagerCore:
    """Equal calls in equal order give equal results."""

    def __init__(self, versions: Versions, heartbeat_timeout_s: float, rules: SlotRules | None = None) -> None:
        self._versions: Final = versions
        self._timeout_s: Final = heartbeat_timeout_s
        self._task_managers: dict[TaskManagerId, _TaskManager] = {}
        self._incarnations: Final = Incarnations()
        self.slots: Final = SlotManager(rules or SlotRules())

    # TaskManagers

    def register(self, offer: TaskManagerRegistration, now_s: float) -> None:
        """Record a registration. It counts, and replaces the incarnation before it, from its first heartbeat on.

        Raises Refused if its versions are incompatible, if the cluster may not have as many slots, if its id is that of
        another TaskManager that is not lost, or if this incarnation is over: it has unregistered, or another has
        registered since. One that only timed out may register again.
        """
        self._check_offer(offer)
        self._check_id(offer)
        known = self._task_managers.get(offer.id)
        if known is not None and known.offer.instance == offer.instance:
            known.last_heartbeat_s = known.heard_s = now_s
            return
        self.slots.check_room(offer)
        self._incarnations.offer(offer)

    def heartbeat(self, message: Heartbeat, now_s: float) -> tuple[bool, list[ResourceManagerEffect]]:
        """Record a heartbeat. False: that incarnation of the TaskManager is not known."""
        effects = self._admit(message, now_s)
        task_manager = self._find(message.id, message.instance)
        if task_manager is None:
            return False, effects
        task_manager.last_heartbeat_s = task_manager.heard_s = now_s
        task_manager.free_memory = message.free_memory
        task_manager.lease_s = message.lease_s
        task_manager.metrics = message.metrics
        task_manager.engine_ready = message.engine_ready
        ready = self.slots.set_ready(message.id, task_manager.ready)
        freed = self.slots.release_carried(message.id, message.attempts, message.number)
        if ready or freed or effects:
            effects += self._settle(now_s)
        return True, effects

    def heartbeat_answered(self, message: Heartbeat, now_s: float) -> None:
        """Record that the answer to a heartbeat is sent: the next heartbeat is due an interval later."""
        task_manager = self._find(message.id, message.instance)
        if task_manager is not None:
            task_manager.heard_s = now_s

    def set_reachable(
        self, name: TaskManagerId, instance: InstanceId, reachable: bool, now_s: float
    ) -> list[ResourceManagerEffect]:
        """Record whether a TaskManager accepts connections: one that does not gets no new tasks."""
        task_manager = self._find(name, instance)
        if task_manager is None:
            return []
        task_manager.reachable = reachable
        return self._settle(now_s) if self.slots.set_ready(name, task_manager.ready) else []

    def unregister(self, message: Heartbeat, now_s: float) -> list[ResourceManagerEffect]:
        """Remove a TaskManager that shuts down. Messages that it sent before and that arrive later are ignored."""
        return self.lose(message.id, message.instance, "it has shut down", now_s, returns=True)

    def lose(
        self, name: TaskManagerId, instance: InstanceId, reason: str, now_s: float, *, returns: bool = False
    ) -> list[ResourceManagerEffect]:
        """Remove that incarnation of a TaskManager for good. Harmless if it does not count."""
        self._incarnations.end(name, instance)
        task_manager = self._find(name, instance)
        if task_manager is None:
            return []
        return [*self._lose(task_manager, reason, now_s, returns=returns), *self._settle(now_s)]

    def on_tick(self, now_s: float) -> list[ResourceManagerEffect]:
        """Do what is due: remove TaskManagers without heartbeats, and report requests that cannot be served."""
        silent = [
            tm for tm in self._task_managers.values() if now_s - tm.last_heartbeat_s > self._longest_silence_s(tm)
        ]
        effects: list[ResourceManagerEffect] = []
        for task_manager in silent:
            effects += self._lose(
                task_manager, f"it was silent for {now_s - task_manager.last_heartbeat_s:.1f} s", now_s
            )
            self._incarnations.timed_out(task_manager.offer.id, task_manager.offer.instance)
        return effects + self._settle(now_s)

    def next_due_s(self, now_s: float) -> float:
        """Return the seconds until something may become due."""
        lost_s = min(
            (tm.last_heartbeat_s + self._longest_silence_s(tm) for tm in self._task_managers.values()),
            default=now_s + self._timeout_s,
        )
        return max(min(lost_s, self.slots.next_give_up_s()) - now_s, 0.0)

    def address(self, task_manager: TaskManagerId) -> str:
        """Return the address of a TaskManager. Raises NotFound."""
        known = self._task_managers.get(task_manager)
        if known is None:
            raise NotFound(f"TaskManager {task_manager!r} is not registered")
        return known.offer.address

    def addresses(self) -> list[str]:
        """Return the addresses of all TaskManagers, those with a working engine first."""
        by_readiness = sorted(self._task_managers.values(), key=lambda tm: not self.slots.is_ready(tm.offer.id))
        return [tm.offer.address for tm in by_readiness]

    def silence_s(self, name: TaskManagerId, instance: InstanceId, now_s: float) -> float | None:
        """Return the time since the last heartbeat of that incarnation was received or answered; None if unknown."""
        task_manager = self._find(name, instance)
        return None if task_manager is None else now_s - task_manager.heard_s

    # Jobs

    def declare(self, requirements: ResourceRequirements, now_s: float) -> list[ResourceManagerEffect]:
        """Replace all requests of a job. Those in both declarations keep their slots or their place."""
        self.slots.declare(requirements, now_s)
        return self._settle(now_s)

    # Views

    def overview(self, now_s: float, now_ms: int) -> ResourceOverview:
        """Return all TaskManagers, and the waiting requests in order."""
        return ResourceOverview(
            task_managers=tuple(self._info(tm, now_s, now_ms) for tm in self._task_managers.values()),
            waiting=self.slots.waiting.describe(now_s, now_ms),
        )

    def registered(self, now_s: float, now_ms: int) -> RegisteredTaskManagers:
        """Return all TaskManagers, and how many requests wait: it costs nothing for those."""
        return RegisteredTaskManagers(
            task_managers=tuple(self._info(tm, now_s, now_ms) for tm in self._task_managers.values()),
            waiting=self.slots.counts().waiting,
            queue_version=self.slots.waiting.version,
        )

    # Inside

    def _check_offer(self, offer: TaskManagerRegistration) -> None:
        theirs, ours = offer.versions, self._versions
        if theirs.mismatches(ours):
            raise Refused(
                f"TaskManager {offer.id!r} does not fit this cluster: it runs {_versions(theirs)}, "
                f"the JobManager {_versions(ours)}; they must agree up to the minor version"
            )
        if offer.slots < 1:
            raise Refused(f"TaskManager {offer.id!r} offers {offer.slots} slots; it needs at least one")

    def _check_id(self, offer: TaskManagerRegistration) -> None:
        """Refuse a TaskManager with the id of another one, at another address, that is not lost.

        They would evict each other, and the tasks of the one that is evicted may run. A process that is started again
        at another address has to wait until its former one is known to be dead.
        """
        known = self._task_managers.get(offer.id)
        if known is None or known.offer.address == offer.address:
            return
        raise Refused(
            f"the id {offer.id!r} of the TaskManager at {offer.address} is in use by another one, at "
            f"{known.offer.address}, which may be alive; if it is, taskmanager.resource-id has to differ"
        )

    def _admit(self, message: Heartbeat, now_s: float) -> list[ResourceManagerEffect]:
        """Let a registered incarnation of a TaskManager count, in place of its former one."""
        offer = self._incarnations.take_offer(message.id, message.instance)
        if offer is None:
            return []
        try:  # others may have registered since; its next registration is refused with the reason
            self._check_id(offer)
            self.slots.check_room(offer)
        except Refused:
            return []
        effects: list[ResourceManagerEffect] = []
        former = self._task_managers.get(offer.id)
        if former is not None:
            effects = self._lose(former, "a newer instance of it has registered", now_s, returns=True)
            self._incarnations.end(offer.id, former.offer.instance)
        self._incarnations.admit(offer)
        self._task_managers[offer.id] = _TaskManager(offer, now_s, now_s, message.free_memory)
        self.slots.add(offer, now_s, message.attempts, message.number)
        return [*effects, TaskManagerEntered(offer.id, offer.instance, offer.address, offer.worker)]

    def _longest_silence_s(self, task_manager: _TaskManager) -> float:
        """Return after which silence a TaskManager is lost: no lease on its attempts lasts longer."""
        return max(self._timeout_s, task_manager.lease_s)

    def _find(self, name: TaskManagerId, instance: InstanceId) -> _TaskManager | None:
        task_manager = self._task_managers.get(name)
        return task_manager if task_manager is not None and task_manager.offer.instance == instance else None

    def _lose(
        self, task_manager: _TaskManager, reason: str, now_s: float, *, returns: bool = False
    ) -> list[ResourceManagerEffect]:
        """Remove a TaskManager; return one message for each job that had slots of it."""
        name, instance = task_manager.offer.id, task_manager.offer.instance
        del self._task_managers[name]
        return [
            TaskManagerLeft(name, instance, reason, returns),
            *(
                TaskManagerLost(job_id=job_id, task_manager=name, instance=instance, reason=reason)
                for job_id in self.slots.remove(name, now_s)
            ),
        ]

    def _settle(self, now_s: float) -> list[ResourceManagerEffect]:
        return [*self.slots.serve_claims(), *self.slots.allocate(), *self.slots.give_up(now_s)]

    def _info(self, task_manager: _TaskManager, now_s: float, now_ms: int) -> TaskManagerInfo:
        offer = task_manager.offer
        free_slots, free_resources, allocated = self.slots.use_of(offer.id)
        return TaskManagerInfo(
            id=offer.id,
            instance=offer.instance,
            address=offer.address,
            slots=offer.slots,
            free_slots=free_slots,
            ready=task_manager.ready,
            last_heartbeat_ms=now_ms - round((now_s - task_manager.last_heartbeat_s) * 1000),
            hardware=structs.replace(offer.hardware, free_memory=task_manager.free_memory),
            engine=offer.engine,
            allocated=allocated,
            free_resources=free_resources,
            metrics=task_manager.metrics,
        )


def _versions(versions: Versions) -> str:
    return f"Flintlock {versions.flintlock}, Python {versions.python}, PySpark {versions.pyspark}"

"""What a ResourceManager decides: which TaskManagers count, and who gets which of their slots.

`lives` knows which life of a TaskManager is meant, `slot_manager` gives out slots; this core joins them: whoever enters
brings slots, whoever is lost takes them along, and jobs hear of a loss before the grants that follow from it.

It changes in place: with ten thousand requests waiting, a copy for each event would be all that it does. It takes time
as data, and gives back what has to be told, in order. A heartbeat that changes nothing costs nothing but its note.
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
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    TaskManagerInfo,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.incarnations import Incarnations
from flintlock.resourcemanager.slot_manager import SlotManager, SlotRules

Word: TypeAlias = SlotGrant | TaskManagerLost | NoResources
"""What a JobMaster is told. For one job, order matters: a loss comes before the grants that follow from it."""


class TaskManagerEntered(Struct, frozen=True):
    """A life of a TaskManager counts from now on."""

    id: TaskManagerId
    instance: InstanceId
    address: str


class TaskManagerLeft(Struct, frozen=True):
    """It does not count any more. `returns`: its process has said that it goes on, in another life."""

    id: TaskManagerId
    instance: InstanceId
    reason: str
    returns: bool = False


Effect: TypeAlias = Word | TaskManagerEntered | TaskManagerLeft
"""What follows from an event: words for JobMasters, and who came and went, for the shell."""


class _TaskManager(Struct):
    """A registered TaskManager."""

    offer: TaskManagerRegistration
    heard_s: float
    free_memory: int
    metrics: dict[str, float] = {}


class ResourceManagerCore:
    """Equal calls in equal order give equal answers."""

    def __init__(self, versions: Versions, heartbeat_timeout_s: float, rules: SlotRules | None = None) -> None:
        self._versions: Final = versions
        self._timeout_s: Final = heartbeat_timeout_s
        self._task_managers: dict[TaskManagerId, _TaskManager] = {}
        self._lives: Final = Incarnations()
        self.slots: Final = SlotManager(rules or SlotRules())

    # TaskManagers

    def register(self, offer: TaskManagerRegistration, now_s: float) -> None:
        """Take an offer. It counts, and replaces the life before it, from its first heartbeat on.

        Raises Refused if its versions are not the cluster's, if the cluster may not have as many slots, or if this
        life of it is over: it has said good-bye, or another has registered since. One that was only silent may come
        back.
        """
        self._check(offer)
        known = self._task_managers.get(offer.id)
        if known is not None and known.offer.instance == offer.instance:
            known.heard_s = now_s
            return
        self.slots.check_room(offer)
        self._lives.offered(offer)

    def heartbeat(self, message: Heartbeat, now_s: float) -> tuple[bool, list[Effect]]:
        """Note a sign of life. False: this life of that TaskManager is not known here."""
        effects = self._admit(message, now_s)
        task_manager = self._known(message.id, message.instance)
        if task_manager is None:
            return False, effects
        task_manager.heard_s = now_s
        task_manager.free_memory = message.free_memory
        task_manager.metrics = message.metrics
        ready = self.slots.set_ready(message.id, message.engine_ready)
        freed = self.slots.release_brought(message.id, message.attempts)
        if ready or freed or effects:
            effects += self._settle(now_s)
        return True, effects

    def unregister(self, message: Heartbeat, now_s: float) -> list[Effect]:
        """Let a TaskManager go that says good-bye. What it said before and arrives later is not heard any more."""
        return self.lose(message.id, message.instance, "it has shut down", now_s, returns=True)

    def lose(
        self, name: TaskManagerId, instance: InstanceId, reason: str, now_s: float, *, returns: bool = False
    ) -> list[Effect]:
        """Give up that life of a TaskManager for good. Harmless if it does not count."""
        self._lives.bury(name, instance)
        task_manager = self._known(name, instance)
        if task_manager is None:
            return []
        return [*self._lose(task_manager, reason, now_s, returns=returns), *self._settle(now_s)]

    def hear_time(self, now_s: float) -> list[Effect]:
        """Do what is due: give up TaskManagers that were silent for too long, and requests that nobody can serve."""
        silent = [tm for tm in self._task_managers.values() if now_s - tm.heard_s > self._timeout_s]
        effects: list[Effect] = []
        for task_manager in silent:
            effects += self._lose(task_manager, f"it was silent for {now_s - task_manager.heard_s:.1f} s", now_s)
            self._lives.fell_silent(task_manager.offer.id, task_manager.offer.instance)
        return effects + self._settle(now_s)

    def next_due_s(self, now_s: float) -> float:
        """Return for how long from now nothing can become due."""
        heard_s = min((tm.heard_s for tm in self._task_managers.values()), default=now_s)
        return max(min(heard_s + self._timeout_s, self.slots.next_give_up_s()) - now_s, 0.0)

    def address(self, task_manager: TaskManagerId) -> str:
        """Return where a TaskManager is. Raises NotFound."""
        known = self._task_managers.get(task_manager)
        if known is None:
            raise NotFound(f"TaskManager {task_manager!r} is not registered")
        return known.offer.address

    def addresses(self) -> list[str]:
        """Return where all TaskManagers are, those with a working engine first."""
        by_readiness = sorted(self._task_managers.values(), key=lambda tm: not self.slots.is_ready(tm.offer.id))
        return [tm.offer.address for tm in by_readiness]

    def silence_s(self, message: Heartbeat, now_s: float) -> float | None:
        """Return how long ago that life was last heard of; None if it does not count."""
        task_manager = self._known(message.id, message.instance)
        return None if task_manager is None else now_s - task_manager.heard_s

    def instance_of(self, task_manager: TaskManagerId) -> InstanceId | None:
        """Return which life of it counts, if one does."""
        known = self._task_managers.get(task_manager)
        return None if known is None else known.offer.instance

    # Jobs

    def declare(self, requirements: ResourceRequirements, now_ms: int, now_s: float = 0.0) -> list[Effect]:
        """Replace all that a job wants. What is in both keeps its slots or its place."""
        self.slots.declare(requirements, now_ms, now_s)
        return self._settle(now_s)

    # What others see

    def overview(self, now_s: float, now_ms: int) -> ResourceOverview:
        """Return all TaskManagers, and who waits, in order."""
        return ResourceOverview(
            task_managers=tuple(self._info(tm, now_s, now_ms) for tm in self._task_managers.values()),
            waiting=self.slots.waiting(),
        )

    # Inside

    def _check(self, offer: TaskManagerRegistration) -> None:
        theirs, ours = offer.versions, self._versions
        if _minors(theirs) != _minors(ours):
            raise Refused(
                f"TaskManager {offer.id!r} does not fit this cluster: it runs {_versions(theirs)}, "
                f"the JobManager {_versions(ours)}; they must agree up to the minor version"
            )
        if offer.slots < 1:
            raise Refused(f"TaskManager {offer.id!r} offers {offer.slots} slots; it needs at least one")

    def _admit(self, message: Heartbeat, now_s: float) -> list[Effect]:
        """Let a TaskManager begin the life that it has registered, in the place of its former one."""
        offer = self._lives.offer_of(message.id, message.instance)
        if offer is None:
            return []
        try:
            self.slots.check_room(offer)  # others may have come since it registered; registering again, it hears why
        except Refused:
            return []
        effects: list[Effect] = []
        former = self._task_managers.get(offer.id)
        if former is not None:
            effects = self._lose(former, "a newer instance of it has registered", now_s, returns=True)
            self._lives.bury(offer.id, former.offer.instance)
        self._lives.begun(offer)
        self._task_managers[offer.id] = _TaskManager(offer, now_s, message.free_memory)
        self.slots.add(offer, now_s, message.attempts)
        return [*effects, TaskManagerEntered(offer.id, offer.instance, offer.address)]

    def _known(self, name: TaskManagerId, instance: InstanceId) -> _TaskManager | None:
        task_manager = self._task_managers.get(name)
        return task_manager if task_manager is not None and task_manager.offer.instance == instance else None

    def _lose(self, task_manager: _TaskManager, reason: str, now_s: float, *, returns: bool = False) -> list[Effect]:
        """Forget a TaskManager; return what each job that held slots of it is told, once."""
        name, instance = task_manager.offer.id, task_manager.offer.instance
        del self._task_managers[name]
        return [
            TaskManagerLeft(name, instance, reason, returns),
            *(
                TaskManagerLost(job_id=job_id, task_manager=name, instance=instance, reason=reason)
                for job_id in self.slots.remove(name, now_s)
            ),
        ]

    def _settle(self, now_s: float) -> list[Effect]:
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
            last_heartbeat_ms=now_ms - round((now_s - task_manager.heard_s) * 1000),
            hardware=structs.replace(offer.hardware, free_memory=task_manager.free_memory),
            engine=offer.engine,
            allocated=allocated,
            free_resources=free_resources,
            metrics=task_manager.metrics,
        )


def _versions(versions: Versions) -> str:
    return f"Flintlock {versions.flintlock}, Python {versions.python}, PySpark {versions.pyspark}"


def _minors(versions: Versions) -> tuple[tuple[str, ...], ...]:
    """Return what must agree: members of one cluster may differ in their patches, while it is being upgraded."""
    return tuple(tuple(one.split(".")[:2]) for one in (versions.flintlock, versions.python, versions.pyspark))

"""Which life of a TaskManager counts.

Messages may be late, and nothing in them tells which of two lives of a TaskManager is the younger: a registration that
was under way when its engine died may arrive after the next one. So a registration alone changes nothing. The first
heartbeat of that life does: only one whose registration was answered sends it, and it sends it at once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from flintlock.model.errors import Refused
from flintlock.model.ids import InstanceId, TaskManagerId
from flintlock.model.slots import TaskManagerRegistration

#: How many lives of one TaskManager are remembered that are over, or not yet begun.
_REMEMBERED_LIVES: Final = 8
#: Of how many TaskManagers. Ids of workers are never used again: in a long term there may be any number of them.
_REMEMBERED_IDS: Final = 10_000
T = TypeVar("T")


class Incarnations:
    """Incarnations that have not begun to count, and lives that are over."""

    def __init__(self) -> None:
        self._offers: dict[TaskManagerId, dict[InstanceId, TaskManagerRegistration]] = {}  # until a first heartbeat
        self._over: dict[TaskManagerId, deque[InstanceId]] = {}  # known for late messages of them
        self._silent: dict[TaskManagerId, InstanceId] = {}  # given up for silence: may come back before its successor

    def offered(self, offer: TaskManagerRegistration) -> None:
        """Remember a registration until its first heartbeat. Raises Refused if that life is over.

        One that fell silent may come back, but not with work: its tasks have been given to others.
        """
        given_up = offer.busy and self._silent.get(offer.id) == offer.instance
        if given_up or offer.instance in self._over.get(offer.id, ()):
            raise Refused(f"instance {offer.instance} of TaskManager {offer.id!r} is over: it must register as another")
        offers = _latest(self._offers, offer.id, {})
        offers[offer.instance] = offer
        while len(offers) > _REMEMBERED_LIVES:
            del offers[next(iter(offers))]

    def offer_of(self, task_manager: TaskManagerId, instance: InstanceId) -> TaskManagerRegistration | None:
        """Return the registration of a life whose first heartbeat has come; ask once."""
        offers = self._offers.get(task_manager, {})
        offer = offers.pop(instance, None)
        if offer is not None and not offers:
            del self._offers[task_manager]
        return offer

    def begun(self, offer: TaskManagerRegistration) -> None:
        """A life counts now: one that had only fallen silent is over, unless it is the same."""
        silent = self._silent.pop(offer.id, offer.instance)
        if silent != offer.instance:
            self.bury(offer.id, silent)

    def fell_silent(self, task_manager: TaskManagerId, instance: InstanceId) -> None:
        """That life may come back, if no other does before."""
        self._silent[task_manager] = instance
        _bound(self._silent)

    def bury(self, task_manager: TaskManagerId, instance: InstanceId) -> None:
        """That life is over: what it said before and arrives later is not heard any more."""
        self.offer_of(task_manager, instance)
        _latest(self._over, task_manager, deque(maxlen=_REMEMBERED_LIVES)).append(instance)


def _latest(entries: dict[TaskManagerId, T], key: TaskManagerId, default: T) -> T:
    """Return an entry, made if it is not there, and make it the youngest."""
    entry = entries[key] = entries.pop(key, default)
    _bound(entries)
    return entry


def _bound(entries: dict[TaskManagerId, T]) -> None:
    while len(entries) > _REMEMBERED_IDS:
        del entries[next(iter(entries))]

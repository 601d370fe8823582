"""Which incarnation of a TaskManager counts.

Messages may be late, and nothing in them says which of two incarnations of a TaskManager is the younger: a registration
that was on its way when its engine died may arrive after the next one. So a registration alone changes nothing. The
first heartbeat of that incarnation does: it is sent only after its registration was answered, and immediately then.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from flintlock.model.errors import Refused
from flintlock.model.ids import InstanceId, TaskManagerId
from flintlock.model.slots import TaskManagerRegistration

#: How many incarnations of one TaskManager are remembered that are over, or not yet admitted.
_REMEMBERED_INCARNATIONS: Final = 8
#: Of how many TaskManagers. Ids of workers are never reused: in a long leadership term there may be any number of them.
_REMEMBERED_IDS: Final = 10_000
T = TypeVar("T")


class Incarnations:
    """Incarnations that are not yet admitted, that timed out, or that are over."""

    def __init__(self) -> None:
        self._offers: dict[TaskManagerId, dict[InstanceId, TaskManagerRegistration]] = {}  # until a first heartbeat
        self._over: dict[TaskManagerId, deque[InstanceId]] = {}  # to recognise late messages of them
        self._timed_out: dict[TaskManagerId, InstanceId] = {}  # timed out: may register again before its successor does

    def offer(self, offer: TaskManagerRegistration) -> None:
        """Record a registration until its first heartbeat. Raises Refused if that incarnation is over.

        One that timed out may register again, but not with work: its tasks have been restarted elsewhere.
        """
        lost_its_work = offer.busy and self._timed_out.get(offer.id) == offer.instance
        if lost_its_work or offer.instance in self._over.get(offer.id, ()):
            raise Refused(f"instance {offer.instance} of TaskManager {offer.id!r} is over: it must register as another")
        offers = _latest(self._offers, offer.id, {})
        offers[offer.instance] = offer
        while len(offers) > _REMEMBERED_INCARNATIONS:
            del offers[next(iter(offers))]

    def take_offer(self, task_manager: TaskManagerId, instance: InstanceId) -> TaskManagerRegistration | None:
        """Remove and return the registration of an incarnation whose first heartbeat has come."""
        offers = self._offers.get(task_manager, {})
        offer = offers.pop(instance, None)
        if offer is not None and not offers:
            del self._offers[task_manager]
        return offer

    def admit(self, offer: TaskManagerRegistration) -> None:
        """An incarnation counts now: one that had only timed out is over, unless it is the same."""
        silent = self._timed_out.pop(offer.id, offer.instance)
        if silent != offer.instance:
            self.end(offer.id, silent)

    def timed_out(self, task_manager: TaskManagerId, instance: InstanceId) -> None:
        """That incarnation may register again if no other is admitted before."""
        self._timed_out[task_manager] = instance
        _bound(self._timed_out)

    def end(self, task_manager: TaskManagerId, instance: InstanceId) -> None:
        """That incarnation is over: messages that it sent before and that arrive later are ignored."""
        self.take_offer(task_manager, instance)
        _latest(self._over, task_manager, deque(maxlen=_REMEMBERED_INCARNATIONS)).append(instance)


def _latest(entries: dict[TaskManagerId, T], key: TaskManagerId, default: T) -> T:
    """Return an entry, made if it is missing, and make it the youngest."""
    entry = entries[key] = entries.pop(key, default)
    _bound(entries)
    return entry


def _bound(entries: dict[TaskManagerId, T]) -> None:
    while len(entries) > _REMEMBERED_IDS:
        del entries[next(iter(entries))]

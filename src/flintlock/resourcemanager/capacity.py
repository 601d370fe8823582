"""The cores and memory of TaskManagers beside their slots, and how much of them a request takes.

A request that names no cores or no memory takes its slots' share of the TaskManager's, as Flink's default slots do. So
free slots always come with cores and memory, unless other requests asked for more than their share. A TaskManager that
does not report its cores or its memory (zero) is not limited by them.

TaskManagers of equal capacity form a class. Whether *any* registered one could serve a request is checked with the
largest classes only: a request that a smaller one can serve, a larger one can serve too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from flintlock.model.jobgraph import Resources
from flintlock.model.slots import SlotRequest, TaskManagerRegistration

_CPU_SLACK: Final = 1e-6  # shares of cores are fractions: their sum may differ from the total by less than this
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Capacity(Struct, frozen=True):
    """Slots, cores and memory: of one TaskManager, or of several together."""

    slots: int
    cpu: float = 0.0  # 0: not reported
    memory: int = 0

    def __str__(self) -> str:
        return described(self.slots, Resources(cpu=self.cpu, memory=self.memory))


def capacity_of(offer: TaskManagerRegistration) -> Capacity:
    """Return what a TaskManager has when it is idle."""
    return Capacity(offer.slots, float(offer.hardware.cpu_cores), offer.hardware.physical_memory)


def need(asked: Resources | None, slots: int, whole: Capacity) -> Resources:
    """Return what a request or an attempt takes of a TaskManager with that many slots; None: their share."""
    cpu = asked.cpu if asked is not None and asked.cpu else whole.cpu * slots / whole.slots
    memory = asked.memory if asked is not None and asked.memory else whole.memory * slots // whole.slots
    return Resources(cpu=cpu, memory=memory)


def enough(left: Resources, needed: Resources, whole: Capacity) -> bool:
    """Return whether what is left of a TaskManager suffices."""
    return (not whole.cpu or left.cpu + _CPU_SLACK >= needed.cpu) and (not whole.memory or left.memory >= needed.memory)


def slots_for(request: SlotRequest, slots: int) -> int | None:
    """Return how many slots of an idle TaskManager with `slots` the request takes; None if it has too few."""
    if request.slots is not None:
        return request.slots if request.slots <= slots else None
    taken = slots if request.at_most is None else min(slots, request.at_most)
    return taken if slots >= request.at_least else None


def could_serve(whole: Capacity, request: SlotRequest) -> bool:
    """Return whether such a TaskManager could serve the request when it is idle."""
    slots = slots_for(request, whole.slots)
    if slots is None:
        return False
    return request.resources is None or enough(
        Resources(cpu=whole.cpu, memory=whole.memory), need(request.resources, slots, whole), whole
    )


def could_become_free(whole: Capacity, endless: Capacity, request: SlotRequest) -> bool:
    """Return whether a TaskManager could serve the request once everything but its streaming queries has ended."""
    if not endless.slots:
        return could_serve(whole, request)
    slots = request.slots if request.slots is not None else request.at_most
    if slots is None or slots > whole.slots - endless.slots:
        return False
    left = Resources(cpu=whole.cpu - endless.cpu, memory=whole.memory - endless.memory)
    return enough(left, need(request.resources, slots, whole), whole)


class CapacityClasses:
    """How many TaskManagers of each capacity are registered."""

    def __init__(self) -> None:
        self._counts: dict[Capacity, int] = {}
        self._largest: list[Capacity] = []  # those that no other class covers

    def add(self, kind: Capacity) -> bool:
        """Count one more. True: requests that were unservable may be servable now."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if any(_covers(other, kind) for other in self._largest):
            return False
        self._largest = [*(other for other in self._largest if not _covers(kind, other)), kind]
        return True

    def remove(self, kind: Capacity) -> bool:
        """Count one less. True: requests that were servable may be unservable now."""
        self._counts[kind] -= 1
        if self._counts[kind]:
            return False
        del self._counts[kind]
        if kind not in self._largest:
            return False
        others = list(self._counts)
        self._largest = [one for one in others if not any(_covers(two, one) for two in others if two != one)]
        return True

    def could_serve(self, request: SlotRequest) -> bool:
        """Return whether one of them could serve the request when it is idle."""
        return any(could_serve(kind, request) for kind in self._largest)

    def __str__(self) -> str:
        shown = sorted(self._counts.items(), key=lambda item: (item[0].slots, item[0].cpu, item[0].memory))[-3:]
        texts = [f"{count} with {kind}" for kind, count in reversed(shown)]
        return ", ".join([*texts, *(["smaller ones"] if len(self._counts) > len(shown) else [])])


def asked_for(request: SlotRequest) -> str:
    """Return in words what a request asks of one TaskManager."""
    return described(request.slots if request.slots is not None else request.at_least, request.resources or Resources())


def described(slots: int, resources: Resources) -> str:
    """Return the amounts in words: "2 slots, 1.5 cores and 4 GiB of memory"."""
    parts = ["1 slot" if slots == 1 else f"{slots} slots"]
    if resources.cpu:
        parts.append("1 core" if resources.cpu == 1 else f"{resources.cpu:g} cores")
    if resources.memory:
        parts.append(f"{_bytes(resources.memory)} of memory")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def total(capacities: Iterable[Capacity]) -> Capacity:
    """Return the sum."""
    slots, cpu, memory = 0, 0.0, 0
    for one in capacities:
        slots, cpu, memory = slots + one.slots, cpu + one.cpu, memory + one.memory
    return Capacity(slots, cpu, memory)


def room_for(one: Capacity, there: Capacity, limit: Capacity) -> int:
    """Return how many more of that capacity the limit allows, beside what is there."""
    rooms = [
        (most - used) // size
        for most, used, size in (
            (limit.slots, there.slots, one.slots),
            (limit.cpu, there.cpu, one.cpu),
            (limit.memory, there.memory, one.memory),
        )
        if most and size
    ]
    return max(0, int(min(rooms, default=1 << 30)))


def _covers(large: Capacity, small: Capacity) -> bool:
    return (
        large.slots >= small.slots
        and (not large.cpu or 0 < small.cpu <= large.cpu)
        and (not large.memory or 0 < small.memory <= large.memory)
    )


def _bytes(count: int) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"

"""How many workers the queue needs: it is served, in thought, by the same rules as in earnest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flintlock.model.ids import TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.resourcemanager.capacity import Capacity, could_serve
from flintlock.resourcemanager.free_slots import FreeSlots
from flintlock.resourcemanager.waiting_line import Request


def missing_workers(
    waiting: Iterable[Request],
    free: FreeSlots,
    fresh: Capacity,
    *,
    coming: int,
    at_most: int,
    blocks: Callable[[Request], bool],
) -> int:
    """Return how many fresh workers, beside those that are coming, would serve everybody who waits; never too many.

    `free` is used up on the way. `blocks` tells who holds up all behind it if it cannot be served.
    """
    for number in range(coming):
        _enter(free, fresh, number)
    missing = 0
    for request in waiting:
        if free.take(request.wish) is not None:
            continue
        if not could_serve(fresh, request.wish):
            if blocks(request):
                break  # it waits for one of the registered, and nobody overtakes it
            continue
        if missing >= at_most:
            break
        missing += 1
        _enter(free, fresh, coming + missing)
        free.take(request.wish)
    return missing


def _enter(free: FreeSlots, fresh: Capacity, number: int) -> None:
    left = Resources(cpu=fresh.cpu, memory=fresh.memory)
    free.put(TaskManagerId(f"\0{number}"), free=fresh.slots, left=left, whole=fresh)

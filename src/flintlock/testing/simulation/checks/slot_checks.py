"""What must hold of the allocation of slots and resources at any time, as a ResourceManager reports it."""

from __future__ import annotations

from typing import Final

from flintlock.model.jobgraph import Resources
from flintlock.model.slots import ResourceOverview, TaskManagerInfo, WaitingRequest

_CPU_SLACK: Final = 1e-6


def slot_problems(overview: ResourceOverview, wall_ms: int) -> list[str]:
    """Return what is wrong with the allocation of slots, as a ResourceManager reports it between two of its steps.

    `wall_ms` is what its wall clock shows, which may have been set meanwhile.
    """
    problems = [
        f"{tm.id} has {tm.slots} slots: {tm.free_slots} are free, and allocated are {tm.allocated}"
        for tm in overview.task_managers
        if tm.free_slots + sum(share.slots for share in tm.allocated) > tm.slots
    ]
    problems += [
        f"{tm.id} has {tm.hardware}, of which more is allocated than there is: {tm.free_resources} is left"
        for tm in overview.task_managers
        if tm.free_resources.cpu < -_CPU_SLACK or tm.free_resources.memory < 0
    ]
    problems += [
        f"{tm.id} runs nothing, but of {tm.hardware} only {tm.free_resources} is free"
        for tm in overview.task_managers
        if not tm.allocated and tm.free_slots == tm.slots and tm.free_resources != _whole(tm)
    ]
    problems += [
        f"the last heartbeat of {tm.id} is in the future"
        for tm in overview.task_managers
        if tm.last_heartbeat_ms > wall_ms
    ]
    problems += [
        f"{request.name} waits since a time in the future" for request in overview.waiting if request.since_ms > wall_ms
    ]
    priorities = [request.priority for request in overview.waiting]
    if priorities != sorted(priorities, reverse=True):
        problems.append(f"requests wait in the order of the priorities {priorities}")
    for next_in_line in overview.waiting[:1]:  # order is strict: the others wait for it
        problems += [
            f"{next_in_line.name} waits for {next_in_line.slots or 'all'} slots and {next_in_line.resources}, and "
            f"{tm.id} has {tm.free_slots} and {tm.free_resources} free"
            for tm in overview.task_managers
            if tm.ready and tm.free_slots >= (next_in_line.slots or tm.slots) and _has_free(tm, next_in_line)
        ]
    return problems


def _whole(tm: TaskManagerInfo) -> Resources:
    return Resources(cpu=float(tm.hardware.cpu_cores), memory=tm.hardware.physical_memory)


def _has_free(tm: TaskManagerInfo, request: WaitingRequest) -> bool:
    """Whether a TaskManager has the cores and the memory that a request names, or the share of the slots."""
    whole, named, slots = _whole(tm), request.resources or Resources(), request.slots or tm.slots
    cpu, memory = named.cpu or whole.cpu * slots / tm.slots, named.memory or whole.memory * slots // tm.slots
    return tm.free_resources.cpu >= cpu and tm.free_resources.memory >= memory

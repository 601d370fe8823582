"""Remove what a job leaves behind.

Every resource is removed concurrently with the others and retried by itself, for as long as it takes: one that is
stuck (no TaskManager to remove files) delays only what comes after it (`REMOVED_AFTER`) and the mark that the job is
clean. The state of a cleanup is not stored: when the Dispatcher stops, the dirty result remains, and the next leader
starts the cleanup from the beginning. So every removal is idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.core import REMOVED_AFTER, CleanupResource
from flintlock.ha.leader_gate import LeaderGate
from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Fenced
from flintlock.model.ids import JobId

log: FilteringBoundLogger = structlog.get_logger()

Removals: TypeAlias = Mapping[CleanupResource, Callable[[], Awaitable[None]]]
"""How each resource of a job is removed."""


async def clean_up(job_id: JobId, removals: Removals, backoff: Backoff, gate: LeaderGate, *, failures: int = 0) -> None:
    """Remove everything, with as many tries as it takes; return when all is removed. A paused leader waits.

    `failures` counts the rounds that failed before. If cancelled, it leaves the rest. Raises (in a group) Fenced: a
    newer leader cleans up.
    """
    gone = {resource: asyncio.Event() for resource in removals}

    async def remove(resource: CleanupResource) -> None:
        before = REMOVED_AFTER.get(resource)
        if before is not None and before in gone:
            await gone[before].wait()
        await _until_gone(job_id, resource, removals[resource], backoff, gate=gate, failures=failures)
        gone[resource].set()

    async with asyncio.TaskGroup() as tasks:
        for resource in removals:
            tasks.create_task(remove(resource), name=f"cleanup-{resource}-{job_id}")


async def try_once(removals: Removals) -> dict[CleanupResource, Exception]:
    """Try each removal once; return those that failed, with their errors.

    What comes after one that failed is not tried, and returned with that one's error. Raises Fenced.
    """
    failed: dict[CleanupResource, Exception] = {}
    for resource in sorted(removals, key=lambda one: one in REMOVED_AFTER):
        before = REMOVED_AFTER.get(resource)
        if before is not None and before in failed:
            failed[resource] = failed[before]
            continue
        try:
            await removals[resource]()
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - the caller reports it
            failed[resource] = error
    return failed


async def _until_gone(
    job_id: JobId,
    resource: CleanupResource,
    remove: Callable[[], Awaitable[None]],
    backoff: Backoff,
    *,
    gate: LeaderGate,
    failures: int,
) -> None:
    if failures:
        await asyncio.sleep(backoff.delay_s(failures))
    while True:
        await gate.wait_until_active()
        try:
            await remove()
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - retried without limit, whatever the error
            failures += 1
            delay_s = backoff.delay_s(failures)
            log.warning(
                log_events.JOB_CLEANUP_RETRIED,
                job_id=job_id,
                resource=resource,
                failures=failures,
                delay_s=delay_s,
                error=str(error),
            )
            await asyncio.sleep(delay_s)
        else:
            return

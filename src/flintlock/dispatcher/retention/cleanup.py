"""Remove what a job leaves behind.

Every resource is removed concurrently with the others and retried by itself, for as long as it takes: one that is
stuck (no TaskManager to remove files) delays only what comes after it (`REMOVED_AFTER`) and the mark that the job is
clean. A job whose archive could not be written is archived here: until then, nothing of its results is removed. Once
the job's retention is over, what still cannot be removed is given up, and logged with what it is: a file system that is
gone must not keep the job, and its cleanup, for ever. Only the job's graph is not given up, which is the store's own
and would run again.

The state of a cleanup is not stored: when the Dispatcher stops, the dirty result remains, and the next leader starts
the cleanup from the beginning. So every removal is idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

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


#: How often a removal has failed in one term before it can be given up: TaskManagers may have to register first.
TRIES_BEFORE_GIVING_UP: Final = 10


async def clean_up(
    job_id: JobId,
    removals: Removals,
    backoff: Backoff,
    gate: LeaderGate,
    *,
    failures: int = 0,
    retention_over: Callable[[], bool] = lambda: False,
    directories: Sequence[str] = (),
) -> None:
    """Remove everything, with as many tries as it takes; return when all is removed. A paused leader waits.

    `failures` counts the rounds that failed before. What cannot be removed although the retention is over, and it was
    tried often enough, is given up; `directories` are then named in the log. If cancelled, it leaves the rest. Raises
    (in a group) Fenced: a newer leader cleans up.
    """
    gone = {resource: asyncio.Event() for resource in removals}

    async def remove(resource: CleanupResource) -> None:
        before = REMOVED_AFTER.get(resource)
        if before is not None and before in gone:
            await gone[before].wait()
        left = await _until_gone(
            job_id, resource, removals[resource], backoff, retention_over, gate=gate, failures=failures
        )
        if left is not None:
            named = {"directories": [*directories]} if resource is CleanupResource.FILES else {}
            log.error(log_events.JOB_CLEANUP_GIVEN_UP, job_id=job_id, resource=resource, reason=left, **named)
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
    retention_over: Callable[[], bool],
    *,
    gate: LeaderGate,
    failures: int,
) -> str | None:
    """Return None when the resource is removed; the last error if it is given up."""
    if failures:
        await asyncio.sleep(backoff.delay_s(failures))
    while True:
        await gate.wait_until_active()
        try:
            await remove()
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - retried, whatever the error
            failures += 1
            if resource is not CleanupResource.GRAPH and failures >= TRIES_BEFORE_GIVING_UP and retention_over():
                return str(error)
            delay_s = backoff.delay_s(failures)
            log.warning(
                log_events.JOB_CLEANUP_RETRIED,
                job_id=job_id,
                resource=resource,
                failures=failures,
                delay_s=delay_s,
                reason=str(error),
            )
            await asyncio.sleep(delay_s)
        else:
            return None

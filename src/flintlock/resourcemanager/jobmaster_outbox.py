"""What JobMasters are told, and what they are asked.

What one job is told arrives in the order of the decisions (a grant that overtakes the news of a loss would send a task
to a dead TaskManager): each job that has to hear something has a courier for as long as there is something to say. A
JobMaster that is gone wants nothing any more: what it held is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.model import log_events
from flintlock.model.errors import NotFound, Unavailable
from flintlock.model.ids import AttemptId, JobId
from flintlock.model.slots import DeployedTasks, Heartbeat, NoResources, SlotGrant, TaskManagerLost
from flintlock.resourcemanager.core import Word

log: FilteringBoundLogger = structlog.get_logger()


_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


class JobMasterOutbox:
    """Delivers words to JobMasters, in order for each job, while a scope is open for them."""

    def __init__(
        self, job_masters: JobMasterGateway, is_granted: Callable[[SlotGrant], bool], forget: Callable[[JobId], None]
    ) -> None:
        self._job_masters = job_masters
        self._is_granted = is_granted
        self._forget = forget  # told of each job that has no JobMaster
        self._scope: asyncio.TaskGroup | None = None
        self._words: dict[JobId, deque[Word]] = {}  # not yet delivered; each emptied by the job's own courier

    def open(self, scope: asyncio.TaskGroup) -> None:
        """Begin to deliver, what was said before included."""
        self._scope = scope
        for job_id in self._words:
            self._send(scope, job_id)

    def close(self) -> None:
        """Send nobody any more."""
        self._scope = None

    def tell(self, word: Word) -> None:
        """Have a job told."""
        waiting = self._words.get(word.job_id)
        if waiting is not None:
            waiting.append(word)
            return
        self._words[word.job_id] = deque((word,))
        if self._scope is not None:
            self._send(self._scope, word.job_id)

    def _send(self, scope: asyncio.TaskGroup, job_id: JobId) -> None:
        scope.create_task(self._deliver(job_id), name=f"tell-{job_id}")

    async def _deliver(self, job_id: JobId) -> None:
        """Tell a job what it has to hear, in order, until nothing is left."""
        words = self._words[job_id]
        wait_s = _FIRST_WAIT_S
        try:
            while words:
                try:
                    await self._deliver_one(words[0])
                    words.popleft()
                    wait_s = _FIRST_WAIT_S
                except NotFound:
                    log.info(log_events.JOBMASTER_GONE, job_id=job_id)
                    words.clear()
                    self._forget(job_id)
                except Unavailable:
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        finally:
            del self._words[job_id]

    async def _deliver_one(self, word: Word) -> None:
        match word:
            case SlotGrant():
                if self._is_granted(word):  # else it was taken back while it waited
                    await self._job_masters.slots_granted(word)
            case TaskManagerLost():
                await self._job_masters.task_manager_lost(word)
            case NoResources():
                await self._job_masters.no_resources(word)


async def unwanted(
    job_masters: JobMasterGateway, message: Heartbeat, holders: Iterable[JobId], limit_s: float
) -> tuple[AttemptId, ...]:
    """Return the attempts of a TaskManager that no JobMaster wants: each is asked about its own.

    Jobs that hold slots there are asked too if nothing of them runs: they may know better. A job without a JobMaster
    wants nothing. One that cannot answer now, or not within `limit_s` (all together: the TaskManager's lease waits for
    this), wants everything.
    """
    held: dict[JobId, list[AttemptId]] = {job_id: [] for job_id in sorted(holders)}
    for item in message.attempts:
        held.setdefault(item.attempt.job_id, []).append(item.attempt)
    found: list[AttemptId] = []
    try:
        async with asyncio.timeout(limit_s):
            for job_id, attempts in held.items():
                found += await _unwanted_of(job_masters, message, job_id, tuple(attempts))
    except TimeoutError:
        log.warning(log_events.JOBMASTER_SLOW, task_manager=message.id, limit_s=limit_s)
    return tuple(found)


async def _unwanted_of(
    job_masters: JobMasterGateway, message: Heartbeat, job_id: JobId, attempts: tuple[AttemptId, ...]
) -> tuple[AttemptId, ...]:
    try:
        answer = await job_masters.reconcile(
            DeployedTasks(job_id=job_id, task_manager=message.id, instance=message.instance, attempts=attempts)
        )
    except NotFound:
        return attempts
    except Unavailable:
        return ()
    return answer.attempts

"""Messages to JobMasters, and reconciliation of attempts with them.

Messages to one job arrive in the order of the decisions (a grant that overtakes the notification of a loss would send a
task to a dead TaskManager): each job has a delivery task for as long as messages wait. A job without a JobMaster needs
nothing any more: its slots become free.
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
from flintlock.model.backoff import Backoff
from flintlock.model.causes import CauseId, caused_by, current_cause
from flintlock.model.errors import NotFound, Unavailable
from flintlock.model.ids import AttemptId, JobId
from flintlock.model.slots import DeployedTasks, Heartbeat, NoResources, SlotGrant, TaskManagerLost
from flintlock.resourcemanager.core import JobMasterMessage

log: FilteringBoundLogger = structlog.get_logger()


_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=5.0)


class JobMasterOutbox:
    """Delivers messages to JobMasters, in order for each job, while it is open."""

    def __init__(
        self, job_masters: JobMasterGateway, is_granted: Callable[[SlotGrant], bool], forget: Callable[[JobId], None]
    ) -> None:
        self._job_masters = job_masters
        self._is_granted = is_granted
        self._forget = forget  # called for each job that has no JobMaster
        self._scope: asyncio.TaskGroup | None = None
        #: Messages with the cause of each; emptied by the job's own delivery task.
        self._queues: dict[JobId, deque[tuple[JobMasterMessage, CauseId | None]]] = {}

    def open(self, scope: asyncio.TaskGroup) -> None:
        """Begin to deliver, including what was sent before."""
        self._scope = scope
        for job_id in self._queues:
            self._start_delivery(scope, job_id)

    def close(self) -> None:
        """Start no delivery any more."""
        self._scope = None

    def send(self, message: JobMasterMessage) -> None:
        """Queue a message to its job; it is retried until its JobMaster has answered."""
        waiting = self._queues.get(message.job_id)
        if waiting is not None:
            waiting.append((message, current_cause()))
            return
        self._queues[message.job_id] = deque(((message, current_cause()),))
        if self._scope is not None:
            self._start_delivery(self._scope, message.job_id)

    def _start_delivery(self, scope: asyncio.TaskGroup, job_id: JobId) -> None:
        scope.create_task(self._deliver(job_id), name=f"deliver-{job_id}")

    async def _deliver(self, job_id: JobId) -> None:
        """Send a job its messages, in order, until none is left."""
        messages = self._queues[job_id]
        failures = 0
        try:
            while messages:
                try:
                    message, cause = messages[0]
                    with caused_by(cause):
                        await self._deliver_one(message)
                    messages.popleft()
                    failures = 0
                except NotFound:
                    log.info(log_events.JOBMASTER_GONE, job_id=job_id)
                    messages.clear()
                    self._forget(job_id)
                except Unavailable:
                    failures += 1
                    await asyncio.sleep(_BACKOFF.delay_s(failures))
        finally:
            del self._queues[job_id]

    async def _deliver_one(self, message: JobMasterMessage) -> None:
        match message:
            case SlotGrant():
                if self._is_granted(message):  # else it was withdrawn while it waited
                    await self._job_masters.slots_granted(message)
            case TaskManagerLost():
                await self._job_masters.task_manager_lost(message)
            case NoResources():
                await self._job_masters.no_resources(message)


async def find_unwanted(
    job_masters: JobMasterGateway, message: Heartbeat, holders: Iterable[JobId], limit_s: float
) -> tuple[AttemptId, ...]:
    """Return the attempts of a TaskManager that no JobMaster wants; each JobMaster is asked about its own.

    Jobs that have slots there are asked too if no attempt of them was reported: they may expect one. All attempts of a
    job without a JobMaster are unwanted. None is of a JobMaster that cannot answer now, or not within `limit_s` (for
    all together: the TaskManager's lease waits for this).
    """
    reported: dict[JobId, list[AttemptId]] = {job_id: [] for job_id in sorted(holders)}
    for item in message.attempts:
        reported.setdefault(item.attempt.job_id, []).append(item.attempt)
    found: list[AttemptId] = []
    try:
        async with asyncio.timeout(limit_s):
            for job_id, attempts in reported.items():
                found += await _find_unwanted_of(job_masters, message, job_id, tuple(attempts))
    except TimeoutError:
        log.warning(log_events.JOBMASTER_SLOW, task_manager=message.id, limit_s=limit_s)
    return tuple(found)


async def _find_unwanted_of(
    job_masters: JobMasterGateway, message: Heartbeat, job_id: JobId, attempts: tuple[AttemptId, ...]
) -> tuple[AttemptId, ...]:
    try:
        answer = await job_masters.reconcile(
            DeployedTasks(
                job_id=job_id,
                task_manager=message.id,
                instance=message.instance,
                heartbeat=message.number,
                attempts=attempts,
            )
        )
    except NotFound:
        return attempts
    except Unavailable:
        return ()
    return answer.attempts

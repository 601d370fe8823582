"""Reports that arrive: each is sent until it is answered, in order for its attempt; only the newest progress waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.model import log_events
from flintlock.model.errors import Fenced, FlintlockError, NotFound, TooLarge, Unavailable
from flintlock.model.ids import AttemptId
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    TaskReport,
)

_RETRY_S: Final = 0.3
log = structlog.get_logger()


class Outbox:
    """Delivers reports to whoever leads. `clear` forgets them: a new leader does not know these attempts."""

    def __init__(self, tasks: asyncio.TaskGroup, job_masters: Callable[[], JobMasterGateway]) -> None:
        self._tasks = tasks
        self._job_masters = job_masters
        self._queues: dict[AttemptId, deque[TaskReport]] = {}  # emptied by the attempt's own courier
        self._couriers: dict[AttemptId, asyncio.Task[None]] = {}  # one for each queue
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False  # never again once it is True

    def send(self, report: TaskReport) -> None:
        """Queue a report; progress that was not sent yet is replaced. After `close` it is dropped."""
        if self._closed:
            return
        queue = self._queues.get(report.attempt)
        if queue is None:
            queue = self._queues[report.attempt] = deque[TaskReport]()
            self._idle.clear()
            self._couriers[report.attempt] = self._tasks.create_task(
                self._deliver(report.attempt, queue), name=f"reports-{report.attempt}"
            )
        elif _passing(report) and len(queue) > 1 and _passing(queue[-1]):
            queue.pop()  # the first one may be under way
        queue.append(report)

    def clear(self) -> None:
        """Forget all that was not delivered."""
        for queue in self._queues.values():
            queue.clear()

    def close(self) -> None:
        """Forget all that was not delivered and deliver nothing more. Idempotent."""
        self._closed = True
        self.clear()
        for courier in self._couriers.values():
            courier.cancel()
        self._queues.clear()  # a courier that has not begun never gets to do it
        self._couriers.clear()
        self._idle.set()

    def waiting(self) -> tuple[AttemptId, ...]:
        """Return the attempts of which something is not yet told."""
        return tuple(attempt for attempt, queue in self._queues.items() if queue)

    async def drained(self) -> None:
        """Return once everything was delivered or given up."""
        await self._idle.wait()

    async def _deliver(self, attempt: AttemptId, queue: deque[TaskReport]) -> None:
        try:
            while queue:
                report = queue[0]
                rest: TaskReport | None = None
                try:
                    await self._job_masters().report(report)
                except NotFound:
                    log.info(log_events.REPORT_REJECTED, attempt=str(attempt))
                except (Unavailable, Fenced):
                    await asyncio.sleep(_RETRY_S)
                    continue
                except FlintlockError as error:
                    log.error(log_events.REPORT_REFUSED, attempt=str(attempt), reason=error.public)
                    rest = _instead(report, error)
                if queue and queue[0] is report:  # unless it was cleared meanwhile
                    queue.popleft()
                    if rest is not None:
                        queue.appendleft(rest)
        finally:
            self._queues.pop(attempt, None)
            self._couriers.pop(attempt, None)
            if not self._queues:
                self._idle.set()


def _instead(report: TaskReport, error: FlintlockError) -> TaskReport | None:
    """Return what can be told of an attempt whose end cannot: without a word its JobMaster would wait for ever."""
    match report.news:
        case TaskFinished() if isinstance(error, TooLarge):
            failure = Failure(
                kind=FailureKind.CONFIGURATION,
                message=f"the task is done, but what it keeps with the job is too large: {error.public}; "
                "write the rows with a sink, or lower the limit of the results",
                exception=type(error).__name__,
            )
        case TaskFailed(failure=told) if told.stack_trace or told.jvm_stack_trace:
            failure = structs.replace(told, stack_trace="", jvm_stack_trace=None)
        case _:
            return None
    return structs.replace(report, news=TaskFailed(failure=failure))


def _passing(report: TaskReport) -> bool:
    match report.news:
        case TaskProgress():
            return True
        case FilesPublished(complete=complete):
            return not complete
        case _:
            return False

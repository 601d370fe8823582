"""Reports to JobMasters: each is sent until it is answered, in order for its attempt; outdated progress is dropped."""

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
from flintlock.model.ids import AttemptId, TaskManagerId
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskProgress,
    TaskReport,
)
from flintlock.taskmanager.lease import CurrentLease

_RETRY_S: Final = 0.3
log = structlog.get_logger()


class Outbox:
    """Delivers reports to the JobMasters of the current leader."""

    def __init__(self, tasks: asyncio.TaskGroup, job_masters: Callable[[], JobMasterGateway]) -> None:
        self._tasks = tasks
        self._job_masters = job_masters
        self._queues: dict[AttemptId, deque[TaskReport]] = {}  # emptied by the attempt's own delivery task
        self._deliveries: dict[AttemptId, asyncio.Task[None]] = {}  # one for each queue
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False  # final once it is True

    def send(self, report: TaskReport) -> None:
        """Queue a report; progress that was not sent yet is replaced. After `close` it is dropped."""
        if self._closed:
            return
        queue = self._queues.get(report.attempt)
        if queue is None:
            queue = self._queues[report.attempt] = deque[TaskReport]()
            self._idle.clear()
            self._deliveries[report.attempt] = self._tasks.create_task(
                self._deliver(report.attempt, queue), name=f"reports-{report.attempt}"
            )
        elif _is_superseded_by_next(report) and len(queue) > 1 and _is_superseded_by_next(queue[-1]):
            queue.pop()  # never the first one: it may be on its way
        queue.append(report)

    def clear(self) -> None:
        """Drop all that was not delivered."""
        for queue in self._queues.values():
            queue.clear()

    def close(self) -> None:
        """Drop all that was not delivered and deliver nothing more. Idempotent."""
        self._closed = True
        self.clear()
        for delivery in self._deliveries.values():
            delivery.cancel()
        self._queues.clear()  # a delivery that is cancelled before its first step does not do it
        self._deliveries.clear()
        self._idle.set()

    def waiting(self) -> tuple[AttemptId, ...]:
        """Return the attempts with reports that are not yet delivered."""
        return tuple(attempt for attempt, queue in self._queues.items() if queue)

    async def drained(self) -> None:
        """Return once everything was delivered or dropped."""
        await self._idle.wait()

    async def _deliver(self, attempt: AttemptId, queue: deque[TaskReport]) -> None:
        try:
            while queue:
                report = queue[0]
                substitute: TaskReport | None = None
                try:
                    await self._job_masters().report(report)
                except NotFound:
                    log.info(log_events.REPORT_REJECTED, attempt=str(attempt))
                except (Unavailable, Fenced):
                    await asyncio.sleep(_RETRY_S)
                    continue
                except FlintlockError as error:
                    log.error(log_events.REPORT_REFUSED, attempt=str(attempt), reason=error.public)
                    substitute = _substitute(report, error)
                if queue and queue[0] is report:  # unless it was cleared meanwhile
                    queue.popleft()
                    if substitute is not None:
                        queue.appendleft(substitute)
        finally:
            self._queues.pop(attempt, None)
            self._deliveries.pop(attempt, None)
            if not self._queues:
                self._idle.set()


class LeasedReports:
    """Reports news of attempts in the name of the current incarnation, as long as its lease has not lapsed."""

    def __init__(self, task_manager: TaskManagerId, lease: CurrentLease, outbox: Outbox) -> None:
        self._task_manager: Final = task_manager
        self._lease: Final = lease
        self._outbox: Final = outbox

    def report(self, attempt: AttemptId, news: TaskNews) -> None:
        """Send news to the JobMaster; dropped once the lease has lapsed: the task may run elsewhere by now."""
        if self._lease.has_lapsed():
            return
        self._outbox.send(
            TaskReport(attempt=attempt, task_manager=self._task_manager, instance=self._lease.instance, news=news)
        )


def _substitute(report: TaskReport, error: FlintlockError) -> TaskReport | None:
    """Return what to send for a final report that was refused: without one, the JobMaster would wait for ever."""
    match report.news:
        case TaskFinished() if isinstance(error, TooLarge):
            failure = Failure(
                kind=FailureKind.CONFIGURATION,
                message=f"the task is done, but what it keeps with the job is too large: {error.public}; "
                "write the rows with a sink, or lower the limit of the results",
                exception=type(error).__name__,
            )
        case TaskFailed(failure=refused) if refused.stack_trace or refused.jvm_stack_trace:
            failure = structs.replace(refused, stack_trace="", jvm_stack_trace=None)
        case _:
            return None
    return structs.replace(report, news=TaskFailed(failure=failure))


def _is_superseded_by_next(report: TaskReport) -> bool:
    match report.news:
        case TaskProgress():
            return True
        case FilesPublished(complete=complete):
            return not complete
        case _:
            return False

"""The operations of one job: recorded before they are carried out, and again with their outcome.

    (nothing) -> IN_PROGRESS is durable, the client is acknowledged -> carried out -> COMPLETED is durable

A leader that dies before the first record has triggered nothing; the client triggers again with the same id. One that
dies later leaves an operation IN_PROGRESS: the next leader carries it out (again) once the job has its JobMaster, or
fails it if the job has ended. What operations do is therefore idempotent, and no other change of the job may come
between an operation and the record of its outcome: `JobChanger` ensures that.

All operations of a job are one record in the store, so its writes follow one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.writes import is_fatal_to_term, log_and_continue
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import JobOperationStore
from flintlock.model import log_events
from flintlock.model.causes import current_cause
from flintlock.model.commands import (
    CancelRequest,
    JobOperation,
    JobOperations,
    OperationFailure,
    RescaleRequest,
    StopJob,
    TriggerOperation,
)
from flintlock.model.errors import Conflict, FlintlockError, Unavailable

log: FilteringBoundLogger = structlog.get_logger()


class OperationRecorder:
    """Records the operations of one job under one term."""

    def __init__(
        self,
        recorded: JobOperations,
        store: JobOperationStore,
        gate: LeaderGate,
        clock_ms: Callable[[], int],
    ) -> None:
        self._recorded = recorded  # as it is durable; written by `_write`
        self._store: Final = store
        self._gate: Final = gate
        self._clock_ms: Final = clock_ms
        self._writing: Final = asyncio.Lock()  # locked from reading `_recorded` until its successor is durable

    @property
    def cancel(self) -> CancelRequest | None:
        """The cancel that is durable, if there is one."""
        return self._recorded.cancel

    @property
    def in_progress(self) -> tuple[JobOperation, ...]:
        """The operations whose outcome is not durable."""
        return self._recorded.in_progress

    @property
    def successor(self) -> str:
        """The job for which this one was stopped; "" if it was not, or is not saved."""
        saved = [each.command for each in self._recorded.operations if each.location]
        stops = [command for command in saved if isinstance(command, StopJob)]  # its user may have stopped it, too
        return next((stop.successor for stop in stops if stop.successor), "")

    @property
    def checkpoints_kept(self) -> bool:
        """Whether a stop has said that the checkpoints of the job, which had finished, are kept."""
        failures = [each.failure for each in self._recorded.operations if each.failure is not None]
        return any(failure.checkpoints_kept for failure in failures)

    async def begin(
        self, trigger: TriggerOperation, check: Callable[[], object], accepted: asyncio.Future[JobOperation]
    ) -> JobOperation | None:
        """Make an operation durable and acknowledge it; return it if it is new and is to be carried out.

        `check` raises if the job can take no operation now. A known trigger id with the same command is acknowledged
        again, with another command it is a Conflict. A store that does not answer is reported as Unavailable, and
        retried until it does: the operation then counts, as one whose acknowledgement was lost.
        """
        async with self._writing:
            try:
                known = known_operation(self._recorded, trigger)
                if known is not None:
                    accepted.set_result(known)
                    return None
                check()
                operation = JobOperation(
                    trigger_id=trigger.trigger_id, command=trigger.command, started_ms=self._clock_ms()
                )
                recorded = self._recorded.with_new(operation)
            except FlintlockError as error:
                accepted.set_exception(error)
                return None
            try:
                await self._write(recorded, accepted)
            except FlintlockError as error:
                if is_fatal_to_term(error) or accepted.done():
                    raise
                accepted.set_exception(error)
                return None
        log.info(
            log_events.JOB_OPERATION_STARTED,
            job_id=self._recorded.job_id,
            trigger_id=operation.trigger_id,
            command=type(operation.command).__name__,
        )
        if not accepted.done():
            accepted.set_result(operation)
        return operation

    async def record_cancel(self, request: CancelRequest, *, until_durable: bool = False) -> None:
        """Make a cancel durable, in one write; nothing is written for one that is recorded already.

        It is tried once, and Unavailable is raised: the client, which is waiting, sends it again. `until_durable`: no
        client waits for it, so it is retried.
        """
        async with self._writing:
            changed = self._recorded.with_cancel(request)
            if changed is self._recorded:
                return
            if until_durable:
                await self._write(changed)
                return
            await self._store.put(changed)
            self._recorded = changed

    async def record_rescale(self, requested_by: str) -> None:
        """Make durable who requests a rescale that is no operation. Raises Unavailable: it is tried once."""
        request = RescaleRequest(requested_ms=self._clock_ms(), requested_by=requested_by, cause=current_cause() or "")
        async with self._writing:
            changed = self._recorded.with_rescale(request)
            await self._store.put(changed)
            self._recorded = changed

    async def complete(
        self,
        operation: JobOperation,
        error: FlintlockError | None,
        location: str = "",
        *,
        checkpoints_kept: bool = False,
    ) -> None:
        """Make the outcome of an operation durable, however long it takes."""
        failure = None
        if error is not None:
            name = type(error).__name__
            failure = OperationFailure(error=name, message=error.public, checkpoints_kept=checkpoints_kept)
        await self._complete((operation,), failure, location)

    async def fail_unfinished(self, reason: str) -> None:
        """Complete all operations in progress as failed: their job has ended."""
        if self._recorded.in_progress or self._writing.locked():
            await self._complete(None, OperationFailure(error=Conflict.__name__, message=reason))

    async def _complete(
        self, operations: tuple[JobOperation, ...] | None, failure: OperationFailure | None, location: str = ""
    ) -> None:
        async with self._writing:
            completed = self._recorded.in_progress if operations is None else operations
            outcomes = tuple(each.completed(failure, self._clock_ms(), location) for each in completed)
            changed = self._recorded.with_outcomes(outcomes)
            if changed == self._recorded:
                return
            with log_and_continue(log_events.JOB_OPERATION_NOT_RECORDED, job_id=self._recorded.job_id):
                await self._write(changed)
                for outcome in outcomes:
                    log.info(
                        log_events.JOB_OPERATION_COMPLETED,
                        job_id=self._recorded.job_id,
                        trigger_id=outcome.trigger_id,
                        failure=None if failure is None else failure.message,
                    )

    async def _write(self, recorded: JobOperations, accepted: asyncio.Future[JobOperation] | None = None) -> None:
        async def put() -> None:
            try:
                await self._store.put(recorded)
            except Unavailable as error:
                if accepted is not None and not accepted.done():
                    accepted.set_exception(
                        Unavailable(f"it is not known whether the operation was stored: {error.public}; trigger again")
                    )
                raise

        await self._gate.retry_until_acknowledged(put)
        self._recorded = recorded


def known_operation(recorded: JobOperations, trigger: TriggerOperation) -> JobOperation | None:
    """Return the operation that a trigger id stands for. Raises Conflict if it stands for another command."""
    known = recorded.get(trigger.trigger_id)
    if known is not None and known.command != trigger.command:
        raise Conflict(f"the trigger id {trigger.trigger_id!r} of job {recorded.job_id} stands for another command")
    return known

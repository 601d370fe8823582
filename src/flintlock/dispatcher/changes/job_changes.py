"""The changes of one running job: its cancel, and what it may use, at once or as a recorded operation.

One change at a time: each is stored before the JobMaster gets it, and what a former leader left in progress is carried
out before anything else may change.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from msgspec import structs

from flintlock.dispatcher import core
from flintlock.dispatcher.changes.operations import OperationRecorder
from flintlock.dispatcher.changes.retries import wait_for_storage
from flintlock.dispatcher.services import Savepoints
from flintlock.dispatcher.writes import TermWrites, is_fatal_to_term, log_and_continue, outcome_of
from flintlock.gateways.jobmaster import JobMasterRunner
from flintlock.ha.protocols import JobGraphStore
from flintlock.model import log_events
from flintlock.model.commands import (
    CancelJob,
    CancelRequest,
    DrainTask,
    JobOperation,
    RescaleJob,
    StopJob,
    TriggerOperation,
    TriggerSavepoint,
)
from flintlock.model.errors import Conflict, FlintlockError, Invalid, NotFound, Unavailable
from flintlock.model.ids import AttemptId, JobId, TriggerId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobRescaling, StoredJob
from flintlock.model.states import ExecutionState, JobStatus

#: How often a job that is stopped has its attempts asked again: one may have been restarted meanwhile.
_DRAIN_INTERVAL_S: Final = 1.0

#: How often is looked whether the queries of a job that is rescaled run again.
_RESCALE_INTERVAL_S: Final = 0.2


#: How often a job that was stopped for another one is saved at least, though that one may be cancelled meanwhile.
_TRIES_FOR_A_SUCCESSOR: Final = 6

#: How long each of these may take then: where files are not linked, but copied, a large state takes some minutes.
_PATIENCE_FOR_A_SUCCESSOR_S: Final = 600.0


class ChangeableJob(Protocol):
    """What a change needs of the job that it changes."""

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        ...

    @property
    def stored(self) -> StoredJob:
        """The job as it is stored. Raises InvariantBroken once it has ended."""
        ...

    def replace_stored(self, former: StoredJob, changed: StoredJob) -> None:
        """Remember what is stored now. Ignored if `former` was not the latest: the job has ended meanwhile."""
        ...

    def initialised(self) -> JobMasterRunner:
        """Return the job's JobMaster. Raises Unavailable while there is none."""
        ...

    @property
    def has_result(self) -> bool:
        """Whether its JobMaster is done."""
        ...

    def check_runs(self) -> JobMasterRunner:
        """Return the job's JobMaster. Raises Conflict for a job that has ended, Unavailable for one without it yet."""
        ...

    def has_ended(self) -> Conflict:
        """Return the error for a command to a job that has ended."""
        ...

    def cancel(self, *, force: bool = False, requested_by: str = "") -> CancelRequest:
        """Cancel the job; return what to record of it. Raises Conflict if it can no longer be cancelled."""
        ...

    def show_wait(self, what: str) -> None:
        """Show what the job cannot go on without; "": nothing."""
        ...

    def is_awaited_by(self, successor: JobId) -> bool:
        """Return whether a job that takes the place of this one still waits for its end."""
        ...


class JobChanger:
    """Changes one job, and records those that are operations.

    The job owns it, and is passed to each change: a reference to the job here would keep ended jobs in memory.
    """

    def __init__(
        self, graphs: JobGraphStore, writes: TermWrites, operations: OperationRecorder, savepoints: Savepoints
    ) -> None:
        self._graphs: Final = graphs
        self._writes: Final = writes
        self._operations: Final = operations
        self._savepoints: Final = savepoints
        self.saving: Final = asyncio.Lock()  # locked while a savepoint is made: the checkpoints must stay
        self._updating = False  # a change is in progress, or was when a former leader died
        self._settling = False  # a change got no answer from the store, and is reverted

    @property
    def successor(self) -> str:
        """The job that takes the place of this one, which was stopped for it; "" if there is none."""
        return self._operations.successor

    def check_not_stopping(self, job_id: JobId) -> None:
        """Raise Conflict if the job is being stopped."""
        if any(isinstance(each.command, StopJob) for each in self._operations.in_progress):
            raise Conflict(f"job {job_id} is being stopped")

    async def rescale(self, job: ChangeableJob, command: RescaleJob, done: asyncio.Future[None]) -> None:
        """Persist who requests it, then what the job may use, and pass it to the JobMaster; `done` gets the outcome."""
        try:
            runner, stored = job.initialised(), job.stored
            wanted = self._checked(job.job_id, stored, command)
        except FlintlockError as error:
            done.set_exception(error)
            return
        self._updating = True
        recorded = False
        try:
            await self._operations.record_rescale(command.requested_by)
            recorded = True
            changed = _rescaled(stored, wanted)
            await self._graphs.replace(changed)
            job.replace_stored(stored, changed)
            runner.command(wanted)
            done.set_result(None)
        except FlintlockError as error:
            if is_fatal_to_term(error):
                raise
            done.set_exception(error)
            # It may be stored all the same, and would count from the next leader on.
            if recorded and isinstance(error, Unavailable):
                self._settling = True
                await self._writes.revert(stored)
        finally:
            self._updating = self._settling = False

    async def record_cancel(self, job_id: JobId, request: CancelRequest, done: asyncio.Future[None]) -> None:
        """Record a cancel that the job has accepted; the outcome is set on `done`.

        The job gets it first: its JobMaster alone knows whether it can still be cancelled, and a cancel that is refused
        must not be recorded. The client is answered once the record is durable: from then on every leader cancels the
        job. Where that fails the job is being cancelled all the same, but only by this leader.
        """
        try:
            await self._operations.record_cancel(request)
        except NotFound:  # it has ended meanwhile, and even its result is gone
            done.set_result(None)
        except FlintlockError as error:
            if is_fatal_to_term(error):
                raise
            text = f"job {job_id} is being cancelled, but that could not be stored: {error.public}"
            done.set_exception(Unavailable(f"{text}; send it again"))
        else:
            done.set_result(None)

    async def record_own_cancel(self, job_id: JobId, request: CancelRequest) -> None:
        """Record a cancel that no client has sent, however long that takes: the next leader has to know of it, too."""
        with log_and_continue(log_events.JOB_OPERATION_NOT_RECORDED, job_id=job_id), suppress(NotFound):
            await self._operations.record_cancel(request, until_durable=True)

    async def operate(
        self, job: ChangeableJob, trigger: TriggerOperation, accepted: asyncio.Future[JobOperation]
    ) -> None:
        """Record an operation, set the acknowledgement on `accepted`, carry the operation out, record its outcome."""
        operation = await self._operations.begin(trigger, job.check_runs, accepted)
        if operation is not None:
            await self._carry_out(job, operation)

    def claim_operations(self) -> bool:
        """Refuse other changes until `resume_operations` is done. Returns whether a former leader left operations."""
        self._updating = bool(self._operations.in_progress)
        return self._updating

    async def resume_operations(self, job: ChangeableJob) -> None:
        """Carry out what was in progress when a former leader died, in the order in which it was triggered."""
        for operation in self._operations.in_progress:
            self._updating = False  # for the operation itself: nothing runs between this line and its own claim
            await self._carry_out(job, operation, resumed=True)
            self._updating = True
        self._updating = False

    async def fail_unfinished(self, reason: str) -> None:
        """Complete all operations in progress as failed: the job has ended. A savepoint being made is waited for."""
        async with self.saving:
            await self._operations.fail_unfinished(reason)

    async def _carry_out(self, job: ChangeableJob, operation: JobOperation, *, resumed: bool = False) -> None:
        """Carry out an operation and record its outcome, whatever it raises: the next leader would raise it again."""
        try:
            await self._carry_out_command(job, operation, resumed=resumed)
        except Exception as error:  # noqa: BLE001 - it is the outcome
            await self._operations.complete(operation, outcome_of(error, job_id=job.job_id))

    async def _carry_out_command(self, job: ChangeableJob, operation: JobOperation, *, resumed: bool) -> None:
        match operation.command:
            case CancelJob(force=force, requested_by=requested_by):
                error: FlintlockError | None = None
                try:
                    job.check_runs()
                    await self._operations.record_cancel(job.cancel(force=force, requested_by=requested_by))
                except FlintlockError as refused:
                    error = refused
                await self._operations.complete(operation, error)
            case RescaleJob() as command:
                await self._rescale_durably(job, operation, command)
            case TriggerSavepoint() as command:
                await self._save(job, operation, command)
            case StopJob() as command:
                await self._drain(job, operation, command, resumed=resumed)

    async def _save(self, job: ChangeableJob, operation: JobOperation, command: TriggerSavepoint) -> None:
        """Make a savepoint and record where it is; the job is not changed by it.

        It is named by its trigger id, so the next leader finds one that was complete when this one died.
        """
        error: FlintlockError | None = None
        location = ""
        async with self.saving:
            try:
                job.check_runs()
                location = await self._savepoints.save(job.stored.graph, operation.trigger_id, command.target_directory)
            except Exception as failed:  # noqa: BLE001 - it is the outcome, whatever it is
                error = outcome_of(failed, job_id=job.job_id)
            await self._operations.complete(operation, error, location)

    async def _drain(self, job: ChangeableJob, operation: JobOperation, command: StopJob, *, resumed: bool) -> None:
        """Have every attempt of the job end after its batch, until the job has ended.

        The outcome is recorded at that end (`complete_stop`): if a leader dies before, the next one saves the job.
        """
        if job.has_result:  # while the operation was recorded: the end of the job completes it
            return
        try:
            graph = job.stored.graph
            if graph.job_type is not JobType.STREAMING:
                raise Conflict(f"job {job.job_id} is a batch job: only streaming jobs are stopped with a savepoint")
            if not resumed:  # else attempts may have been drained: the stop can no longer be refused
                await self._savepoints.prepare(command.target_directory)
        except Exception as error:  # noqa: BLE001 - it is the outcome, whatever it is
            await self._operations.complete(operation, outcome_of(error, job_id=job.job_id))
            return
        while not job.has_result and operation in self._operations.in_progress:
            # From here on attempts may have ended: whatever goes wrong, the stop is not given up.
            with log_and_continue(log_events.JOB_NOT_DRAINED, job_id=job.job_id), suppress(Unavailable):
                await _drain_attempts(job)
            await asyncio.sleep(_DRAIN_INTERVAL_S)

    async def complete_stop(self, job: ChangeableJob, status: JobStatus) -> bool:
        """Save a job that is to be stopped and has FINISHED, before its end is durable; record the outcome.

        Returns whether the checkpoints of the job are to be kept: they could not be saved, which a former leader may
        have recorded. A job that has ended otherwise was not stopped; `fail_unfinished` says so.
        """
        for operation in self._operations.in_progress:
            if not isinstance(operation.command, StopJob) or status is not JobStatus.FINISHED:
                continue
            error: FlintlockError | None = None
            location, directory = "", operation.command.target_directory
            # Another job may wait for this savepoint: without it, neither of the two would run.
            successor = operation.command.successor
            save = partial(self._savepoints.save, job.stored.graph, operation.trigger_id, directory)
            try:
                location = await wait_for_storage(
                    save,
                    is_over=partial(_is_not_awaited, job, successor),
                    show=job.show_wait,
                    tries=_TRIES_FOR_A_SUCCESSOR if successor else 1,
                    patience_s=_PATIENCE_FOR_A_SUCCESSOR_S if successor else math.inf,
                )
            except Exception as failed:  # noqa: BLE001 - it is the outcome, whatever it is
                reason = outcome_of(failed, job_id=job.job_id).public
                error = Unavailable(f"{reason}; the job has finished, and its checkpoints are kept")
            await self._operations.complete(operation, error, location, checkpoints_kept=error is not None)
        return status is JobStatus.FINISHED and self._operations.checkpoints_kept

    async def _rescale_durably(self, job: ChangeableJob, operation: JobOperation, command: RescaleJob) -> None:
        """Rescale as an operation: no client waits for it, so a store that does not answer is retried until it does."""
        try:
            runner, stored = job.check_runs(), job.stored
            wanted = self._checked(job.job_id, stored, command)
        except FlintlockError as error:
            await self._operations.complete(operation, error)
            return
        if stored.graph.job_type is JobType.STREAMING and command.parallelism is not None:
            await self._rescale_queries(job, operation, wanted, command.parallelism)
            return
        self._updating = True  # until the outcome is durable: else the next leader might repeat it over a later change
        try:
            changed, error = _rescaled(stored, wanted), None
            try:
                await self._writes.replace(changed)
            except NotFound:
                error = job.has_ended()
            else:
                job.replace_stored(stored, changed)
                runner.command(wanted)
            await self._operations.complete(operation, error)
        finally:
            self._updating = False

    async def _rescale_queries(
        self, job: ChangeableJob, operation: JobOperation, wanted: RescaleJob, partitions: int
    ) -> None:
        """Restart the queries of a streaming job with other partitions, and wait until each runs again.

        What is wanted and what was before are stored in one write, the outcome in another, and then with the operation:
        a leader that dies in between is followed by one that goes on from the last write. Restarting a query once more
        is harmless: an attempt that finds its state as wanted only says so. No savepoint is made meanwhile: the
        checkpoints are being exchanged.
        """
        self._updating = True
        try:
            async with self.saving:
                job.check_runs()
                rescaling = job.stored.rescaling
                if rescaling is None or rescaling.trigger_id != operation.trigger_id:
                    former = job.stored.requirements
                    rescaling = JobRescaling(trigger_id=operation.trigger_id, partitions=partitions, former=former)
                    await self._replace(job, structs.replace(_rescaled(job.stored, wanted), rescaling=rescaling))
                if not rescaling.completed:
                    job.check_runs().command(structs.replace(wanted, rescale=rescaling.wanted))
                    failure = await _rescaled_queries(job, operation.trigger_id)
                    rescaling = structs.replace(rescaling, completed=True, failure=failure)
                    changed = structs.replace(job.stored, rescaling=rescaling)
                    if failure:
                        changed = structs.replace(changed, requirements=rescaling.former)
                    await self._replace(job, changed)
                    if failure:
                        job.check_runs().command(RescaleJob(job_id=job.job_id, vertices=rescaling.former, reverts=True))
                error = None if not rescaling.failure else Unavailable(rescaling.failure)
                await self._operations.complete(operation, error)
        except (Conflict, NotFound):  # it has ended meanwhile
            await self._operations.complete(operation, job.has_ended())
        finally:
            self._updating = False

    async def _replace(self, job: ChangeableJob, changed: StoredJob) -> None:
        """Store the job as it is now. Raises NotFound if it has ended."""
        stored = job.stored
        await self._writes.replace(changed)
        job.replace_stored(stored, changed)

    def _checked(self, job_id: JobId, stored: StoredJob, command: RescaleJob) -> RescaleJob:
        """Return the command with a range for each step. Raises why it cannot be carried out now."""
        wanted = core.expanded(stored.graph, command)
        problems = core.requirement_problems(stored.graph, wanted)
        if problems:
            raise Invalid("; ".join(problems), problems=problems)
        if self._settling:
            raise Unavailable(f"it is not known yet what came of the last change of job {job_id}; ask again")
        if self._updating:
            raise Conflict(f"another change of job {job_id} is under way")
        return wanted


def _is_not_awaited(job: ChangeableJob, successor: str) -> bool:
    return not successor or not job.is_awaited_by(JobId(successor))


async def _rescaled_queries(job: ChangeableJob, trigger_id: TriggerId) -> str:
    """Wait until each query runs again after a rescale; return why some go on as they were. Raises Conflict at its end.

    Each attempt reports what came of it, also one that a former leader had started.
    """
    while True:
        if job.has_result:
            raise job.has_ended()
        with suppress(Unavailable):
            outcomes = core.rescale_outcomes(job.stored.graph, job.initialised().snapshot().executions, trigger_id)
            if outcomes is not None:
                return "; ".join(outcomes)
        await asyncio.sleep(_RESCALE_INTERVAL_S)


async def _drain_attempts(job: ChangeableJob) -> None:
    """Ask each attempt that runs to end after its batch. One that does not answer is asked again later."""
    runner = job.initialised()
    for execution in runner.snapshot().executions:
        if execution.state is ExecutionState.RUNNING:
            attempt = AttemptId(job_id=job.job_id, region=execution.region, attempt=execution.attempt)
            with suppress(NotFound, Conflict, Unavailable):
                await runner.query_task(DrainTask(attempt=attempt))


def _rescaled(stored: StoredJob, wanted: RescaleJob) -> StoredJob:
    return structs.replace(stored, requirements={**stored.requirements, **wanted.vertices})

"""Commands: what a client may request of a job, and what a JobMaster may request of a task.

A command is one message, the same struct from where it is given to where it is carried out:

    JobCommand    client -> REST -> DispatcherGateway.command -> DispatchedJob -> JobMasterRunner.command
    TaskCommand   JobMaster -> TaskManagerGateway.command -> EngineSession -> TaskRunner.command -> the runner's process
    TaskQuery     client -> REST -> DispatcherGateway.query_task -> JobMasterRunner.query_task -> as a TaskCommand

So a new command is a new member of its union and a case at each end, where a type checker points at what is missing;
nothing between the ends is edited. A query is a command to one running attempt that changes nothing and is answered by
its runner's process, while user code runs; what it answers is a member of `TaskAnswer`. `CONTRIBUTING.md` lists the
places.

A command whose outcome takes time is triggered as an *operation* (`JobOperation`): it has a trigger id, which the
client may choose, and is durable before it is acknowledged and again when it has been carried out. Operations are
carried out at least once: a leader that finds one in progress carries it out again, so what they do is idempotent.
Some commands are operations only (`OperationCommand`).
A cancel is recorded once, before it is acknowledged (`CancelRequest`): its outcome is the job's own end, and each later
leader cancels the job as soon as it has a JobMaster. Who requests a rescale that is no operation is recorded before it
is carried out (`RescaleRequest`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct, structs

from flintlock.model.diagnostics import ThreadStack
from flintlock.model.errors import Conflict
from flintlock.model.ids import AttemptId, JobId, TriggerId, VertexId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.streaming.checkpoints import StateRescale


class CancelJob(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End the job. Acknowledged once it is durable, not once the job has ended; a CANCELED job acknowledges again.

    A job that publishes its output is ended only by `force`: its targets then have a part of the files.
    """

    job_id: JobId
    force: bool = False
    requested_by: str = ""  # the name of the caller


class RescaleJob(Struct, frozen=True, kw_only=True, tag="rescale"):
    """Let steps use another number of slots: those in `vertices`, and all others up to `parallelism`.

    Without a `parallelism`, steps that are not named keep what they have.
    """

    job_id: JobId
    vertices: dict[VertexId, ParallelismRange] = {}
    parallelism: int | None = None
    requested_by: str = ""  # the name of the caller
    rescale: StateRescale | None = None  # Dispatcher to JobMaster: restart the queries, with a state of so many parts
    reverts: bool = False  # Dispatcher to JobMaster: a rescale has failed, and what the job may use is only this again


class TriggerSavepoint(Struct, frozen=True, kw_only=True, tag="savepoint"):
    """Save where the queries of a streaming job are, while it runs. The outcome is the savepoint's place."""

    job_id: JobId
    target_directory: str = ""  # the directory that it is made in; "": the configured one
    requested_by: str = ""  # the name of the caller


class StopJob(Struct, frozen=True, kw_only=True, tag="stop"):
    """End a streaming job with a savepoint: each query completes the batch that it has begun, and the job is FINISHED.

    The outcome is the savepoint's place. Until the job has ended, every leader goes on with it.
    """

    job_id: JobId
    target_directory: str = ""  # the directory that the savepoint is made in; "": the configured one
    requested_by: str = ""  # the name of the caller
    successor: str = ""  # the job that takes its place


JobCommand: TypeAlias = CancelJob | RescaleJob
OperationCommand: TypeAlias = JobCommand | TriggerSavepoint | StopJob


#: How many operations of one job are kept: the latest ones, and all that are in progress.
MAX_OPERATIONS: Final = 16


class OperationStatus(StrEnum):
    """Whether the outcome of an operation is known. Flink's names."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"


class OperationFailure(Struct, frozen=True, kw_only=True):
    """Why an operation could not be carried out."""

    error: str  # the name of the error's class
    message: str
    checkpoints_kept: bool = False  # of a stop: its job has finished, and could not be saved


class JobOperation(Struct, frozen=True, kw_only=True):
    """A command that was triggered, and its outcome. A COMPLETED one without a failure was carried out."""

    trigger_id: TriggerId
    command: OperationCommand
    started_ms: int
    status: OperationStatus = OperationStatus.IN_PROGRESS
    ended_ms: int = -1
    failure: OperationFailure | None = None
    location: str = ""  # of the savepoint that it has made

    def completed(self, failure: OperationFailure | None, now_ms: int, location: str = "") -> JobOperation:
        """Return the operation with its outcome."""
        return structs.replace(
            self, status=OperationStatus.COMPLETED, ended_ms=now_ms, failure=failure, location=location
        )


class CancelRequest(Struct, frozen=True, kw_only=True):
    """A cancel that was accepted. Its outcome is how the job ends."""

    requested_ms: int
    force: bool = False
    requested_by: str = ""  # the name of the caller; "" if no caller requested it
    cause: str = ""  # id of the request (`model.causes`); "" if it had none


class RescaleRequest(Struct, frozen=True, kw_only=True):
    """A rescale that a client waited for. It is recorded before it is carried out; what the job may use is its outcome.

    The store may have failed in between: then the client got that error, and the job is as it was.
    """

    requested_ms: int
    requested_by: str = ""  # the name of the caller
    cause: str = ""  # id of the request (`model.causes`); "" if it had none


class JobOperations(Struct, frozen=True, kw_only=True):
    """What was requested of one job: its operations and rescales, earliest first, and its cancel. One stored record."""

    job_id: JobId
    operations: tuple[JobOperation, ...] = ()
    cancel: CancelRequest | None = None
    rescales: tuple[RescaleRequest, ...] = ()  # those that were no operations, the latest MAX_OPERATIONS

    @property
    def in_progress(self) -> tuple[JobOperation, ...]:
        """Those whose outcome is not known."""
        return tuple(each for each in self.operations if each.status is OperationStatus.IN_PROGRESS)

    def get(self, trigger_id: TriggerId) -> JobOperation | None:
        """Return the operation with this id."""
        return next((each for each in self.operations if each.trigger_id == trigger_id), None)

    def with_new(self, operation: JobOperation) -> JobOperations:
        """Return these and a new one, without the earliest completed ones that are too many.

        Raises Conflict if too many are in progress.
        """
        if len(self.in_progress) >= MAX_OPERATIONS:
            raise Conflict(f"{MAX_OPERATIONS} operations of job {self.job_id} are in progress; wait for one of them")
        surplus = len(self.operations) + 1 - MAX_OPERATIONS
        completed = [each for each in self.operations if each.status is OperationStatus.COMPLETED]
        dropped = {each.trigger_id for each in completed[: max(surplus, 0)]}
        kept = tuple(each for each in self.operations if each.trigger_id not in dropped)
        return structs.replace(self, operations=(*kept, operation))

    def with_cancel(self, request: CancelRequest) -> JobOperations:
        """Return these and a cancel. The first one stays, unless a later one has more force."""
        if self.cancel is not None and (self.cancel.force or not request.force):
            return self
        return structs.replace(self, cancel=request)

    def with_rescale(self, request: RescaleRequest) -> JobOperations:
        """Return these and a rescale, without the earliest ones that are too many."""
        return structs.replace(self, rescales=(*self.rescales, request)[-MAX_OPERATIONS:])

    def with_outcomes(self, outcomes: tuple[JobOperation, ...]) -> JobOperations:
        """Return these with some replaced by their outcomes. Those that are completed already stay as they are."""
        ended = {each.trigger_id: each for each in outcomes}
        return structs.replace(
            self,
            operations=tuple(
                ended.get(each.trigger_id, each) if each.status is OperationStatus.IN_PROGRESS else each
                for each in self.operations
            ),
        )


class TriggerOperation(Struct, frozen=True, kw_only=True):
    """Client to Dispatcher: carry out this command; ask for the outcome by the trigger id."""

    trigger_id: TriggerId
    command: OperationCommand


class OperationQuery(Struct, frozen=True, kw_only=True):
    """Names one operation."""

    job_id: JobId
    trigger_id: TriggerId


class CancelTask(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End this attempt. Unknown or ended attempts are reported as CANCELED."""

    attempt: AttemptId


class PingTask(Struct, frozen=True, kw_only=True, tag="ping"):
    """Answer (CommandAccepted): shows that the attempt's runner responds."""

    attempt: AttemptId


class DumpThreads(Struct, frozen=True, kw_only=True, tag="dump-threads"):
    """Answer with the stacks of the runner's threads (ThreadsDumped)."""

    attempt: AttemptId


class DrainTask(Struct, frozen=True, kw_only=True, tag="drain"):
    """Have a streaming attempt end after the batch that it has begun (CommandAccepted). Repeating it is harmless.

    It is routed as a query, because it needs a runner that runs; what it leads to is reported as the attempt's end.
    """

    attempt: AttemptId


TaskQuery: TypeAlias = PingTask | DumpThreads | DrainTask
TaskCommand: TypeAlias = CancelTask | TaskQuery


class CommandAccepted(Struct, frozen=True, kw_only=True, tag="accepted"):
    """The command has arrived; what it leads to, if anything, is reported."""


class ThreadsDumped(Struct, frozen=True, kw_only=True, tag="threads-dumped"):
    """What each Python thread of the runner does now, the main thread, in which user code runs, first."""

    threads: tuple[ThreadStack, ...]


TaskAnswer: TypeAlias = CommandAccepted | ThreadsDumped

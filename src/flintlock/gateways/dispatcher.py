"""What clients may ask of the Dispatcher."""

from __future__ import annotations

from typing import Protocol

from flintlock.model.access.tokens import AccessToken, AccessTokenQuery, AccessTokens, FoundAccessToken
from flintlock.model.application import ShutDownCluster
from flintlock.model.commands import (
    JobCommand,
    JobOperation,
    JobOperations,
    OperationQuery,
    TaskAnswer,
    TaskQuery,
    TriggerOperation,
)
from flintlock.model.jobs import (
    AwaitJob,
    ClientHeartbeat,
    JobCounts,
    JobQuery,
    JobRequirements,
    JobSnapshot,
    JobsPage,
    JobsQuery,
    JobSubmission,
    ListingChanges,
    ListingChangesQuery,
    QuarantinedJob,
    QuarantinedJobs,
    ResultQuery,
    Submitted,
)
from flintlock.model.streaming.savepoints import DisposalQuery, DisposeSavepoint, SavepointDisposal
from flintlock.model.tasks import ResultRows


class DispatcherGateway(Protocol):
    """Accepts jobs and answers for them. During a change of leader every call raises Unavailable."""

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Persist and start the job; return once it is durable, without waiting for it to be initialised.

        The same idempotency key with the same digest answers the same job again; with another digest KeyReused.
        Raises Invalid, DuplicateJob.
        """
        ...

    async def list_jobs(self, message: JobsQuery) -> JobsPage:
        """Return a page of the listing of all jobs: the newest start first, then by id.

        A job is at one position for good: pages that are requested one after the other have each job at most once.
        """
        ...

    async def job_counts(self) -> JobCounts:
        """Return how many jobs are in each state; the same object until some line of the listing changes.

        Ended jobs of earlier leaders are counted as they are read, for some seconds after a change of leader.
        """
        ...

    async def listing_changes(self, message: ListingChangesQuery) -> ListingChanges:
        """Return the lines of the listing that have changed since a version. Versions of other leaders are unknown."""
        ...

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Return all that is known of one job. Raises NotFound."""
        ...

    async def await_job(self, message: AwaitJob) -> JobSnapshot:
        """Return the job when it has ended for good (its result is durable), or as it is after the wait.

        Raises NotFound.
        """
        ...

    async def command(self, message: JobCommand) -> None:
        """Give a job a command; return once it is accepted (and durable, where it changes what is stored of the job).

        Raises NotFound. CancelJob: once it returns, every later leader cancels the job too; a CANCELED job is
        acknowledged again; another ended one, or one that is publishing or cleaning up, raises Conflict; Unavailable:
        the job is being cancelled, but a change of leader may continue it. RescaleJob: raises Invalid for what is not
        compatible with the graph, Conflict while another change of the job is in progress or once it has ended,
        Unavailable if the change could not be stored: then nothing has changed.
        """
        ...

    async def trigger(self, message: TriggerOperation) -> JobOperation:
        """Trigger a command as an operation; return once the operation is durable, without waiting for its outcome.

        A known trigger id with the same command is acknowledged again and starts nothing; with another command it is a
        Conflict, as is an operation of a job that has ended. Raises NotFound, and Unavailable while the job is
        initialised. Whether the command can be carried out is the operation's outcome, not an error of this call.
        """
        ...

    async def operation(self, message: OperationQuery) -> JobOperation:
        """Return an operation, of an ended job too. Raises NotFound."""
        ...

    async def dispose_savepoint(self, message: DisposeSavepoint) -> SavepointDisposal:
        """Trigger the removal of a savepoint; return once that is durable, without waiting for its outcome.

        A known trigger id of the same savepoint is acknowledged again and starts nothing; of another one it is a
        Conflict. Raises Unavailable. Whether the savepoint can be removed is the outcome, not an error of this call.
        """
        ...

    async def disposal(self, message: DisposalQuery) -> SavepointDisposal:
        """Return a disposal, one of the latest. Raises NotFound, Unavailable."""
        ...

    async def job_changes(self, message: JobQuery) -> JobOperations:
        """Return what was requested of a job since its submission, ended or not. Raises NotFound."""
        ...

    async def query_task(self, message: TaskQuery) -> TaskAnswer:
        """Have a running attempt's runner answer a query, while user code runs. Changes nothing.

        Raises NotFound for an attempt that does not exist, Conflict for one that does not run (any more), Unavailable
        if its runner does not answer: it ends, is busy or is stopped, or its TaskManager cannot be reached.
        """
        ...

    async def client_heartbeat(self, message: ClientHeartbeat) -> None:
        """Record that a client is attached. Harmless for a job that does not ask for it. Raises NotFound."""
        ...

    async def requirements(self, message: JobQuery) -> JobRequirements:
        """Return what a running job may use. Raises NotFound; Unavailable while it is initialised."""
        ...

    async def result(self, message: ResultQuery) -> ResultRows:
        """Return a collected result of the job. Raises NotFound; Conflict while the job has not finished."""
        ...

    async def quarantined_jobs(self) -> QuarantinedJobs:
        """Return all quarantined jobs, with the reasons."""
        ...

    async def quarantined_job(self, message: JobQuery) -> QuarantinedJob:
        """Return a quarantined job. Raises NotFound."""
        ...

    async def retry_quarantined(self, message: JobQuery) -> None:
        """Put a quarantined job back among those to run, under its own id; return once that is durable and it runs.

        A job that runs already is acknowledged again. Raises NotFound for one that is not quarantined, Conflict with
        the reason for one that is quarantined again, or that is still being cleaned up.
        """
        ...

    async def drop_quarantined(self, message: JobQuery) -> None:
        """Give a quarantined job up; return once that is durable. Its records, files and artifacts are then removed.

        It stays listed as FAILED until its retention is over. One that was dropped before is acknowledged again. Raises
        NotFound for an unknown job.
        """
        ...

    async def add_token(self, message: AccessToken) -> None:
        """Store an access token; return once it is durable. Adding it again is acknowledged again.

        Raises Conflict if there are too many.
        """
        ...

    async def tokens(self) -> AccessTokens:
        """Return the access tokens that have not expired."""
        ...

    async def find_token(self, message: AccessTokenQuery) -> FoundAccessToken:
        """Return one access token, also one that has expired."""
        ...

    async def revoke_token(self, message: AccessTokenQuery) -> None:
        """Remove an access token; return once that is durable. Raises NotFound."""
        ...

    async def shut_down_cluster(self, message: ShutDownCluster) -> None:
        """Begin to end all processes of the cluster, with this status. Running jobs are suspended, not cancelled.

        Idempotent: the first status counts. Returns before the cluster has ended. A leader that dies meanwhile may
        leave a cluster that goes on: then ask again.
        """
        ...

"""A Dispatcher whose jobs are put into a state by the test."""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import structs

from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.model.access.tokens import AccessToken, AccessTokenQuery, AccessTokens, FoundAccessToken
from flintlock.model.application import ShutDownCluster
from flintlock.model.checking.graphcheck import check_graph
from flintlock.model.commands import (
    CancelJob,
    CommandAccepted,
    JobCommand,
    JobOperation,
    JobOperations,
    OperationQuery,
    RescaleJob,
    TaskAnswer,
    TaskQuery,
    TriggerOperation,
)
from flintlock.model.errors import Conflict, DuplicateJob, FlintlockError, KeyReused, NotFound
from flintlock.model.ids import AccessTokenId, JobId, TriggerId
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
from flintlock.model.regions import regions_of
from flintlock.model.states import JobStatus
from flintlock.model.streaming.savepoints import DisposalQuery, DisposeSavepoint, SavepointDisposal
from flintlock.model.tasks import ResultRows


class FakeDispatcher:
    """A DispatcherGateway: jobs stay in the state in which `put` puts them."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self.fail_with: FlintlockError | None = None  # raised by every call while it is set
        self.submissions: list[JobSubmission] = []  # those that were accepted
        self.cancelled: list[JobId] = []
        self.requested_by: list[str] = []  # by whom, for each of them
        self.forced: list[JobId] = []  # those of them that were forced
        self.quarantine: dict[JobId, QuarantinedJob] = {}
        self.retried: list[JobId] = []
        self.dropped: list[JobId] = []
        self.changes: dict[JobId, JobOperations] = {}
        self.access_tokens: dict[AccessTokenId, AccessToken] = {}
        self.shut_downs: list[ShutDownCluster] = []
        self.awaited: list[AwaitJob] = []
        self.client_heartbeats: list[ClientHeartbeat] = []
        self.required: dict[JobId, JobRequirements] = {}
        self.queries: list[TaskQuery] = []
        self.answer: TaskAnswer = CommandAccepted()  # to each of them
        self.operations: dict[TriggerId, JobOperation] = {}
        self.disposals: dict[TriggerId, SavepointDisposal] = {}
        self.results: dict[tuple[JobId, str], ResultRows] = {}
        self.now_ms = now_ms  # the start time of submitted jobs
        self._jobs: dict[JobId, JobSnapshot] = {}  # in the order of their submission
        self._keys: dict[str, JobSubmission] = {}
        self._listing = JobListing()
        self._listing.load((), None)
        self._changed = asyncio.Event()  # replaced whenever it is set

    def put(self, *snapshots: JobSnapshot) -> None:
        """Make these the current snapshots of their jobs."""
        for snapshot in snapshots:
            job_id = snapshot.graph.job_id
            self._jobs[job_id] = snapshot
            if not snapshot.status.globally_terminal:  # it may have ended before: here jobs may do what they cannot
                deque(self._listing.expire((job_id,)), maxlen=0)
            self._listing.put(snapshot.summary())
        self._changed.set()
        self._changed = asyncio.Event()

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Accept a job. An idempotency key makes one job only."""
        self._fail()
        key, graph = message.idempotency_key, check_graph(message.graph)
        message = structs.replace(message, graph=graph)
        known = self._keys.get(key) if key is not None else None
        if known is not None:
            if known.digest != message.digest:
                raise KeyReused(f"the idempotency key {key!r} was used for another graph")
            return Submitted(job_id=known.graph.job_id, existing=True)
        if graph.job_id in self._jobs:
            raise DuplicateJob(f"job {graph.job_id} is known already")
        if key is not None:
            self._keys[key] = message
        self.submissions.append(message)
        self.put(
            JobSnapshot(
                graph=graph,
                regions=regions_of(graph),
                status=JobStatus.CREATED,
                timestamps={JobStatus.INITIALIZING: self.now_ms, JobStatus.CREATED: self.now_ms},
                end_ms=-1,
                last_modified_ms=self.now_ms,
                executions=(),
            )
        )
        return Submitted(job_id=graph.job_id)

    async def list_jobs(self, message: JobsQuery) -> JobsPage:
        """Return a page of the jobs."""
        self._fail()
        while self._listing.sort_some(message.order):
            pass
        return self._listing.page(message)

    async def job_counts(self) -> JobCounts:
        """Return the same object until a job changes."""
        self._fail()
        return self._listing.counts()

    async def listing_changes(self, message: ListingChangesQuery) -> ListingChanges:
        """Return what `put` has changed since."""
        self._fail()
        return self._listing.changes(message.since)

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Return a job."""
        self._fail()
        return self._job(message.job_id)

    async def await_job(self, message: AwaitJob) -> JobSnapshot:
        """Return a job when it has ended, or after the wait."""
        self._fail()
        self.awaited.append(message)
        try:
            async with asyncio.timeout(message.wait_s):
                while not self._job(message.job_id).status.globally_terminal:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._job(message.job_id)

    async def client_heartbeat(self, message: ClientHeartbeat) -> None:
        """Record it."""
        self._fail()
        self._job(message.job_id)
        self.client_heartbeats.append(message)

    async def requirements(self, message: JobQuery) -> JobRequirements:
        """Return the requirements in `required`; empty ones if there are none."""
        self._fail()
        self._job(message.job_id)
        return self.required.get(message.job_id, JobRequirements(job_id=message.job_id, vertices={}))

    async def command(self, message: JobCommand) -> None:
        """Record the command."""
        self._fail()
        status = self._job(message.job_id).status
        match message:
            case CancelJob(job_id=job_id, force=force):
                if status.globally_terminal and status is not JobStatus.CANCELED:
                    raise Conflict(f"job {job_id} has ended: it is {status}")
                self.cancelled.append(job_id)
                self.requested_by.append(message.requested_by)
                if force:
                    self.forced.append(job_id)
            case RescaleJob(job_id=job_id, vertices=vertices):
                self.required[job_id] = JobRequirements(job_id=job_id, vertices=vertices)

    async def query_task(self, message: TaskQuery) -> TaskAnswer:
        """Record the query and return `answer`."""
        self._fail()
        self._job(message.attempt.job_id)
        self.queries.append(message)
        return self.answer

    async def trigger(self, message: TriggerOperation) -> JobOperation:
        """Record an operation; it stays in progress until the test completes it."""
        self._fail()
        self._job(message.command.job_id)
        operation = JobOperation(trigger_id=message.trigger_id, command=message.command, started_ms=0)
        return self.operations.setdefault(message.trigger_id, operation)

    async def operation(self, message: OperationQuery) -> JobOperation:
        """Return an entry of `operations`."""
        self._fail()
        found = self.operations.get(message.trigger_id)
        if found is None or found.command.job_id != message.job_id:
            raise NotFound(f"job {message.job_id} has no operation {message.trigger_id!r}")
        return found

    async def dispose_savepoint(self, message: DisposeSavepoint) -> SavepointDisposal:
        """Record it; `disposals` may have the outcome already."""
        self._fail()
        disposal = SavepointDisposal(trigger_id=message.trigger_id, path=message.path)
        return self.disposals.setdefault(message.trigger_id, disposal)

    async def disposal(self, message: DisposalQuery) -> SavepointDisposal:
        """Return an entry of `disposals`."""
        self._fail()
        if message.trigger_id not in self.disposals:
            raise NotFound(f"there is no disposal {message.trigger_id!r}")
        return self.disposals[message.trigger_id]

    async def quarantined_jobs(self) -> QuarantinedJobs:
        """Return the jobs in `quarantine`."""
        self._fail()
        return QuarantinedJobs(jobs=tuple(self.quarantine.values()))

    async def quarantined_job(self, message: JobQuery) -> QuarantinedJob:
        """Return one of them."""
        self._fail()
        if message.job_id not in self.quarantine:
            raise NotFound(f"job {message.job_id} is not quarantined")
        return self.quarantine[message.job_id]

    async def retry_quarantined(self, message: JobQuery) -> None:
        """Record it."""
        await self.quarantined_job(message)
        self.retried.append(message.job_id)

    async def drop_quarantined(self, message: JobQuery) -> None:
        """Record it."""
        await self.quarantined_job(message)
        self.dropped.append(message.job_id)

    async def job_changes(self, message: JobQuery) -> JobOperations:
        """Return what `changes` has."""
        self._fail()
        self._job(message.job_id)
        return self.changes.get(message.job_id, JobOperations(job_id=message.job_id))

    async def add_token(self, message: AccessToken) -> None:
        """Remember it."""
        self._fail()
        self.access_tokens[message.id] = message

    async def tokens(self) -> AccessTokens:
        """Return all tokens, expired or not."""
        self._fail()
        return AccessTokens(tokens=tuple(self.access_tokens.values()))

    async def find_token(self, message: AccessTokenQuery) -> FoundAccessToken:
        """Return the token."""
        self._fail()
        return FoundAccessToken(token=self.access_tokens.get(message.id))

    async def revoke_token(self, message: AccessTokenQuery) -> None:
        """Forget it."""
        self._fail()
        if self.access_tokens.pop(message.id, None) is None:
            raise NotFound(f"token {message.id} was not found")

    async def shut_down_cluster(self, message: ShutDownCluster) -> None:
        """Record the request."""
        self._fail()
        self.shut_downs.append(message)

    async def result(self, message: ResultQuery) -> ResultRows:
        """Return the rows in `results`."""
        self._fail()
        status = self._job(message.job_id).status
        if status is not JobStatus.FINISHED:
            raise Conflict(f"job {message.job_id} has no results: it is {status}")
        found = self.results.get((message.job_id, message.name))
        if found is None:
            raise NotFound(f"job {message.job_id} has no result {message.name!r}")
        return found

    def _job(self, job_id: JobId) -> JobSnapshot:
        if job_id not in self._jobs:
            raise NotFound(f"job {job_id} was not found")
        return self._jobs[job_id]

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with

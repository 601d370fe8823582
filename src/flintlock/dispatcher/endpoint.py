"""The Dispatcher of one term: what clients call, and the scope in which its jobs run.

Every method decides without `await` between reading the registered jobs and writing them; the loop's single thread is
the mailbox, so there are no locks. What takes time happens in the jobs' own tasks, children of the scope: a caller
that disconnects cancels its waiting, never the work. Leaving the scope suspends every job and waits for its JobMaster;
a fatal error leaves the scope as an exception group and ends the term.

Rejected: reading the JobResultStore before each submission. The transaction that stores the graph checks, atomically,
that no job of that id has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.config.options import (
    CLEANUP_INITIAL,
    CLEANUP_MAX,
    FAILED_JOB_RESULTS,
    FAILED_JOB_RESULTS_SIZE,
    JOB_RETENTION,
)
from flintlock.dispatcher import core
from flintlock.dispatcher.changes.disposals import Disposals
from flintlock.dispatcher.changes.operations import known_operation
from flintlock.dispatcher.changes.upgrading import Upgrades
from flintlock.dispatcher.core import JobPhase
from flintlock.dispatcher.job import DispatchedJob, JobBody, JobServices
from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.dispatcher.listing.listing_loader import ListingLoader
from flintlock.dispatcher.listing.listing_pages import ListingPages
from flintlock.dispatcher.quarantine import Quarantine
from flintlock.dispatcher.recovery import JobRecovery, Recovery
from flintlock.dispatcher.retention.ended import EndedJobs
from flintlock.dispatcher.retention.expiry import Retention
from flintlock.dispatcher.retention.kept_results import KeptResultsRegistry
from flintlock.dispatcher.retention.retention_clock import RetentionClock
from flintlock.dispatcher.services import DispatcherServices, TermServices
from flintlock.dispatcher.sink_writers import SinkWriters
from flintlock.dispatcher.submission import Refuse, Submissions, accept_all, answer_unanswered
from flintlock.dispatcher.tokens import TokenRegistry
from flintlock.dispatcher.writes import TermWrites
from flintlock.model import log_events
from flintlock.model.access.tokens import AccessToken, AccessTokenQuery, AccessTokens, FoundAccessToken
from flintlock.model.application import ApplicationStatus, ShutDownCluster
from flintlock.model.backoff import Backoff
from flintlock.model.causes import caused_by
from flintlock.model.commands import (
    CancelJob,
    JobCommand,
    JobOperation,
    JobOperations,
    OperationQuery,
    RescaleJob,
    TaskAnswer,
    TaskQuery,
    TriggerOperation,
)
from flintlock.model.errors import Conflict, InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import JobId
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
    JobSummary,
    ListingChanges,
    ListingChangesQuery,
    QuarantinedJob,
    QuarantinedJobs,
    ResultQuery,
    Submitted,
)
from flintlock.model.states import JobStatus
from flintlock.model.streaming.savepoints import DisposalQuery, DisposeSavepoint, SavepointDisposal
from flintlock.model.tasks import ResultRows

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()

#: Recovered jobs that start in one turn of the loop. With all of ten thousand in one turn, the loop would serve nothing
#: else for seconds: a leader would miss its own heartbeat, and step down.
_BEGUN_AT_ONCE: Final = 50


@asynccontextmanager
async def dispatching(
    services: DispatcherServices, term: TermServices, recovery: Recovery, refuse: Refuse = accept_all
) -> AsyncGenerator[Dispatcher]:
    """Serve as Dispatcher for one term; on exit its jobs are suspended and nothing of it remains.

    `refuse` says which jobs are not accepted.

    Raises (in a group) what is fatal to the term: Fenced, a result that cannot be written, InvariantBroken.
    """
    async with asyncio.TaskGroup() as tasks:
        dispatcher = Dispatcher(services, term, tasks, recovery.retention_clock, refuse)
        try:
            await dispatcher.start(recovery)
            yield dispatcher
        finally:
            dispatcher.stop()


class Dispatcher:
    """Implements DispatcherGateway for one term."""

    def __init__(
        self,
        services: DispatcherServices,
        term: TermServices,
        tasks: asyncio.TaskGroup,
        clock: RetentionClock,
        refuse: Refuse = accept_all,
    ) -> None:
        configuration = services.configuration
        upgrades = Upgrades(self, services.savepoints)
        self._services: Final = services
        self._stores: Final = term.stores
        self._gate: Final = term.gate
        self._writes: Final = TermWrites(term.stores, term.gate)
        self._tasks: Final = tasks
        self._listing: Final = JobListing(version=services.clock_ms() * 1000)
        self._loader: Final = ListingLoader(self._listing, term.stores.ended, term.gate)
        self._pages: Final = ListingPages(self._listing, self._loader, self._refresh_listing)
        self._ended: Final = EndedJobs(term.stores)
        self._kept_results: Final = KeptResultsRegistry(
            clock, configuration.get(FAILED_JOB_RESULTS_SIZE), self._uses_results_of
        )
        self._shared: Final = JobServices(
            term=term,
            configuration=configuration,
            writes=self._writes,
            blobs=services.blobs,
            backoff=Backoff(initial_s=configuration.get(CLEANUP_INITIAL), maximum_s=configuration.get(CLEANUP_MAX)),
            retention_s=configuration.get(JOB_RETENTION),
            kept_results_s=configuration.get(FAILED_JOB_RESULTS),
            kept_results=self._kept_results,
            clock_ms=services.clock_ms,
            retention_clock=clock,
            metrics=services.metrics,
            listing=self._listing,
            ended=self._ended,
            savepoints=services.savepoints,
            begin_child=self._begin_child,
            upgrades=upgrades,
            count_lost_leader=services.count_lost_leader,
        )
        self.jobs: Final[dict[JobId, DispatchedJob]] = {}  # added when an id is reserved, removed when its task ends
        self.recovered: Final = asyncio.Event()  # set once the jobs of earlier terms are among them
        sinks = SinkWriters(self.jobs, self.recovered)
        self._submissions: Final = Submissions(services, self._shared, self, refuse, upgrades=upgrades, sinks=sinks)
        self._quarantine: Final = Quarantine(
            self._shared, self, lambda: JobRecovery(term.stores, services, term.gate, clock), sinks
        )
        self._disposals: Final = Disposals(services.savepoints, term.stores.disposals, term.gate, self._begin_child)
        self._tokens: Final = TokenRegistry(term.stores.access_tokens, services.clock_ms)
        self._retention: Final = Retention(services, self._shared, self.jobs, self._loader)
        self._children: Final[dict[asyncio.Task[None], None]] = {}  # all that `stop` cancels; removed as they end
        self._shut_down: Final[asyncio.Future[ApplicationStatus]] = asyncio.get_running_loop().create_future()
        self._stopped = False  # written by `stop`, when the scope is left or a child has failed

    async def start(self, recovery: Recovery) -> None:
        """Take over the recovered jobs, and start them."""
        core.check_recovery((job.stored.graph.job_id for job in recovery.jobs), recovery.dirty)
        await self._retention.prune_blobs(recovery)  # before a client can submit a job that is not among these
        with caused_by(recovery.cause):
            await self._begin_recovered(recovery)
        self._kept_results.open()
        if self._services.metrics is not None:
            self._services.metrics.recovered(len(recovery.jobs))
        self._child(self._retention.run_clock(), "dispatcher-retention-clock")
        for line in recovery.ended:
            self._listing.put(line)
        self._child(self._loader.run(), "dispatcher-listing")
        self._child(self._retention.expire_jobs(), "dispatcher-retention")
        self._child(self._quarantine.drop_expired(), "dispatcher-quarantine-retention")
        self._child(self._retention.expire_blobs(), "dispatcher-blob-retention")
        self._child(self._retention.remove_old_logs(), "dispatcher-log-retention")
        self._child(self._disposals.resume(), "dispatcher-disposals")

    async def _begin_recovered(self, recovery: Recovery) -> None:
        """Start the jobs of earlier terms, and the cleanup of those that have ended."""
        for result in recovery.dirty:
            operations = recovery.operations.get(result.job_id)
            dirty = DispatchedJob(result.job_id, self._shared, JobPhase.CLEANING, result=result, operations=operations)
            self.begin(dirty, dirty.clean_up_dirty)
        for number, job in enumerate(recovery.jobs, 1):
            job_id = job.stored.graph.job_id
            operations = recovery.operations.get(job_id)
            recovered = DispatchedJob(
                job_id, self._shared, JobPhase.INITIALIZING, stored=job.stored, operations=operations
            )
            self.begin(recovered, partial(recovered.run_recovered, job.progress, job.history))
            if recovered.changes.claim_operations():
                # They are resumed after the job's own first step, which creates its JobMaster.
                self._child(recovered.changes.resume_operations(recovered), f"operations-{job_id}")
            self._listing.touch(job_id)
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.recovered.set()

    def stop(self) -> None:
        """Refuse all further calls and suspend every job. Idempotent: a second cancel would cut it short."""
        if self._stopped:
            return
        self._stopped = True
        for job in self.jobs.values():
            job.wake_clients()  # they get Unavailable
        self._loader.stop()
        for child in self._children:
            child.cancel()

    async def wait_for_shut_down(self) -> ApplicationStatus:
        """Return the status once the Dispatcher is asked to shut the cluster down."""
        return await asyncio.shield(self._shut_down)

    def unended_jobs(self) -> tuple[JobId, ...]:
        """Return the jobs that have not ended, those included that are being stored."""
        return tuple(job_id for job_id, job in self.jobs.items() if not job.ended)

    async def finish_cleanup(self, patience_s: float) -> None:
        """Return once all ended jobs are cleaned up; after `patience_s` their files stay, and are named in the log.

        Failed jobs no longer keep their results.
        """
        self._kept_results.release_all()
        jobs = {job.task: job for job in self.jobs.values() if job.ended and job.task is not None}
        if not jobs:
            return
        _, unfinished = await asyncio.wait(jobs, timeout=patience_s)
        for job in (jobs[task] for task in unfinished):
            log.error(
                log_events.JOB_CLEANUP_GIVEN_UP,
                job_id=job.job_id,
                resource=core.CleanupResource.FILES,
                reason=f"the cluster ends, and the cleanup was not done within {patience_s:g} s",
                directories=[*job.scratch],
            )

    def _uses_results_of(self, job_id: JobId) -> bool:
        """Return whether a job that has not ended may read what this one has kept."""
        return any(job_id in job.reuses for job in self.jobs.values())

    def assert_empty(self) -> None:
        """Raise InvariantBroken if a job or an idempotency key is still registered: after the last cleanup none is."""
        left = [*self.jobs, *self._submissions.undecided_keys]
        if left:
            raise InvariantBroken(f"the Dispatcher has still registered {', '.join(map(str, left))}")

    # DispatcherGateway

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Persist and start the job; answer once it is durable. See DispatcherGateway."""
        self.check_leading()
        if self._shut_down.done():
            raise Unavailable("the cluster is shutting down")
        return await self._submissions.submit(message)

    async def list_jobs(self, message: JobsQuery) -> JobsPage:
        """Return a page of the listing; waits until no ended job can be missing on it."""
        return await self._pages.page(message)

    async def job_counts(self) -> JobCounts:
        """Return how many jobs are in each state; the same object until something changes."""
        await self._refresh_listing()
        return self._listing.counts()

    async def listing_changes(self, message: ListingChangesQuery) -> ListingChanges:
        """Return the lines of the listing that have changed since a version."""
        await self._refresh_listing()
        return self._listing.changes(message.since)

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Return the details of one job."""
        self.check_leading()
        running = await self._running(message.job_id)
        return running[1] if running is not None else await self._ended_job(message.job_id)

    async def await_job(self, message: AwaitJob) -> JobSnapshot:
        """Return the job once its result is durable, or as it is when the wait is over."""
        self.check_leading()
        job = self._visible(message.job_id)
        if job is not None and not job.ended and message.wait_s > 0:
            try:
                async with asyncio.timeout(message.wait_s):
                    await job.durable_end.wait()
            except TimeoutError:
                pass
        return await self.job(JobQuery(job_id=message.job_id))

    async def command(self, message: JobCommand) -> None:
        """Give a job a command; return once it is accepted. See DispatcherGateway."""
        self.check_leading()
        match message:
            case CancelJob():
                await self._cancel(message)
            case RescaleJob():
                await self._rescale(message)

    async def _cancel(self, command: CancelJob) -> None:
        """Cancel the job, or acknowledge that it was cancelled."""
        job_id = command.job_id
        running = await self._running(job_id)
        if running is not None:
            request = running[0].cancel(force=command.force, requested_by=command.requested_by)
            recording = partial(running[0].changes.record_cancel, job_id, request)
            await self._acknowledged(recording, f"cancel-{job_id}", "the cancel of a job was being stored")
            return
        core.check_cancel_of_ended(job_id, (await self._ended_job(job_id)).status)

    async def _rescale(self, command: RescaleJob) -> None:
        """Make a running job use this much; one change at a time for each job."""
        job = await self._changeable(command.job_id)
        await self._acknowledged(
            partial(job.changes.rescale, job, command),
            f"rescale-{command.job_id}",
            "the change of a job was being stored",
        )

    async def trigger(self, message: TriggerOperation) -> JobOperation:
        """Trigger a command as an operation; return once that is durable. See DispatcherGateway."""
        self.check_leading()
        job_id = message.command.job_id
        running = await self._running(job_id)
        if running is None:
            snapshot = await self._ended_job(job_id)
            known = known_operation(await self._operations(job_id), message)
            if known is None:
                raise Conflict(f"job {job_id} is {snapshot.status}: it can have no more operations")
            return known
        return await self._acknowledged(
            partial(running[0].changes.operate, running[0], message),
            f"operation-{job_id}-{message.trigger_id}",
            "an operation was being stored",
        )

    async def operation(self, message: OperationQuery) -> JobOperation:
        """Return an operation, of an ended job too."""
        self.check_leading()
        found = (await self._operations(message.job_id)).get(message.trigger_id)
        if found is None:
            raise NotFound(f"job {message.job_id} has no operation {message.trigger_id!r}")
        return found

    async def dispose_savepoint(self, message: DisposeSavepoint) -> SavepointDisposal:
        """Trigger the removal of a savepoint; return once that is durable. See DispatcherGateway."""
        self.check_leading()
        return await self._acknowledged(
            partial(self._disposals.dispose, message), f"disposal-{message.trigger_id}", "a disposal was being stored"
        )

    async def disposal(self, message: DisposalQuery) -> SavepointDisposal:
        """Return a disposal."""
        self.check_leading()
        return await self._disposals.get(message.trigger_id)

    async def job_changes(self, message: JobQuery) -> JobOperations:
        """Return what was requested of a job. See DispatcherGateway."""
        await self.job(message)
        return await self._operations(message.job_id)

    async def query_task(self, message: TaskQuery) -> TaskAnswer:
        """Have a running attempt answer. See DispatcherGateway."""
        self.check_leading()
        job_id = message.attempt.job_id
        running = await self._running(job_id)
        if running is None:
            snapshot = await self._ended_job(job_id)
            raise Conflict(f"job {job_id} is {snapshot.status}: none of its attempts runs")
        return await running[0].initialised().query_task(message)

    async def _operations(self, job_id: JobId) -> JobOperations:
        recorded = await self._stores.operations.read(job_id)
        return JobOperations(job_id=job_id) if recorded is None else recorded

    async def client_heartbeat(self, message: ClientHeartbeat) -> None:
        """Record that a client is attached. Ignored for an ended job."""
        self.check_leading()
        running = await self._running(message.job_id)
        if running is not None:
            running[0].renew_client()
        else:
            await self._ended_job(message.job_id)

    async def requirements(self, message: JobQuery) -> JobRequirements:
        """Return what a running job may use."""
        self.check_leading()
        return (await self._changeable(message.job_id)).requirements()

    async def result(self, message: ResultQuery) -> ResultRows:
        """Return a collected result of the job. See DispatcherGateway."""
        self.check_leading()
        running = await self._running(message.job_id)
        if running is not None:
            raise Conflict(f"job {message.job_id} is {running[1].status}: its results are there when it has finished")
        rows = await self._ended.rows(message.job_id, message.name)
        if rows is not None:
            return rows
        snapshot = await self._ended_job(message.job_id)
        if snapshot.status is not JobStatus.FINISHED:
            raise Conflict(f"job {message.job_id} is {snapshot.status}: it has no result {message.name!r}")
        known = f"; it has {', '.join(snapshot.result_names)}" if snapshot.result_names else ""
        raise NotFound(f"job {message.job_id} has no result {message.name!r}{known}")

    async def shut_down_cluster(self, message: ShutDownCluster) -> None:
        """Complete the shut-down request. From then on no job is accepted."""
        self.check_leading()
        if not self._shut_down.done():
            self._shut_down.set_result(message.status)

    async def quarantined_jobs(self) -> QuarantinedJobs:
        """Return all quarantined jobs."""
        self.check_leading()
        return await self._quarantine.list_jobs()

    async def quarantined_job(self, message: JobQuery) -> QuarantinedJob:
        """Return a quarantined job."""
        self.check_leading()
        return await self._quarantine.job(message.job_id)

    async def retry_quarantined(self, message: JobQuery) -> None:
        """Put a quarantined job back; return once it is durable and runs. See DispatcherGateway."""
        self.check_leading()
        await self._change_quarantine(self._quarantine.retry, message.job_id)

    async def drop_quarantined(self, message: JobQuery) -> None:
        """Give a quarantined job up; return once that is durable. See DispatcherGateway."""
        self.check_leading()
        await self._change_quarantine(self._quarantine.drop, message.job_id)

    async def _change_quarantine(
        self, change: Callable[[JobId, asyncio.Future[None]], Coroutine[Any, Any, None]], job_id: JobId
    ) -> None:
        await self._acknowledged(
            partial(change, job_id), f"quarantine-{job_id}", "the quarantine of a job was being changed"
        )

    async def add_token(self, message: AccessToken) -> None:
        """Store an access token. See DispatcherGateway."""
        self.check_leading()
        await self._change_tokens(partial(self._tokens.add, message))

    async def tokens(self) -> AccessTokens:
        """Return the access tokens that have not expired."""
        self.check_leading()
        return await self._tokens.all()

    async def find_token(self, message: AccessTokenQuery) -> FoundAccessToken:
        """Return one access token, also one that has expired."""
        self.check_leading()
        return FoundAccessToken(token=await self._tokens.get(message.id))

    async def revoke_token(self, message: AccessTokenQuery) -> None:
        """Remove an access token. See DispatcherGateway."""
        self.check_leading()
        await self._change_tokens(partial(self._tokens.revoke, message.id))

    async def _change_tokens(self, change: Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]]) -> None:
        await self._acknowledged(change, "access-tokens", "the access tokens were being changed")

    # Jobs

    def begin(self, job: DispatchedJob, body: JobBody) -> asyncio.Task[None]:
        """Register the job and start its task. The task's end, however early it is cancelled, unregisters the job."""
        task = job.task = self._child(body(), f"job-{job.job_id}")
        self.jobs[job.job_id] = job
        task.add_done_callback(lambda _: self._unregister(job))
        return task

    def _unregister(self, job: DispatchedJob) -> None:
        if self.jobs.get(job.job_id) is job:
            del self.jobs[job.job_id]

    def _child(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._children[task] = None
        task.add_done_callback(self._child_ended)
        return task

    async def _acknowledged(
        self, work: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]], name: str, doing: str
    ) -> T:
        """Do work in a task that outlives the caller; return what it has set on its future."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._child(work(answer), name).add_done_callback(lambda _: answer_unanswered(answer, doing))
        return await asyncio.shield(answer)

    def _begin_child(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin work that no caller waits for. After `stop` it is dropped: timers may still fire in that turn."""
        if self._stopped:
            work.close()
        else:
            self._child(work, name)

    def _child_ended(self, task: asyncio.Task[None]) -> None:
        del self._children[task]
        if task.cancelled() or task.exception() is not None:
            self.stop()  # in the same turn as the task group: no call is answered, and nothing started, in between

    def _visible(self, job_id: JobId) -> DispatchedJob | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.visible else None

    async def _running(self, job_id: JobId) -> tuple[DispatchedJob, JobSnapshot] | None:
        """Return the job and its snapshot, or None if it has ended or does not exist.

        Waits for an end that is not durable yet: no client may see an end that a crash could still undo. A job that
        waits for storage before that is returned as one that runs.
        """
        job = self._visible(job_id)
        while job is not None and not job.ended:
            try:
                snapshot = job.snapshot()
            except Exception as error:
                raise Unavailable(f"the JobMaster of job {job_id} does not answer") from error
            if not job.ending and not snapshot.status.globally_terminal:
                return job, snapshot
            await job.answerable.wait()
            self.check_leading()
            if job.durable_end.is_set():
                break
        return None

    async def _changeable(self, job_id: JobId) -> DispatchedJob:
        """Return a job with a JobMaster. Raises NotFound, Conflict for one that has ended, else Unavailable."""
        running = await self._running(job_id)
        if running is None:
            snapshot = await self._ended_job(job_id)
            raise Conflict(f"job {job_id} is {snapshot.status}: its resources can no longer be changed")
        running[0].initialised()
        return running[0]

    async def _ended_job(self, job_id: JobId) -> JobSnapshot:
        snapshot = await self._ended.get(job_id)
        if snapshot is None:
            raise NotFound(f"there is no job {job_id}")
        return snapshot

    async def _refresh_listing(self) -> None:
        """Compute the lines of jobs that have changed, some in each step of the loop. Raises Unavailable."""
        self.check_leading()
        for _ in self._listing.refresh(self._line):
            await asyncio.sleep(0)
            self.check_leading()

    def _line(self, job_id: JobId, last: JobSummary | None) -> JobSummary | None:
        job = self.jobs.get(job_id)
        return last if job is None else job.summary(last)

    def check_leading(self) -> None:
        """Raise Unavailable if the term is over."""
        if self._stopped:
            raise Unavailable("this JobManager no longer leads; ask again")

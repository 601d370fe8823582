"""One job in the Dispatcher: a single task from its reservation to its clean result.

    submitted:  RESERVED -> (stored, acknowledged) INITIALIZING -> RUNNING -> ENDING -> CLEANING -> gone
                RESERVED -> (not stored) DISCARDING -> gone
    recovered:  INITIALIZING -> ...
    dirty:      CLEANING -> gone

`run_submitted`, `run_recovered` and `clean_up_dirty` are the bodies of that task. Cancelled at any point, they leave
the job as it is stored: suspended. What they raise is fatal to the term: Fenced (a newer leader goes on), or a result
that cannot be written.

Rejected: acknowledging after the JobMaster is created. Acknowledged means *persisted*; a JobMaster that cannot be
created is a FAILED job, not a failed submission, so the client need not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import structlog
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from flintlock.config.configuration import Configuration
from flintlock.config.options import JOB_TIMEOUT
from flintlock.dispatcher import core
from flintlock.dispatcher.attached_client import AttachedClient
from flintlock.dispatcher.changes.job_changes import JobChanger
from flintlock.dispatcher.changes.operations import OperationRecorder
from flintlock.dispatcher.changes.retries import wait_for_storage
from flintlock.dispatcher.core import CleanupResource, JobPhase
from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.retention.cleanup import Removals, clean_up, try_once
from flintlock.dispatcher.retention.ended import EndedJobs
from flintlock.dispatcher.retention.kept_results import (
    KeptResultsRegistry,
    no_longer_kept,
    results_to_keep,
    reused_records,
)
from flintlock.dispatcher.retention.retention_clock import RetentionClock
from flintlock.dispatcher.services import BlobReferences, CountLostLeader, Savepoints, TermServices
from flintlock.dispatcher.snapshots import (
    canceled_outcome,
    failed_outcome,
    held_up_snapshot,
    initial_snapshot,
    public_text,
    stored_outcome,
)
from flintlock.dispatcher.writes import TermWrites, continue_without_damaged, is_fatal_to_term, log_and_continue
from flintlock.gateways.jobmaster import JobMasterRunner
from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.causes import CauseId, caused_by, current_cause, internal_cause
from flintlock.model.commands import CancelJob, CancelRequest, JobOperations
from flintlock.model.errors import (
    Conflict,
    Corrupt,
    DuplicateJob,
    Fenced,
    InvariantBroken,
    KeyReused,
    NotFound,
    Refused,
    Unavailable,
)
from flintlock.model.failures.failure_text import log_facts
from flintlock.model.failures.job_timeout import timed_out
from flintlock.model.ids import JobId
from flintlock.model.jobs import (
    JobHistory,
    JobOutcome,
    JobRequirements,
    JobResult,
    JobSnapshot,
    JobSummary,
    StoredJob,
    Submitted,
)
from flintlock.model.states import JobStatus
from flintlock.model.tasks import RegionRecord, RemoveFiles
from flintlock.model.times import elapsed_ms

log: FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

#: The coroutine function that a job's task runs.
JobBody: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

#: The moves that operators need; the others follow from them, and are logged at debug level.
_LOGGED_AT_INFO: Final = frozenset({JobPhase.INITIALIZING, JobPhase.ENDING, JobPhase.DISCARDING})

#: Turns of the loop between acknowledging and creating the JobMaster: one for the shield that protects the submission
#: from its caller, one for the caller, whose answer is then sent before the JobMaster takes its time.
_TURNS_FOR_THE_ACKNOWLEDGEMENT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobServices:
    """What all jobs of one Dispatcher share."""

    term: TermServices
    configuration: Configuration  # of the cluster
    writes: TermWrites
    blobs: BlobReferences
    backoff: Backoff
    retention_s: float  # of ended jobs
    kept_results_s: float  # how long failed jobs keep their results
    kept_results: KeptResultsRegistry
    clock_ms: Callable[[], int]
    retention_clock: RetentionClock
    metrics: DispatcherMetrics | None
    listing: JobListing
    ended: EndedJobs
    savepoints: Savepoints
    begin_child: Callable[[Coroutine[Any, Any, None], str], None]  # ends with the Dispatcher; dropped after its stop
    upgrades: Predecessors
    count_lost_leader: CountLostLeader


class Predecessors(Protocol):
    """What a job that takes the place of another one needs."""

    async def stop_predecessor(self, job: StoredJob, is_cancelled: Callable[[], bool]) -> bool:
        """Stop the job whose place this one takes, with a savepoint; return whether it has ended, however that was.

        False: this job was cancelled before. Raises Unavailable if the predecessor cannot be stopped.
        """
        ...

    async def was_reverted(self, job: StoredJob) -> bool:
        """Return whether a job that is recovered had failed, and the former graph was submitted again."""
        ...

    def is_awaited(self, successor: JobId) -> bool:
        """Return whether a job that takes the place of another one has not ended. True while that is not known yet."""
        ...

    async def go_back(
        self, job: StoredJob, *, is_over: Callable[[], bool], show: Callable[[str], None]
    ) -> JobId | None:
        """Run the former graph again if this job has failed before its first batch; return the id of that job.

        Waits for the storage of the savepoint, but not once it `is_over`; what it waits for is passed to `show`.
        """
        ...


class DispatchedJob:
    """One registered job."""

    def __init__(
        self,
        job_id: JobId,
        services: JobServices,
        phase: JobPhase,
        *,
        stored: StoredJob | None = None,
        result: JobResult | None = None,
        operations: JobOperations | None = None,
    ) -> None:
        self.job_id: Final = job_id
        self.phase = phase  # written by `_move` only
        self.task: asyncio.Task[None] | None = None  # set by the Dispatcher when it starts the job
        self.durable_end: Final = asyncio.Event()  # set once how it ended is durable, and when the Dispatcher stops
        self.answerable: Final = asyncio.Event()  # set with it, and while the job waits for storage before its end
        self._services: Final = services
        self._stored = stored  # None once the job has ended: clients then read the archive
        self._runner: JobMasterRunner | None = None  # from RUNNING to the durable end
        self._result = result  # from the durable end on
        self._archived = False  # whether it is known to be; written by `_end`
        # A cancel for the JobMaster when there is one: queued, or accepted by a former leader.
        self._cancel: CancelRequest | None = operations.cancel if operations is not None else None
        self._client: Final = AttachedClient()  # expected while the job has a JobMaster
        self.changes: Final = _changes(services, operations or JobOperations(job_id=job_id))
        self._recovered: Final = phase is JobPhase.INITIALIZING  # a submitted job begins as RESERVED
        self._is_unbegun = False  # whether it has never had a JobMaster: it waits for a predecessor, or is restored
        self._has_result = False  # whether its JobMaster is done
        self._goes_back = False  # whether it has failed, and the job whose place it took is to run again
        self._held_up_by = ""  # what it cannot go on without; written by `show_wait`
        self._quarantine_reason: str | None = None  # why its graph is quarantined when it ends
        self._results_released = False  # whether what it had kept is being removed

    # What clients see

    @property
    def visible(self) -> bool:
        """Whether clients may know of the job."""
        return self.phase in core.VISIBLE

    @property
    def ending(self) -> bool:
        """Whether the JobMaster has ended and the result is not durable yet."""
        return self.phase is JobPhase.ENDING

    @property
    def ended(self) -> bool:
        """Whether how the job ended is durable."""
        return self.phase is JobPhase.CLEANING

    @property
    def scratch(self) -> tuple[str, ...]:
        """The directories that the cleanup of an ended job removes."""
        return () if self._result is None else self._result.scratch

    @property
    def keeps_results(self) -> bool:
        """Whether another job can continue where this one has failed."""
        return self._result is not None and self._result.kept is not None and not self._results_released

    @property
    def reuses(self) -> tuple[JobId, ...]:
        """The failed jobs whose results it may read now."""
        return () if self._stored is None else self._stored.graph.reuses

    @property
    def takes_place_of(self) -> JobId | None:
        """The job whose place this one takes, also while this one is being stored; None if there is none."""
        if self.ended or self.phase is JobPhase.DISCARDING or self.stored.upgrade is None:
            return None
        return self.stored.upgrade.former.job_id

    def snapshot(self) -> JobSnapshot:
        """Return the job as it is now. A terminal status before `durable_end` must not be shown to clients."""
        snapshot = self._initial_snapshot() if self._runner is None else self._runner.snapshot()
        return held_up_snapshot(snapshot, self._held_up_by) if self._held_up_by else snapshot

    def _initial_snapshot(self) -> JobSnapshot:
        return initial_snapshot(self.stored, None if self._cancel is None else self._cancel.requested_ms)

    def summary(self, last: JobSummary | None) -> JobSummary | None:
        """Return the job's line in the listing, given its last one.

        A JobMaster that does not answer is listed with its last known state, marked stale.
        """
        if self.ended or not self.visible:
            return last
        try:
            line = self.snapshot().summary()
        except Exception as error:  # noqa: BLE001 - one JobMaster's bug must not fail the listing
            log.warning(log_events.JOBMASTER_NOT_RESPONDING, job_id=self.job_id, reason=repr(error))
            known = last or self._initial_snapshot().summary()
            return structs.replace(known, stale=True)
        if line.status.globally_terminal:  # not durable yet: not shown
            if last is not None and not last.status.globally_terminal:
                return last
            return self._initial_snapshot().summary()
        return line

    def cancel(self, *, force: bool = False, requested_by: str = "") -> CancelRequest:
        """Cancel the job, as soon as it has a JobMaster; return what to record of it.

        Raises Conflict if it can no longer be cancelled, Unavailable while only its progress could tell: a job that is
        recovered may be publishing, and then its JobMaster refuses a cancel.
        """
        if self._recovered and not self._is_unbegun and not self._goes_back:
            self.initialised()
        log.info(
            log_events.JOB_CANCEL_REQUESTED,
            job_id=self.job_id,
            phase=self.phase,
            force=force,
            requested_by=requested_by,
        )
        request = CancelRequest(
            requested_ms=self._services.clock_ms(),
            force=force,
            requested_by=requested_by,
            cause=current_cause() or "",
        )
        if self._runner is not None and not self._goes_back:
            self._runner.command(CancelJob(job_id=self.job_id, force=force))
        elif self._cancel is None or (force and not self._cancel.force):
            self._cancel = request
        self._services.listing.touch(self.job_id)
        return request

    def renew_client(self) -> None:
        """Expect the next heartbeat of the attached client. Ignored for a job that does not depend on one."""
        timeout_s = self.stored.graph.client_timeout_s if self._client.expected else None
        if timeout_s is not None:
            self._client.expect(timeout_s, self._client_timed_out)

    def _client_timed_out(self) -> None:
        timeout_s = self.stored.graph.client_timeout_s
        if self._services.term.gate.paused is not None and timeout_s is not None:
            # Its heartbeats may not have arrived: it gets the whole timeout again.
            self._client.expect(timeout_s, self._client_timed_out)
            return
        # A Conflict means that it is publishing: it runs to its end.
        with caused_by(internal_cause("client-timeout", self.job_id)), suppress(Conflict):
            log.info(log_events.JOB_CLIENT_TIMED_OUT, job_id=self.job_id)
            request = self.cancel()
            self._services.begin_child(
                self.changes.record_own_cancel(self.job_id, request), f"client-timeout-{self.job_id}"
            )

    # What `JobChanger` needs

    @property
    def stored(self) -> StoredJob:
        """The job as it is stored. Raises InvariantBroken once it has ended."""
        if self._stored is None:
            raise InvariantBroken(f"job {self.job_id} is {self.phase}: its graph is no longer in memory")
        return self._stored

    def replace_stored(self, former: StoredJob, changed: StoredJob) -> None:
        """Remember what is stored now. Ignored if `former` was not the latest: the job has ended meanwhile."""
        if self._stored is former:
            self._stored = changed

    def requirements(self) -> JobRequirements:
        """Return what the job may use. Raises Unavailable while it is initialised."""
        return self.initialised().requirements()

    @property
    def has_result(self) -> bool:
        """Whether its JobMaster is done."""
        return self._has_result or self.ended

    def check_runs(self) -> JobMasterRunner:
        """Return the job's JobMaster. Raises Conflict for a job that has ended, Unavailable for one without it yet."""
        if self.ending or self.ended:
            raise self.has_ended()
        return self.initialised()

    def has_ended(self) -> Conflict:
        """Return the error for a command to a job that has ended."""
        return Conflict(f"job {self.job_id} has ended")

    def initialised(self) -> JobMasterRunner:
        """Return the job's JobMaster. Raises Unavailable while there is none."""
        if self._runner is None:
            raise Unavailable(f"job {self.job_id} is being initialised; ask again")
        return self._runner

    def show_wait(self, what: str) -> None:
        """Show what the job cannot go on without; "": nothing."""
        if what and what != self._held_up_by:
            log.warning(log_events.JOB_WAITS_FOR_STORAGE, job_id=self.job_id, reason=what)
        if what != self._held_up_by:
            self._held_up_by = what
            if what:
                self.answerable.set()
            elif not self.durable_end.is_set():
                self.answerable.clear()
            self._services.listing.touch(self.job_id)

    def wake_clients(self) -> None:
        """Answer those who wait for the end: it is durable, or the Dispatcher stops."""
        self.durable_end.set()
        self.answerable.set()

    def is_awaited_by(self, successor: JobId) -> bool:
        """Return whether a job that takes the place of this one still waits for its end."""
        return self._services.upgrades.is_awaited(successor)

    def _is_cancelled(self) -> bool:
        return self._cancel is not None

    # Bodies of its task

    async def run_submitted(self, accepted: asyncio.Future[Submitted], predecessor: asyncio.Task[None] | None) -> None:
        """Persist the job, acknowledge it, run it to its end and clean up. Waits for the id's `predecessor`."""
        if predecessor is not None:
            await asyncio.wait((predecessor,))
            # From now on: its timeout does not count how long the removal of the former one took.
            self._stored = structs.replace(
                self.stored,
                submitted_ms=self._services.clock_ms(),
                submitted_at_ms=self._services.retention_clock.now_ms(),
            )
        if not await self._persist(accepted):
            return
        for _ in range(_TURNS_FOR_THE_ACKNOWLEDGEMENT):
            await asyncio.sleep(0)
        await self._run_and_end((), None)

    async def run_recovered(self, progress: tuple[RegionRecord, ...], history: JobHistory | None) -> None:
        """Continue a job from its durable progress, and clean up. One that cannot be initialised is quarantined."""
        await self._run_and_end(progress, history)

    async def clean_up_dirty(self) -> None:
        """Clean up after a job that ended under an earlier leader."""
        await self._clean_up()

    async def _persist(self, accepted: asyncio.Future[Submitted]) -> bool:
        """Store the job and acknowledge it. False: it was refused or could not be stored, and was taken back."""
        job = self.stored
        blobs = core.blobs_of_job(job)
        blobs_only = (CleanupResource.BLOBS,) if blobs else ()
        everything = core.cleanup_plan(blobs=blobs, scratch=())
        try:
            self._services.blobs.retain(self.job_id, blobs)
        except Exception as error:  # noqa: BLE001 - reported to the client, whatever it is
            await self._take_back(accepted, error, blobs_only)
            return False
        try:
            await self._services.term.stores.graphs.put(job)
        except Fenced:
            raise
        except (DuplicateJob, KeyReused) as error:  # the job stored under that id or key is left as it is
            await self._take_back(accepted, error, blobs_only)
            return False
        except Exception as error:  # noqa: BLE001 - reported to the client, whatever it is
            await self._take_back(accepted, error, everything)
            return False
        self._move(JobPhase.INITIALIZING, name=job.graph.name)
        self._services.listing.touch(self.job_id)
        accepted.set_result(Submitted(job_id=self.job_id))
        return True

    async def _take_back(
        self, accepted: asyncio.Future[Submitted], error: Exception, resources: tuple[CleanupResource, ...]
    ) -> None:
        """Remove what the submission may have stored, then answer with the error.

        The answer waits for one try of each removal, not for their success; the id stays reserved until all succeeded.
        """
        write = log.info if isinstance(error, Refused) else log.warning  # the client was wrong, or the store
        write(log_events.JOB_NOT_ACCEPTED, job_id=self.job_id, reason=repr(error))
        self._move(JobPhase.DISCARDING)
        removals = self._removals(resources, ())
        failed = await try_once(removals)
        answer = error
        if not isinstance(error, Refused):
            answer = Unavailable(f"job {self.job_id} could not be stored: {error}")
            answer.__cause__ = error
        for resource, cause in failed.items():
            answer.add_note(f"cleanup of its {resource} failed and will be retried: {cause}")
        accepted.set_exception(answer)
        if failed:
            left = {resource: removals[resource] for resource in failed}
            await clean_up(self.job_id, left, self._services.backoff, self._services.term.gate, failures=1)

    async def _run_and_end(self, progress: tuple[RegionRecord, ...], history: JobHistory | None) -> None:
        outcome = await self._reverted_outcome(progress, history) or await self._outcome(progress, history)
        self._has_result = True
        if await self.changes.complete_stop(self, outcome.snapshot.status):
            outcome = core.keeping_checkpoints(outcome)
        successor: str | None = self.changes.successor
        if outcome.snapshot.status is JobStatus.FAILED:
            self._goes_back = True
            with log_and_continue(log_events.JOB_UPGRADE_NOT_REVERTED, job_id=self.job_id):
                successor = await self._services.upgrades.go_back(
                    self.stored, is_over=self._is_cancelled, show=self.show_wait
                )
            self._goes_back = False
        if successor:
            outcome = structs.replace(outcome, snapshot=structs.replace(outcome.snapshot, successor=successor))
        graph = self.stored.graph
        await self._end(outcome)
        if self._is_unbegun:  # not before the end is durable: the next leader may have restored it, and run it
            await self._services.savepoints.abandon_restore(graph)
        await self._clean_up()

    async def _reverted_outcome(
        self, progress: tuple[RegionRecord, ...], history: JobHistory | None
    ) -> JobOutcome | None:
        """Return how a recovered job ended if the job whose place it took runs again: it is not run beside it."""
        if not self._recovered or (history is not None and history.failing):  # its JobMaster fails it, and says why
            return None
        if not await self._services.upgrades.was_reverted(self.stored):
            return None
        error = Conflict("it has failed before, and the job whose place it took runs again")
        return failed_outcome(self.stored, error, self._services.clock_ms(), core.recorded_scratch(progress))

    async def _outcome(self, progress: tuple[RegionRecord, ...], history: JobHistory | None) -> JobOutcome:
        """Create the JobMaster and run it. An error that concerns only this job is this job's outcome: FAILED."""
        services, job = self._services, self.stored
        was_initialized = self._recovered
        try:
            if core.may_be_unrestored(job.graph, progress):
                was_initialized = await self._restore() and was_initialized
            progress = await self._with_reused(progress)
            clock = services.retention_clock.now_ms
            runner = services.term.job_masters(job, progress, services.listing.touch, clock, history)
        except Exception as error:
            if is_fatal_to_term(error):
                await self._count_lost_leader(error)
                raise
            if self._is_unbegun and self._is_cancelled() and isinstance(error, Unavailable):
                return canceled_outcome(job, services.clock_ms())
            log.warning(log_events.JOB_INITIALIZATION_FAILED, job_id=self.job_id, reason=repr(error))
            if was_initialized and not self._is_unbegun:  # its graph is needed to find out what changed
                self._quarantine_reason = public_text(error)
            return failed_outcome(job, error, services.clock_ms(), core.recorded_scratch(progress))
        self._runner = runner
        recovered = {"submission_cause": job.cause} if self._recovered and job.cause else {}
        self._move(JobPhase.RUNNING, regions_recorded=len(progress), **recovered)
        if job.graph.client_timeout_s is not None:
            self._client.expect(job.graph.client_timeout_s, self._client_timed_out)
        try:
            self._pass_on_cancel(runner)
            return await runner.run()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # it was not suspended: it would disappear without a trace
                raise InvariantBroken(f"the JobMaster of job {self.job_id} ended as if cancelled") from error
            raise
        except Exception as error:
            if is_fatal_to_term(error):
                await self._count_lost_leader(error)
                raise
            log.exception(log_events.JOBMASTER_CRASHED, job_id=self.job_id)
            return failed_outcome(job, error, services.clock_ms(), core.recorded_scratch(await self._progress()))
        finally:
            self._client.forget()

    async def _restore(self) -> bool:
        """Restore the job when its predecessor has ended; return whether it was restored before.

        Raises Unavailable if it is cancelled meanwhile, or its predecessor or the storage prevents it; JobFailed if the
        job reaches its timeout.
        """
        services, graph = self._services, self.stored.graph
        self._is_unbegun = True
        was_restored = await self._with_storage(partial(services.savepoints.is_restored, graph))
        if not was_restored:
            if not await services.upgrades.stop_predecessor(self.stored, self._is_cancelled):
                raise Unavailable(f"job {self.job_id} was cancelled before it was restored")
            await self._with_storage(partial(services.savepoints.restore, graph))
        self._is_unbegun = False
        return was_restored

    async def _with_storage(self, action: Callable[[], Awaitable[T]]) -> T:
        """Return what an action on files returns, as soon as the storage allows it.

        Raises Unavailable if it is given up, JobFailed if the job reaches its timeout before.
        """
        timeout_s = self._services.configuration.over(self.stored.graph.config).get(JOB_TIMEOUT)
        is_timed_out = partial(self._has_lasted, timeout_s) if timeout_s > 0 else lambda: False
        try:
            return await wait_for_storage(
                action, is_over=lambda: self._is_cancelled() or is_timed_out(), show=self.show_wait
            )
        except Unavailable as error:
            if self._is_cancelled() or not is_timed_out():
                raise
            raise timed_out(timeout_s) from error

    def _has_lasted(self, seconds: float) -> bool:
        now_ms = self._services.retention_clock.now_ms()
        return elapsed_ms(self.stored.timed_from_ms, now_ms) >= seconds * 1000

    async def _count_lost_leader(self, error: Exception) -> None:
        """Record that this leader is lost because of this job, if it is: the next ones are not to be lost as well."""
        if isinstance(error, InvariantBroken):
            with log_and_continue(log_events.BLOCKING_JOB_NOT_RECORDED, job_id=self.job_id):
                await self._services.count_lost_leader(self.job_id)

    async def _with_reused(self, progress: tuple[RegionRecord, ...]) -> tuple[RegionRecord, ...]:
        """Record the regions as finished that finished in the job that this one continues; return all records.

        Before its JobMaster runs for the first time: from then on there are records of its own. Raises Conflict if
        what the earlier job kept is gone.
        """
        graph, services = self.stored.graph, self._services
        if not graph.reuses or not all(record.reused_from for record in progress):
            return progress
        earlier = await services.writes.progress(graph.reuses[0])
        added = reused_records(graph, earlier, progress, services.clock_ms())
        if not progress and not added:
            raise no_longer_kept(graph.reuses[0])
        for record in added:
            await services.writes.record(record)
        return (*progress, *added)

    def _pass_on_cancel(self, runner: JobMasterRunner) -> None:
        """Send the JobMaster a cancel that was queued. One that comes too late is logged and ignored."""
        if self._cancel is not None:
            try:
                with caused_by(CauseId(self._cancel.cause) if self._cancel.cause else None):
                    runner.command(CancelJob(job_id=self.job_id, force=self._cancel.force))
            except Conflict as error:  # a recovered job that is publishing: it runs to its end
                log.info(log_events.JOB_CANCEL_IGNORED, job_id=self.job_id, reason=error.public)

    async def _progress(self) -> tuple[RegionRecord, ...]:
        """Return the job's recorded progress, which names the directories to remove; nothing if it is damaged."""
        with continue_without_damaged(log_events.JOB_PROGRESS_UNREADABLE, job_id=self.job_id):
            return await self._services.writes.progress(self.job_id)
        return ()

    async def _end(self, outcome: JobOutcome) -> None:
        """Archive the job, make its result durable, and answer the waiting clients."""
        services = self._services
        snapshot = structs.replace(outcome.snapshot, ended_at_ms=services.retention_clock.now_ms())
        outcome = structs.replace(outcome, snapshot=snapshot)
        kept = None
        if self._quarantine_reason is None:
            kept = results_to_keep(outcome, services.kept_results_s, services.retention_s)
        result = structs.replace(core.result_of(outcome, kept), blobs=core.blobs_of_job(self.stored))
        self._move(JobPhase.ENDING, status=result.status)
        archived = False
        with log_and_continue(log_events.JOB_ARCHIVE_FAILED, job_id=self.job_id):
            await services.writes.archive(snapshot, outcome.results)
            archived = True
        if not archived:
            services.ended.keep_unarchived(outcome)
        self._archived = archived
        if self._quarantine_reason is not None:  # before its result is durable: the cleanup would remove the graph
            result = structs.replace(result, quarantined=True)
            await services.writes.quarantine(self.job_id, self._quarantine_reason)
        await services.writes.end(result)
        self._move(JobPhase.CLEANING, status=result.status)
        if result.status is JobStatus.FAILED:
            facts = log_facts(snapshot.exceptions[-1].failure) if snapshot.exceptions else {}
            log.error(log_events.JOB_FAILED, job_id=self.job_id, name=result.name, **facts)
        self._result, self._runner, self._stored = result, None, None
        services.ended.remember(snapshot)
        services.listing.put(snapshot.summary())
        self.wake_clients()
        if services.metrics is not None:
            services.metrics.ended(result.status)

    async def _clean_up(self) -> None:
        """Remove what the job used, then mark its result clean. Its JobMaster has ended before."""
        if self._result is None:
            raise InvariantBroken(f"job {self.job_id} is cleaned up before its end is durable")
        await self.changes.fail_unfinished(f"job {self.job_id} has ended: it is {self._result.status}")
        blobs, kept = self._result.blobs, self._result.kept
        scratch = tuple(path for path in self._result.scratch if kept is None or path not in kept.directories)
        plan = core.cleanup_plan(
            blobs=blobs,
            scratch=scratch,
            archived=self._archived,
            quarantined=self._result.quarantined,
            kept=kept is not None,
        )
        await self._remove(plan, scratch)
        if kept is not None:
            log.info(log_events.JOB_RESULTS_KEPT, job_id=self.job_id, bytes=kept.bytes)
            await self._services.kept_results.until_released(self.job_id, kept)
            self._results_released = True
            files = (CleanupResource.FILES,) if kept.directories else ()
            await self._remove((CleanupResource.PROGRESS, *files), kept.directories)
        with log_and_continue(
            log_events.JOB_RESULT_NOT_MARKED_CLEAN, job_id=self.job_id
        ):  # the next leader cleans up once more
            await self._services.writes.mark_clean(self.job_id)
            log.info(log_events.JOB_CLEANED_UP, job_id=self.job_id)

    async def _remove(self, resources: tuple[CleanupResource, ...], scratch: tuple[str, ...]) -> None:
        await clean_up(
            self.job_id,
            self._removals(resources, scratch),
            self._services.backoff,
            self._services.term.gate,
            retention_over=self._is_retention_over,
            directories=scratch,
        )

    def _is_retention_over(self) -> bool:
        before_ms = core.expired_before_ms(self._services.retention_clock.now_ms(), self._services.retention_s)
        return self._result is not None and self._result.retained_from_ms < before_ms

    async def _archive(self) -> None:
        """Archive the ended job, unless it is: as its JobMaster reported it, else from what is stored of it."""
        services = self._services
        outcome = services.ended.unarchived(self.job_id)
        if outcome is None and self._result is not None:
            outcome = await self._stored_outcome(self._result)
        if outcome is not None:
            await services.term.stores.ended.put(outcome.snapshot, outcome.results)
            services.ended.archived(outcome.snapshot)
            services.listing.put(outcome.snapshot.summary())

    async def _stored_outcome(self, result: JobResult) -> JobOutcome | None:
        """Return what is stored of an ended job that has no readable archive; None if it has one."""
        stores = self._services.term.stores
        with suppress(Corrupt):
            if await stores.ended.get(self.job_id) is not None:
                return None
        job, progress, history = None, (), None
        with suppress(NotFound, Corrupt):
            job = await stores.graphs.recover(self.job_id)
            progress = await stores.progress.read(self.job_id)
            history = await stores.progress.read_history(self.job_id)
        return stored_outcome(result, job, progress, history)

    def _removals(self, resources: tuple[CleanupResource, ...], scratch: tuple[str, ...]) -> Removals:
        services, job_id = self._services, self.job_id
        stores = services.term.stores
        how: Removals = {
            CleanupResource.ARCHIVE: self._archive,
            CleanupResource.GRAPH: lambda: stores.graphs.remove(job_id),
            CleanupResource.PROGRESS: lambda: stores.progress.remove(job_id),
            CleanupResource.BLOBS: lambda: services.blobs.release(job_id),
            CleanupResource.FILES: lambda: services.term.resource_manager.remove_files(
                RemoveFiles(job_id=job_id, directories=scratch)
            ),
        }
        return {resource: how[resource] for resource in resources}

    def _move(self, phase: JobPhase, **facts: object) -> None:
        self.phase = core.moved(self.phase, phase)
        write = log.info if phase in _LOGGED_AT_INFO or "submission_cause" in facts else log.debug
        write(log_events.JOB_PHASE_CHANGED, job_id=self.job_id, phase=phase, **facts)


def _changes(services: JobServices, operations: JobOperations) -> JobChanger:
    stores = services.term.stores
    recorder = OperationRecorder(operations, stores.operations, services.term.gate, services.clock_ms)
    return JobChanger(stores.graphs, services.writes, recorder, services.savepoints)

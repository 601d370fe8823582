"""Recovery: what a term starts with, read from the stores, with what cannot be read in quarantine.

Dirty results are read first: a job that has one has ended and is only cleaned up, whatever else is stored of it. The
jobs of the other graphs are continued. What cannot be read is quarantined, shown as FAILED with the reason, and the
rest is recovered; fatal are only a store that cannot be listed at all, and records that a newer version has written,
which are intact. A store that does not answer is retried by the rule of `ha.leader_gate`; one that can be reached and
does not answer for `PATIENCE_S` is fatal too, so that a JobManager that can read it may lead.

A job of which nothing was ever deployed is quarantined too if one of its artifacts is missing, damaged or unreadable.
One that has run has its artifacts on the TaskManagers: it is adopted, and fails with the reason if it needs them from
here again. The same holds for all jobs while the files of blobs as a whole do not answer: one file, or one disk, that
cannot be read must not keep the other jobs without a leader.

A job on which leaders were lost again and again (`monitoring.blocking_jobs`) is quarantined: it would block or end this
leader too.

A job that is archived but has no result has not ended: its leader died in between. It is continued, and its JobMaster
finds in its progress that nothing is left to do.

Many jobs are read concurrently: most of the time is spent waiting for the store. Which of them have results and
progress at all is listed first, so that a job that was never deployed costs one read. Ended jobs are not read here,
however many there are: the leader lists them while it leads already (`listing_loader`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Final, TypeVar

import structlog
from msgspec import Struct, structs
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher import core
from flintlock.dispatcher.changes.operations import OperationRecorder
from flintlock.dispatcher.retention.retention_clock import RetentionClock, open_retention_clock
from flintlock.dispatcher.services import DispatcherServices
from flintlock.dispatcher.snapshots import quarantined_snapshot, recorded_snapshot
from flintlock.dispatcher.writes import TermWrites, continue_without_damaged, log_and_continue
from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import EndedJobStore, Stores
from flintlock.model import log_events
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.commands import JobOperations
from flintlock.model.errors import Corrupt, Fenced, Incompatible, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobHistory, JobResult, JobSnapshot, JobSummary, StoredJob
from flintlock.model.tasks import RegionRecord
from flintlock.monitoring.current_job import BLOCKING_WORK_S

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()

#: How many jobs are read concurrently.
WIDTH: Final = 64

#: So many leaders may be lost while they work on one job; then it is quarantined.
MAX_LOST_LEADERS: Final = 2


class RecoveredJob(Struct, frozen=True, kw_only=True):
    """A job to continue."""

    stored: StoredJob
    progress: tuple[RegionRecord, ...] = ()
    history: JobHistory | None = None


class Recovery(Struct, frozen=True, kw_only=True):
    """What a term starts with. No job is both in `jobs` and in `dirty`."""

    jobs: tuple[RecoveredJob, ...] = ()
    dirty: tuple[JobResult, ...] = ()
    ended: tuple[JobSummary, ...] = ()  # jobs that ended as this recovery found; the store has all others
    operations: dict[JobId, JobOperations] = {}  # of those in `jobs` and `dirty` that have any
    retention_clock: RetentionClock
    cause: CauseId | None = None  # of all that the term does with them


async def recover(stores: Stores, services: DispatcherServices, gate: LeaderGate | None = None) -> Recovery:
    """Read what the term starts with. Raises Fenced, and the error of a store that cannot be listed or read."""
    gate = gate or LeaderGate()
    return await _Recovering(stores, services, gate, await open_clock(stores, services, gate)).recover()


async def open_clock(stores: Stores, services: DispatcherServices, gate: LeaderGate) -> RetentionClock:
    """Return the retention clock of a term. Raises Fenced; Unavailable after a while."""
    return await open_retention_clock(
        stores.retention_clock,
        gate,
        newest_end_ms=lambda: _newest_end_ms(stores.ended),
        is_new=lambda: _has_no_jobs(stores),
        wall_ms=services.clock_ms,
        boot_time_s=services.boot_time_s,
    )


class JobRecovery:
    """Recovers single jobs while the Dispatcher runs, as a new leader would."""

    def __init__(self, stores: Stores, services: DispatcherServices, gate: LeaderGate, clock: RetentionClock) -> None:
        self._stores: Final = stores
        self._recovering: Final = _Recovering(stores, services, gate, clock)

    @property
    def ended(self) -> tuple[JobSummary, ...]:
        """The lines of the jobs that were quarantined instead."""
        return self._recovering.ended

    async def recover_job(self, job_id: JobId) -> RecoveredJob | None:
        """Return a stored job to run; None if it is not stored, or had to be quarantined. Raises as `recover` does."""
        with_progress = frozenset(await self._stores.progress.ids())
        return await self._recovering.recover_one(job_id, has_progress=job_id in with_progress)


async def _newest_end_ms(store: EndedJobStore) -> int | None:
    """Return the newest end of a job, by the wall clock; None if no job has ended."""
    async with aclosing(store.summaries()) as slices:
        async for lines in slices:
            if lines:
                return max(line.end_ms for line in lines)
    return None


async def _has_no_jobs(stores: Stores) -> bool:
    """Return whether the cluster has nothing to serve: no job is stored, whatever has become of it."""
    if await stores.graphs.ids() or await stores.graphs.quarantined() or await stores.results.dirty():
        return False
    return await _newest_end_ms(stores.ended) is None


class _Recovering:
    """One recovery in progress."""

    def __init__(
        self,
        stores: Stores,
        services: DispatcherServices,
        gate: LeaderGate,
        retention_clock: RetentionClock,
    ) -> None:
        self._stores: Final = stores
        self._services: Final = services
        self._blobs: Final = services.blobs
        self._clock_ms: Final = services.clock_ms
        self._gate: Final = gate
        self._retention_clock: Final = retention_clock
        self._writes: Final = TermWrites(stores, gate)
        self._ended: Final[dict[JobId, JobSummary]] = {}  # the lines of dirty and of quarantined jobs
        self._with_result: Collection[JobId] = ()
        self._with_progress: Collection[JobId] = ()
        self._with_operations: Collection[JobId] = ()
        self._lost_leaders: Mapping[JobId, int] = {}
        self._blocking: Final[set[JobId]] = set()  # jobs that were quarantined because of it
        self._blobs_unavailable = False  # their files as a whole did not answer in time: no more of them are checked

    @property
    def ended(self) -> tuple[JobSummary, ...]:
        return tuple(self._ended.values())

    async def recover_one(self, job_id: JobId, *, has_progress: bool) -> RecoveredJob | None:
        self._with_progress = {job_id} if has_progress else ()
        return await self._recover_job(job_id)

    async def recover(self) -> Recovery:
        dirty = await self._read(self._stores.results.dirty)
        stored = await self._read(self._stores.graphs.ids)
        self._with_result = await self._read(lambda: self._stores.results.known(stored))
        self._with_progress = frozenset(await self._read(self._stores.progress.ids))
        self._with_operations = frozenset(await self._read(self._stores.operations.ids))
        self._lost_leaders = await self._read_lost_leaders(stored)
        jobs = await self._recover_jobs(core.graphs_to_recover(stored, dirty))
        if self._blocking:  # a user may retry it: it begins without its past
            await self._read_lost_leaders([job_id for job_id in stored if job_id not in self._blocking])
        for result in dirty:
            self._ended[result.job_id] = recorded_snapshot(result).summary()  # its cleanup archives it, if need be
        log.info(log_events.JOBS_RECOVERED, jobs=len(jobs), dirty=len(dirty))
        unfinished = (*(job.stored.graph.job_id for job in jobs), *(result.job_id for result in dirty))
        operations = {
            job_id: await self._operations(job_id) for job_id in unfinished if job_id in self._with_operations
        }
        return Recovery(
            jobs=jobs,
            dirty=dirty,
            ended=tuple(self._ended.values()),
            operations=operations,
            retention_clock=self._retention_clock,
            cause=current_cause(),
        )

    async def _operations(self, job_id: JobId) -> JobOperations:
        """Return the operations of a job. Damaged ones are as if there were none."""
        recorded = None
        with continue_without_damaged(log_events.JOB_OPERATIONS_UNREADABLE, job_id=job_id):
            recorded = await self._read(lambda: self._stores.operations.read(job_id))
        return JobOperations(job_id=job_id) if recorded is None else recorded

    async def _recover_jobs(self, job_ids: tuple[JobId, ...]) -> tuple[RecoveredJob, ...]:
        """Recover many jobs, WIDTH concurrently; return them in the given order."""
        found: list[RecoveredJob | None] = [None] * len(job_ids)
        waiting = iter(enumerate(job_ids))

        async def work() -> None:
            for place, job_id in waiting:
                if job_id not in self._with_result or not await self._has_ended(job_id):
                    found[place] = await self._recover_job(job_id)

        try:
            async with asyncio.TaskGroup() as workers:
                working = [
                    workers.create_task(work(), name=f"recover-{number}") for number in range(min(WIDTH, len(job_ids)))
                ]
                # Before Python 3.13 a group that fails while it is left leaves its own task cancelled, and the process
                # would end with this term.
                if working:
                    await asyncio.wait(working)
        except ExceptionGroup as group:  # the first one suffices as the reason
            raise group.exceptions[0] from group
        return tuple(job for job in found if job is not None)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        return await self._gate.retry_until_acknowledged(read, patience_s=PATIENCE_S)

    async def _has_ended(self, job_id: JobId) -> bool:
        """Return whether a graph without a readable dirty result is an ended job's; if so, remove or quarantine it."""
        try:
            if await self._read(lambda: self._stores.results.get(job_id)) is None:
                return False
        except Corrupt as error:  # it has ended; how, may still be in its archive
            if not await self._is_archived(job_id):
                await self._archive(quarantined_snapshot(job_id, None, error.public, self._clock_ms()))
            await self._quarantine(job_id, error.public)
            return True
        log.info(log_events.JOB_GRAPH_OF_ENDED_JOB_FOUND, job_id=job_id)
        await self._writes.remove_graph(job_id)
        return True

    async def _recover_job(self, job_id: JobId) -> RecoveredJob | None:
        """Return a job to continue. One that cannot be read is quarantined, and listed as ended."""
        stored: StoredJob | None = None
        try:
            stored = await self._read(lambda: self._stores.graphs.recover(job_id))
            _check_is(job_id, stored)
            stored = core.timed_on_cluster(stored, cluster_ms=self._retention_clock.now_ms(), wall_ms=self._clock_ms())
            if self._lost_leaders.get(job_id, 0) >= MAX_LOST_LEADERS:
                await self._quarantine_blocking(job_id, stored)
                return None
            if job_id not in self._with_progress:
                await self._check_artifacts(stored)
                return RecoveredJob(stored=stored)
            progress = await self._read(lambda: self._stores.progress.read(job_id))
            return RecoveredJob(stored=stored, progress=progress, history=await self._history(job_id))
        except (Fenced, Unavailable, Incompatible):
            raise
        except NotFound:  # removed since it was listed
            return None
        except Exception as error:  # noqa: BLE001 - one unreadable job, for whatever reason, does not affect the others
            reason = error.public if isinstance(error, Corrupt) else repr(error)
            # Archived first, then quarantined: after a crash in between, the next leader does both again.
            await self._archive(quarantined_snapshot(job_id, stored, reason, self._clock_ms()))
            await self._quarantine(job_id, reason)
            return None

    async def _quarantine_blocking(self, job_id: JobId, stored: StoredJob) -> None:
        """Quarantine a job that would block or end this leader as it did others."""
        reason = (
            f"{self._lost_leaders[job_id]} leaders were lost, each by an internal error of this job, or while it worked"
            f" on this job for more than {BLOCKING_WORK_S:g} s without a pause"
        )
        because = "it blocks or ends the JobManager that leads"
        await self._archive(quarantined_snapshot(job_id, stored, reason, self._clock_ms(), because))
        await self._quarantine(job_id, f"{because}: {reason}")
        self._blocking.add(job_id)

    async def _read_lost_leaders(self, stored: Collection[JobId]) -> Mapping[JobId, int]:
        """Return how many leaders each job has cost; nothing if that cannot be read."""
        with log_and_continue(log_events.BLOCKING_JOBS_UNREADABLE):
            return await self._services.lost_leaders(stored)
        return {}

    async def _history(self, job_id: JobId) -> JobHistory | None:
        """Return a job's history. One that cannot be read is as if nothing had happened to the job before."""
        try:
            return await self._read(lambda: self._stores.progress.read_history(job_id))
        except Corrupt as error:
            log.warning(log_events.RECORD_UNREADABLE, job_id=job_id, reason=error.public)
            return None

    async def _check_artifacts(self, stored: StoredJob) -> None:
        """Raise Corrupt if an artifact of the job is missing, unreadable or differs from what was uploaded."""
        wanted = core.blobs_of_job(stored)
        if not wanted:
            return
        if self._blobs_unavailable:
            return
        try:
            unsound = await self._read(lambda: self._blobs.find_damaged(wanted))
        except Unavailable as error:
            self._blobs_unavailable = True
            log.warning(log_events.ARTIFACTS_NOT_CHECKED, reason=error.public)
            return
        for artifact in stored.graph.artifacts:
            if artifact.blob in unsound:
                raise Corrupt(f"its artifact {artifact.name!r} cannot be had: {unsound[artifact.blob]}")

    async def _quarantine(self, job_id: JobId, reason: str) -> None:
        log.error(log_events.JOB_QUARANTINED, job_id=job_id, reason=reason)
        if job_id in self._with_operations:  # recorded first: later there is no graph to record them for
            recorder = OperationRecorder(
                await self._operations(job_id), self._stores.operations, self._gate, self._clock_ms
            )
            await recorder.fail_unfinished(f"job {job_id} was quarantined: {reason}")
        with log_and_continue(log_events.JOB_NOT_QUARANTINED, job_id=job_id):  # a damaged page: it stays where it is
            await self._writes.quarantine(job_id, reason)

    async def _is_archived(self, job_id: JobId) -> bool:
        """Return whether an ended job is archived, readable or not."""
        try:
            return await self._read(lambda: self._stores.ended.get(job_id)) is not None
        except Corrupt:
            return True

    async def _archive(self, snapshot: JobSnapshot) -> None:
        """List a job that has no JobMaster as ended, and archive it, unless the store refuses that."""
        snapshot = structs.replace(snapshot, ended_at_ms=snapshot.ended_at_ms or self._retention_clock.now_ms())
        with log_and_continue(log_events.JOB_ARCHIVE_FAILED, job_id=snapshot.graph.job_id):
            await self._writes.archive_quarantined(snapshot)
        self._ended[snapshot.graph.job_id] = snapshot.summary()


def _check_is(job_id: JobId, stored: StoredJob) -> None:
    if stored.graph.job_id != job_id:
        raise Corrupt(f"what is stored as job {job_id} is job {stored.graph.job_id}")

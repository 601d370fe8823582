"""A cluster for one job, or for one program and the jobs that it submits: it ends with them.

The job, or the program (which is a job, too), is stored before the Dispatcher starts:

    nothing stored, no record   the job is stored, as if it had been submitted
    stored, no record           it is recovered like any job, and awaited
    record                      it has ended: the cluster ends with the recorded status, whatever is stored

Where the job is stored, nothing waits for the record, which may be far away: work that runs has its leader before.

The record of the end is outside of the HA data, which is removed with the cluster, and durable before that is removed.
So a JobManager that is started again at any moment, by a supervisor that knows nothing of the removal, never runs the
job a second time.

The program of an application cluster submits jobs while it runs; a program that runs again finds its n-th job by its
number (`model.application.program_key`). When it has ended, the cluster accepts no more, and ends with the last of its
jobs; those of a program that has failed or was cancelled are cancelled.

Only the end of the job ends the cluster for good. A cluster that is shut down before ends with UNKNOWN: its job is
suspended, its HA data stays, and the job continues when the cluster is started again. A quarantined job has not ended
for good either: the cluster waits for the operator's decision.

Rejected: submitting the job through the Dispatcher once that leads: a client could see a cluster without its job. A
graph store that refuses other jobs: the refusal is one of the checks of a submission, before anything is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog
from msgspec import Struct, structs
from structlog.typing import FilteringBoundLogger

from flintlock.api.job_lines import summary_of
from flintlock.config.options import PARALLELISM_OVERRIDES
from flintlock.dispatcher import core
from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.recovery import open_clock
from flintlock.dispatcher.services import DispatcherServices
from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.causes import current_cause
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, Corrupt, DuplicateJob, NotFound, Refused, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import (
    AwaitJob,
    JobQuery,
    JobSnapshot,
    JobsQuery,
    JobSubmission,
    JobSummary,
    ResultQuery,
    StoredJob,
)
from flintlock.model.states import JobStatus
from flintlock.model.tasks import ResultRows

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()

_AWAIT_S: Final = 3600.0  # one wait of many
_PAGE: Final = 1000  # jobs that are listed at once
_RETRY_S: Final = 1.0  # until a disk, a store or a quarantined job is tried again

#: How long the cluster waits for its job to be cleaned up. Only TaskManagers can remove files, and the last one may be
#: gone.
CLEANUP_PATIENCE_S: Final = 60.0


class ClusterEnd(Struct, frozen=True, kw_only=True):
    """How a cluster ends: its job or program, with its results, and the jobs that the program has submitted."""

    status: ApplicationStatus
    snapshot: JobSnapshot
    results: tuple[ResultRows, ...] = ()
    jobs: tuple[JobSummary, ...] = ()


class JobEndRecord(Protocol):
    """Where the end of the cluster's job is recorded: outside of the HA data."""

    async def read(self) -> ApplicationStatus | None:
        """Return how the job has ended; None if it has not. Raises OSError."""
        ...

    async def write(self, end: ClusterEnd) -> None:
        """Record the end durably. Idempotent. Raises OSError."""
        ...


class JobSource(Protocol):
    """Where a cluster finds its job, or its program."""

    @property
    def job_id(self) -> JobId:
        """The job's id, the same for every JobManager of the cluster and for each of its starts."""
        ...

    async def load(self) -> JobGraph:
        """Return the graph, once its artifacts are stored as blobs. Idempotent. Raises OSError, Unavailable."""
        ...


class ProgramJobs:
    """The jobs that the program of an application cluster submits."""

    def __init__(self, program: JobId) -> None:
        self._program: Final = program
        self._ended = False  # whether the end of the program is durable; written by `begin_term` and `end`

    def begin_term(self, *, program_ended: bool) -> None:
        """Accept jobs or not: a leader that takes over after the program's end accepts none from its first moment."""
        self._ended = program_ended

    def refuse(self, job_id: JobId) -> Conflict | None:
        """Refuse jobs once the program has ended."""
        return core.after_program(job_id, self._program, program_ended=self._ended)

    async def end(self, dispatcher: Dispatcher, program: JobSnapshot) -> tuple[JobSummary, ...]:
        """Return all jobs, once the last one has ended. Those of a program that has not finished are cancelled."""
        self._ended = True
        while True:
            left = dispatcher.unended_jobs()
            if not left:
                if not (await _retried(dispatcher.quarantined_jobs)).jobs:
                    return await self._jobs(dispatcher)
                await asyncio.sleep(_RETRY_S)  # a quarantined job has not ended for good
            for job_id in left if program.status is not JobStatus.FINISHED else ():
                with suppress(Refused, Unavailable):  # it has ended, is publishing, or is tried again below
                    await dispatcher.command(CancelJob(job_id=job_id, requested_by=program.graph.submitted_by))
            for job_id in left[:1]:
                try:
                    await _retried(lambda job_id=job_id: dispatcher.await_job(AwaitJob(job_id=job_id, wait_s=_RETRY_S)))
                except NotFound:  # it was not accepted, and is being taken back
                    await asyncio.sleep(_RETRY_S)

    async def _jobs(self, dispatcher: Dispatcher) -> tuple[JobSummary, ...]:
        found: list[JobSummary] = []
        query = JobsQuery(limit=_PAGE)
        while True:
            page = await _retried(lambda query=query: dispatcher.list_jobs(query))
            found += [summary_of(line) for line in page.lines]
            if page.next is None:
                return tuple(job for job in found if job.job_id != self._program)
            query = structs.replace(query, after=page.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """The job of a cluster, or its program: a ClusterApplication."""

    source: JobSource
    record: JobEndRecord
    result_timeout_s: float  # how long the result is kept for an attached client; 0: there is none
    program_jobs: ProgramJobs | None = None  # of an application cluster

    @property
    def job_id(self) -> JobId:
        """The id of the job, or of the program."""
        return self.source.job_id

    def refuse(self, job_id: JobId) -> Conflict | None:
        """Refuse every other job, or those that come after the program's end."""
        return core.foreign(job_id, self.job_id) if self.program_jobs is None else self.program_jobs.refuse(job_id)

    async def prepare(self, stores: Stores, services: DispatcherServices, gate: LeaderGate) -> None:
        """Store the job unless it is stored or has ended; recovery then finds it. Raises Fenced, Invalid, OSError."""
        if self.program_jobs is not None:
            ended = await gate.retry_until_acknowledged(
                lambda: stores.results.known((self.job_id,)), patience_s=PATIENCE_S
            )
            self.program_jobs.begin_term(program_ended=bool(ended))
        if await gate.retry_until_acknowledged(lambda: _is_stored(stores, self.job_id), patience_s=PATIENCE_S):
            return
        if await self.record.read() is not None:
            return
        overrides = services.configuration.get(PARALLELISM_OVERRIDES)
        graph = core.accepted_graph(JobSubmission(graph=await self.source.load()), services.versions, overrides)
        clock = await open_clock(stores, services, gate)
        job = StoredJob(
            graph=graph,
            submitted_ms=services.clock_ms(),
            cause=current_cause() or "",
            submitted_at_ms=clock.now_ms(),
        )
        with suppress(DuplicateJob):  # the first try took place, though its answer was lost
            await gate.retry_until_acknowledged(lambda: stores.graphs.put(job), patience_s=PATIENCE_S)

    async def run(self, dispatcher: Dispatcher) -> ApplicationStatus:
        """Return the status with which the cluster ends: the job's, or UNKNOWN if it is shut down before."""
        async with asyncio.TaskGroup() as tasks:
            shut_down = tasks.create_task(dispatcher.wait_for_shut_down(), name="shut-down-request")
            recording = tasks.create_task(self._until_recorded(dispatcher), name=f"end-of-{self.job_id}")
            await asyncio.wait({recording, shut_down}, return_when=asyncio.FIRST_COMPLETED)
            status = recording.result() if recording.done() else ApplicationStatus.UNKNOWN
            recording.cancel()
            if status.is_final and not await _is_forgotten(dispatcher, self.job_id):
                await asyncio.wait({shut_down}, timeout=self.result_timeout_s)
                await dispatcher.finish_cleanup(CLEANUP_PATIENCE_S)
            shut_down.cancel()
        return status

    async def _until_recorded(self, dispatcher: Dispatcher) -> ApplicationStatus:
        """Wait for the end of the job and record it; return its status. At once if it is recorded."""
        recorded = await self.record.read()
        if recorded is not None:
            return recorded
        snapshot = await self._await_end(dispatcher)
        results = [await _rows(dispatcher, self.job_id, name) for name in snapshot.result_names]
        jobs = () if self.program_jobs is None else await self.program_jobs.end(dispatcher, snapshot)
        end = ClusterEnd(
            status=core.application_status(snapshot, jobs),
            snapshot=snapshot,
            results=tuple(rows for rows in results if rows is not None),
            jobs=jobs,
        )
        problem = RepeatedFailure()
        while True:  # without a record the HA data must not be removed
            try:
                await self.record.write(end)
            except OSError as error:
                if problem.occurred(str(error), asyncio.get_running_loop().time()):
                    log.error(log_events.JOB_END_NOT_RECORDED, job_id=self.job_id, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                return end.status

    async def _await_end(self, dispatcher: Dispatcher) -> JobSnapshot:
        """Return the job once its end is durable and final: it is not quarantined."""
        query = JobQuery(job_id=self.job_id)
        while True:
            snapshot = await _retried(lambda: dispatcher.await_job(AwaitJob(job_id=self.job_id, wait_s=_AWAIT_S)))
            if snapshot.status.globally_terminal:
                try:
                    await _retried(lambda: dispatcher.quarantined_job(query))
                except NotFound:
                    return snapshot
                await asyncio.sleep(_RETRY_S)


async def _retried(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while it raises Unavailable: for good if the term is over, and then this is cancelled."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(_RETRY_S)


async def _rows(dispatcher: Dispatcher, job_id: JobId, name: str) -> ResultRows | None:
    """Return the rows of a result; None if they can no longer be read."""
    try:
        return await _retried(lambda: dispatcher.result(ResultQuery(job_id=job_id, name=name)))
    except (Corrupt, NotFound) as error:
        log.warning(log_events.RECORD_UNREADABLE, job_id=job_id, reason=error.public)
        return None


async def _is_stored(stores: Stores, job_id: JobId) -> bool:
    stored = {*await stores.graphs.ids(), *(found.job_id for found in await stores.graphs.quarantined())}
    return job_id in stored or bool(await stores.results.known((job_id,)))


async def _is_forgotten(dispatcher: Dispatcher, job_id: JobId) -> bool:
    """Return whether nothing is stored of the job: an earlier leader has removed the HA data."""
    try:
        await _retried(lambda: dispatcher.job(JobQuery(job_id=job_id)))
    except NotFound:
        return True
    return False

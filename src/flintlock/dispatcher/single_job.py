"""A cluster for one job (per-job mode): its job is stored before the Dispatcher starts, and the cluster ends with it.

    no record, nothing stored   the job is stored, as if it had been submitted
    no record, stored           it is recovered like any job, and awaited
    record                      it has ended: the cluster ends with the recorded status, whatever is stored

The record of the end is outside of the HA data, which is removed with the cluster, and durable before that is removed.
So a JobManager that is started again at any moment, by a supervisor that knows nothing of the removal, never runs the
job a second time.

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
from structlog.typing import FilteringBoundLogger

from flintlock.config.options import PARALLELISM_OVERRIDES
from flintlock.dispatcher import core
from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.services import DispatcherServices
from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.application import STATUS_OF_JOB, ApplicationStatus
from flintlock.model.causes import current_cause
from flintlock.model.errors import Corrupt, DuplicateJob, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import AwaitJob, JobQuery, JobSnapshot, JobSubmission, ResultQuery, StoredJob
from flintlock.model.repeated_failures import RepeatedFailure
from flintlock.model.tasks import ResultRows

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()

_AWAIT_S: Final = 3600.0  # one wait of many
_RETRY_S: Final = 1.0  # until a disk, a store or a quarantined job is tried again

#: How long the cluster waits for its job to be cleaned up. Only TaskManagers can remove files, and the last one may be
#: gone.
CLEANUP_PATIENCE_S: Final = 60.0


class JobEndRecord(Protocol):
    """Where the end of the cluster's job is recorded: outside of the HA data."""

    async def read(self) -> ApplicationStatus | None:
        """Return how the job has ended; None if it has not. Raises OSError."""
        ...

    async def write(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Record the end durably. Idempotent. Raises OSError."""
        ...


class JobSource(Protocol):
    """Where a cluster finds its job."""

    @property
    def job_id(self) -> JobId:
        """The job's id, the same for every JobManager of the cluster and for each of its starts."""
        ...

    async def load(self) -> JobGraph:
        """Return the graph, once its artifacts are stored as blobs. Idempotent. Raises OSError, Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """The only job of a cluster: a ClusterApplication."""

    source: JobSource
    record: JobEndRecord
    result_timeout_s: float  # how long the result is kept for an attached client; 0: there is none

    @property
    def only_job(self) -> JobId:
        """The only job that the cluster accepts."""
        return self.source.job_id

    async def prepare(self, stores: Stores, services: DispatcherServices, gate: LeaderGate) -> None:
        """Store the job unless it is stored or has ended; recovery then finds it. Raises Fenced, Invalid, OSError."""
        if await self.record.read() is not None:
            return
        if await gate.retry_until_acknowledged(lambda: _is_stored(stores, self.only_job), patience_s=PATIENCE_S):
            return
        overrides = services.configuration.get(PARALLELISM_OVERRIDES)
        job = StoredJob(
            graph=core.accepted_graph(JobSubmission(graph=await self.source.load()), services.versions, overrides),
            submitted_ms=services.clock_ms(),
            cause=current_cause() or "",
        )
        with suppress(DuplicateJob):  # the first try took place, though its answer was lost
            await gate.retry_until_acknowledged(lambda: stores.graphs.put(job), patience_s=PATIENCE_S)

    async def run(self, dispatcher: Dispatcher) -> ApplicationStatus:
        """Return the status with which the cluster ends: the job's, or UNKNOWN if it is shut down before."""
        async with asyncio.TaskGroup() as tasks:
            shut_down = tasks.create_task(dispatcher.wait_for_shut_down(), name="shut-down-request")
            recording = tasks.create_task(self._until_recorded(dispatcher), name=f"end-of-{self.only_job}")
            await asyncio.wait({recording, shut_down}, return_when=asyncio.FIRST_COMPLETED)
            status = recording.result() if recording.done() else ApplicationStatus.UNKNOWN
            recording.cancel()
            if status.is_final and not await _is_forgotten(dispatcher, self.only_job):
                await asyncio.wait({shut_down}, timeout=self.result_timeout_s)
                await dispatcher.finish_cleanup(self.only_job, CLEANUP_PATIENCE_S)
            shut_down.cancel()
        return status

    async def _until_recorded(self, dispatcher: Dispatcher) -> ApplicationStatus:
        """Wait for the end of the job and record it; return its status. At once if it is recorded."""
        recorded = await self.record.read()
        if recorded is not None:
            return recorded
        snapshot = await self._await_end(dispatcher)
        results = [await _rows(dispatcher, self.only_job, name) for name in snapshot.result_names]
        problem = RepeatedFailure()
        while True:  # without a record the HA data must not be removed
            try:
                await self.record.write(snapshot, tuple(rows for rows in results if rows is not None))
            except OSError as error:
                if problem.occurred(str(error), asyncio.get_running_loop().time()):
                    log.error(log_events.JOB_END_NOT_RECORDED, job_id=self.only_job, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                return STATUS_OF_JOB[snapshot.status]

    async def _await_end(self, dispatcher: Dispatcher) -> JobSnapshot:
        """Return the job once its end is durable and final: it is not quarantined."""
        query = JobQuery(job_id=self.only_job)
        while True:
            snapshot = await _retried(lambda: dispatcher.await_job(AwaitJob(job_id=self.only_job, wait_s=_AWAIT_S)))
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

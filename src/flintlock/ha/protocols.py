"""High-availability services as the components see them: election and stores.

One contract suite (`tests/contract/`) covers every implementation. All writes go through `Stores`, which are bound
to the fencing token of one term: each write is a transaction that first checks that no newer epoch has written, and
raises Fenced otherwise. A higher epoch is adopted by its first write; of two sessions with one epoch the first wins.
A write that returns is durable. One that raises has changed nothing, except that after Unavailable its outcome is
unknown. One whose caller is cancelled takes place as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from msgspec import Struct

from flintlock.gateways.blobs import BlobCopies
from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.access.tokens import AccessTokens
from flintlock.model.commands import JobOperations
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobs import JobHistory, JobResult, JobSnapshot, JobSummary, RetentionReading, StoredJob
from flintlock.model.streaming.savepoints import SavepointDisposals
from flintlock.model.tasks import RegionRecord, ResultRows
from flintlock.monitoring.blocking_jobs import BlockingJobRecords

T = TypeVar("T")


class KnownKey(Struct, frozen=True, kw_only=True):
    """The job that an idempotency key belongs to."""

    job_id: JobId
    digest: str


class Quarantined(Struct, frozen=True, kw_only=True):
    """A stored graph that could not be read or run, quarantined with the reason."""

    job_id: JobId
    reason: str


class JobGraphStore(Protocol):
    """The graphs of jobs that have not ended."""

    async def put(self, job: StoredJob) -> None:
        """Add a job together with its idempotency key, in one transaction.

        Raises DuplicateJob if the id is in use: it has a result (`globally_terminated`), a graph, or a quarantined one.
        Raises KeyReused if the key already belongs to another job, whatever that one's digest: of two concurrent
        submissions with one key, the later calls `key` again.
        """
        ...

    async def replace(self, job: StoredJob) -> None:
        """Replace what is stored under the job's id. Raises NotFound if nothing is; the key stays."""
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all stored graphs, readable or not."""
        ...

    async def recover(self, job_id: JobId) -> StoredJob:
        """Return a stored job. Raises NotFound, Corrupt."""
        ...

    async def remove(self, job_id: JobId) -> None:
        """Remove a graph. Idempotent.

        The key stays if the job has a result, and is removed if it has none: such a submission never counted. A
        quarantined graph stays.
        """
        ...

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Keep a graph for inspection only: it is no longer listed by `ids`. Idempotent.

        The first reason stays. Does nothing for a graph that does not exist.
        """
        ...

    async def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the quarantined graphs. They stay until `restore` or `discard_quarantined`."""
        ...

    async def read_quarantined(self, job_id: JobId) -> StoredJob:
        """Return a quarantined job. Raises NotFound, Corrupt."""
        ...

    async def restore(self, job_id: JobId) -> None:
        """Take a graph out of quarantine, in one transaction: `ids` lists it again, and its end is forgotten.

        What is forgotten is its clean result, its entry among the ended jobs and what was requested of it; its key and
        its progress stay.
        Does nothing for a job whose graph is listed already. Raises NotFound for one that is not quarantined, Conflict
        for one whose result is dirty: its cleanup is not done.
        """
        ...

    async def discard_quarantined(self, result: JobResult) -> None:
        """Remove a quarantined graph, in one transaction with a dirty entry of this result, for the job's cleanup.

        The entry replaces one that there is. Does nothing for a job that is not quarantined.
        """
        ...

    async def key(self, key: str) -> KnownKey | None:
        """Return the job of an idempotency key. Keys outlive their job by its retention."""
        ...


class JobResultStore(Protocol):
    """How jobs ended. A dirty entry means that cleanup is not done; a clean one keeps the id used."""

    async def create_dirty(self, result: JobResult) -> None:
        """Add a dirty entry. Raises InvariantBroken if the job has one already, dirty or clean."""
        ...

    async def mark_clean(self, job_id: JobId) -> None:
        """Record that cleanup is done. Idempotent. Raises NotFound for a job without an entry."""
        ...

    async def get(self, job_id: JobId) -> JobResult | None:
        """Return the job's entry, dirty or clean. Raises Corrupt: the job has ended, but how is unknown."""
        ...

    async def dirty(self) -> tuple[JobResult, ...]:
        """Return all dirty entries that can be read.

        One that cannot is left out and logged; its id stays in use, and `get` raises Corrupt for it. So recovery calls
        `get` for each graph that it is about to run and whose id is `known`.
        """
        ...

    async def known(self, job_ids: Collection[JobId]) -> frozenset[JobId]:
        """Return those of the ids that have an entry, dirty or clean, readable or not."""
        ...


class JobProgressStore(Protocol):
    """The durable progress of running jobs: deployed attempts, accepted publications, finished regions, history."""

    async def record(self, record: RegionRecord) -> None:
        """Replace the record of one region."""
        ...

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return all records of a job, by region. Raises Corrupt."""
        ...

    async def record_history(self, history: JobHistory) -> None:
        """Replace what is stored of the job's history."""
        ...

    async def read_history(self, job_id: JobId) -> JobHistory | None:
        """Return the job's history; None if none was ever recorded. Raises Corrupt."""
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that may have records or a history, readable or not."""
        ...

    async def remove(self, job_id: JobId) -> None:
        """Remove all records of a job, and its history. Idempotent."""
        ...


class EndedJobStore(Protocol):
    """Ended jobs with their executions and results, for as long as the retention is configured."""

    async def put(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Store an ended job. Storing it again replaces it, rows included (a failover between archive and result)."""
        ...

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job. Raises Corrupt."""
        ...

    async def result(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return the rows of a result of an ended job. Raises Corrupt."""
        ...

    def summaries(self) -> AsyncGenerator[tuple[JobSummary, ...]]:
        """Yield the summaries of all ended jobs in slices, the latest `retained_from_ms` first.

        One that cannot be read is left out and logged. A job that is stored or removed meanwhile may or may not be
        among them. However many there are, a slice is small, and between two of them nothing is held for long.
        """
        ...

    async def expire(self, before_ms: int) -> tuple[JobId, ...]:
        """Remove jobs whose `retained_from_ms` is before then, with their clean results and keys; return which.

        At most some hundred at once: call again until it returns none. A job whose result is dirty, or whose graph
        still exists, quarantined or not, has not ended for good and stays. Each job is removed as a whole; a call that
        raises may have removed some.
        """
        ...


class JobOperationStore(Protocol):
    """Operations of jobs and what came of them. They go when `EndedJobStore.expire` forgets their job."""

    async def put(self, operations: JobOperations) -> None:
        """Replace what is stored of a job's operations. Raises NotFound for a job without a graph and a result."""
        ...

    async def read(self, job_id: JobId) -> JobOperations | None:
        """Return the operations of a job; None if it never had one. Raises Corrupt."""
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that have operations, readable or not."""
        ...


class ClusterRecordStore(Protocol[T]):
    """One record of the cluster as a whole."""

    async def record(self, value: T) -> None:
        """Replace what is stored."""
        ...

    async def read(self) -> T | None:
        """Return what was recorded last; None if nothing ever was. Raises Corrupt."""
        ...


class Stores(Protocol):
    """All stores of one term."""

    @property
    def graphs(self) -> JobGraphStore:
        """Graphs of jobs that have not ended."""
        ...

    @property
    def results(self) -> JobResultStore:
        """How jobs ended."""
        ...

    @property
    def progress(self) -> JobProgressStore:
        """The durable progress of running jobs."""
        ...

    @property
    def ended(self) -> EndedJobStore:
        """Ended jobs with their executions and results."""
        ...

    @property
    def operations(self) -> JobOperationStore:
        """Operations of jobs, running and ended."""
        ...

    @property
    def retention_clock(self) -> ClusterRecordStore[RetentionReading]:
        """How far the retention clock has come (`dispatcher.retention`)."""
        ...

    @property
    def access_tokens(self) -> ClusterRecordStore[AccessTokens]:
        """The access tokens of the cluster."""
        ...

    @property
    def disposals(self) -> ClusterRecordStore[SavepointDisposals]:
        """The latest removals of savepoints."""
        ...

    async def confirm_term(self) -> None:
        """Return if no newer leader has begun, as the store knows now. Raises Fenced if one has, Unavailable."""
        ...


class LeaderElection(Protocol):
    """One election for the whole process: Dispatcher, ResourceManager and JobMasters lead together."""

    def terms(self) -> AsyncIterator[AbstractAsyncContextManager[FencingToken]]:
        """Yield a term each time leadership is granted.

        Entering the term returns its token, whose epoch is higher than any before and known to the stores; leaving it
        gives leadership up. When leadership is lost the body is cancelled and the term ends without an error, so that
        the loop goes on to the next term. A term that is never entered is given up when the next one is requested.
        """
        ...

    def resign(self) -> None:
        """Give leadership up, and never contend again: the process is about to end. Idempotent, and does not wait.

        The next leader need not wait until the term's body has cleaned up, where the election supports it.
        """
        ...

    def paused(self, token: FencingToken) -> str | None:
        """Return why the leader of this term must not act now; None if it may.

        A leader that cannot reach the store does not know whether it still leads: until it does, or its term ends, it
        deploys nothing, grants no lease and no permission to publish, and answers no call as leader. Its writes raise
        Unavailable.
        """
        ...


class LeaderRetrieval(Protocol):
    """Which process leads and where it listens, for readers only: clients, TaskManagers."""

    async def current(self) -> LeaderInfo | None:
        """Return what the leader published last; None without a leader, or if it has published nothing.

        Raises Unavailable.
        """
        ...

    def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then again each time that changes. Never ends.

        A change that is followed at once by another may be left out. While the store cannot be reached nothing is
        yielded: what was known may still be true.
        """
        ...


class LeaderRegister(LeaderRetrieval, Protocol):
    """The same for JobManagers: the leader publishes its addresses, and a standby declares a dead leader dead."""

    async def publish(self, info: LeaderInfo) -> None:
        """Publish where the leader of `info.token` listens. Publishing again replaces it; it is removed with the term.

        After the leader's death it is removed as soon as that is noticed, and until then names a dead process. Raises
        Fenced, Unavailable.
        """
        ...

    async def declare_dead(self, dead: FencingToken) -> bool:
        """Remove the leadership of a dead process, so that another one leads at once, not after a timeout.

        For a process whose connection to it was refused. A wrong verdict is harmless: a leader that lives steps down,
        and contends again. Returns whether that leader was still registered. Raises Unavailable.
        """
        ...


class HaServices(Protocol):
    """Election and stores of one cluster."""

    @property
    def election(self) -> LeaderElection:
        """The election."""
        ...

    @property
    def leader(self) -> LeaderRegister:
        """Where the leader listens."""
        ...

    @property
    def leader_timeout_s(self) -> float:
        """How long a silent leader keeps its term: as granted, where that differs from what is configured."""
        ...

    @property
    def standstill_limit_s(self) -> float | None:
        """For how long the loop of this process may stand still before others wait for it in vain.

        None: others find out that a leader does nothing, and end its term.
        """
        ...

    @property
    def blobs(self) -> BlobCopies | None:
        """Copies of blobs that every JobManager can read; None where all of them share one directory."""
        ...

    @property
    def blocking_jobs(self) -> BlockingJobRecords | None:
        """The records of jobs that block a leader, for all JobManagers; None where they share the state directory."""
        ...

    def stores(self, token: FencingToken) -> Stores:
        """Return the stores bound to a term."""
        ...

    async def cleanup_all_data(self, token: FencingToken) -> None:
        """Remove every record of the cluster, with payloads and blob copies: it has ended for good. Idempotent.

        Called by the last leader, within its term, after its last write. The epoch stays, so that a process that is
        late is fenced off. A call that is cut short has removed graphs before results: what is left never makes an
        ended job run again. Raises Fenced, Unavailable.
        """
        ...

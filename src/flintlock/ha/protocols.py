"""High-availability services as the rooms see them: election and stores.

One contract suite (`tests/contract/`) holds for every implementation. All writes go through `Stores`, which are bound
to the fencing token of one term: each write is a transaction that first checks that no newer epoch has written, and
raises Fenced otherwise. A higher epoch is adopted by its first write; of two sessions with one epoch the first wins.
A write that returns is durable. One that raises has changed nothing, save that Unavailable leaves it open. One whose
caller is cancelled takes place as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from flintlock.gateways.blobs import BlobCopies
from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobs import JobResult, JobSnapshot, JobSummary, StoredJob
from flintlock.model.tasks import RegionRecord, ResultRows


class KnownKey(Struct, frozen=True, kw_only=True):
    """What an idempotency key stands for."""

    job_id: JobId
    digest: str


class Quarantined(Struct, frozen=True, kw_only=True):
    """Something stored that could not be read, set aside with its reason."""

    job_id: JobId
    reason: str


class JobGraphStore(Protocol):
    """The graphs of jobs that have not ended."""

    async def put(self, job: StoredJob) -> None:
        """Add a job together with its idempotency key, in one transaction.

        Raises DuplicateJob if the id is in use: it has a result (`globally_terminated`), a graph, or one set aside.
        Raises KeyReused if the key already stands for another job, whatever that one's digest: of two submissions
        that bring one key at once, the later asks `key` again.
        """
        ...

    async def replace(self, job: StoredJob) -> None:
        """Put the job in the place of what is stored under its id. Raises NotFound if nothing is; the key stays."""
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all stored graphs, readable or not."""
        ...

    async def recover(self, job_id: JobId) -> StoredJob:
        """Return a stored job. Raises NotFound, Corrupt."""
        ...

    async def remove(self, job_id: JobId) -> None:
        """Remove a graph. Idempotent.

        The key stays if the job has a result, and goes if it has none: such a submission never counted. What was set
        aside stays aside.
        """
        ...

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Set a graph aside for inspection: it is no longer listed by `ids`. Idempotent.

        The first reason stays. Does nothing for a graph that is not there.
        """
        ...

    async def quarantined(self) -> tuple[Quarantined, ...]:
        """Return what was set aside. It goes when `EndedJobStore.expire` forgets the job."""
        ...

    async def key(self, key: str) -> KnownKey | None:
        """Return what an idempotency key stands for. Keys outlive their job by its retention."""
        ...


class JobResultStore(Protocol):
    """How jobs ended. A dirty entry means that cleanup is not done; a clean one keeps the id used."""

    async def create_dirty(self, result: JobResult) -> None:
        """Add a dirty entry. Raises InvariantBroken if the job has one already, dirty or clean."""
        ...

    async def mark_clean(self, job_id: JobId) -> None:
        """Cleanup is done. Doing it twice does nothing. Raises NotFound for a job without an entry."""
        ...

    async def get(self, job_id: JobId) -> JobResult | None:
        """Return the job's entry, dirty or clean. Raises Corrupt: the job has ended, but not even how is known."""
        ...

    async def dirty(self) -> tuple[JobResult, ...]:
        """Return all dirty entries that can be read.

        One that cannot is left out and logged; it keeps its id used, and `get` raises Corrupt for it. So recovery asks
        `get` for each graph that it is about to run and whose id is among `ids`.
        """
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all entries, dirty or clean, readable or not."""
        ...


class JobProgressStore(Protocol):
    """What running jobs have durably reached: deployed attempts, accepted publications, finished regions."""

    async def record(self, record: RegionRecord) -> None:
        """Replace what is known of one region."""
        ...

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return all records of a job, by region. Raises Corrupt."""
        ...

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that may have records, readable or not."""
        ...

    async def remove(self, job_id: JobId) -> None:
        """Forget a job. Idempotent."""
        ...


class EndedJobStore(Protocol):
    """Ended jobs with their executions and results, for as long as the retention says."""

    async def put(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Keep an ended job. Keeping it again replaces it, rows included (a failover between archive and result)."""
        ...

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job. Raises Corrupt."""
        ...

    async def result(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return rows that an ended job kept. Raises Corrupt."""
        ...

    async def summaries(self) -> tuple[JobSummary, ...]:
        """Return the listing's lines of all ended jobs, in no order. One that cannot be read is left out and logged."""
        ...

    async def expire(self, before_ms: int) -> tuple[JobId, ...]:
        """Forget jobs that ended before then, with their clean results and keys; return which.

        A job whose result is dirty, or whose graph is still there, has not ended for good and stays. Each job goes as a
        whole; a call that raises may have forgotten some.
        """
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
        """What running jobs have reached."""
        ...

    @property
    def ended(self) -> EndedJobStore:
        """Ended jobs, whole."""
        ...


class LeaderElection(Protocol):
    """One contest for the whole process: Dispatcher, ResourceManager and JobMasters lead together."""

    def terms(self) -> AsyncIterator[AbstractAsyncContextManager[FencingToken]]:
        """Yield a term each time leadership is granted.

        Entering the term gives its token, whose epoch is higher than any before and known to the stores; leaving it
        gives it up. When leadership is lost the body is cancelled and the term ends quietly, so that the loop goes on
        to the next term. A term that is never entered is given up when the next one is asked for.
        """
        ...

    def resign(self) -> None:
        """Give leadership up, and never contend again: the process is about to end. Idempotent, and does not wait.

        Whoever leads next need not wait until the term's body has tidied up, where the election can tell at once.
        """
        ...

    def paused(self, token: FencingToken) -> str | None:
        """Return why the leader of this term must not act just now; None if it may.

        A leader that cannot reach the store does not know whether it still leads: until it does, or its term ends, it
        deploys nothing, grants no lease and no leave, and answers nobody as leader. Its writes raise Unavailable.
        """
        ...


class LeaderRetrieval(Protocol):
    """Who leads and where it listens, for those who only ask: clients, TaskManagers."""

    async def current(self) -> LeaderInfo | None:
        """Return what the leader told last; None while nobody leads, or it has told nothing. Raises Unavailable."""
        ...

    def changes(self) -> AsyncIterator[LeaderInfo | None]:
        """Yield what is known now, then again each time that changes. Never ends.

        A change that is followed at once by another may be left out. While the store is out of reach nothing is
        yielded: what was known may still be so.
        """
        ...


class LeaderRegister(LeaderRetrieval, Protocol):
    """The same for JobManagers: who leads tells it, and who stands by says when that one is dead."""

    async def publish(self, info: LeaderInfo) -> None:
        """Tell where the leader of `info.token` listens. Telling again replaces it; it goes when the term ends.

        After the leader's death it goes as soon as that is noticed, and until then may point to nobody. Raises Fenced,
        Unavailable.
        """
        ...

    async def declare_dead(self, dead: FencingToken) -> bool:
        """The process that led under this token is dead: let another one lead at once, not after a timeout.

        For whoever saw its connection refused. A wrong guess is harmless: a leader that lives steps down, and contends
        again. Tells whether that leader was still in the way. Raises Unavailable.
        """
        ...


class HaServices(Protocol):
    """Election and stores of one cluster."""

    @property
    def election(self) -> LeaderElection:
        """Who leads."""
        ...

    @property
    def leader(self) -> LeaderRegister:
        """Where the leader is."""
        ...

    @property
    def blobs(self) -> BlobCopies | None:
        """Where copies of blobs go, so that every JobManager reaches them; None where one directory serves them all."""
        ...

    def stores(self, token: FencingToken) -> Stores:
        """Return the stores bound to a term."""
        ...

"""HA services in memory, for tests and the simulation.

A `MemoryCluster` is what would be on disk: it outlives every process of a simulated cluster. Records are stored
encoded, so that no component can change them by reference, and what cannot be encoded fails here as it would on a disk.

Each operation takes effect at one instant, between two awaits of the process's `step` hook: `graphs.put:before`, then
the effect with its fencing check, then `graphs.put:after`. A hook that never returns before the effect is a process
that died without it; one that never returns after the effect is a process that died before it could learn of it; one
that sleeps is a slow disk. A write that is refused has no "after".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from functools import partial
from typing import Final, Generic, TypeVar

from msgspec import Struct

from flintlock.ha import payloads
from flintlock.ha.payloads import Payload
from flintlock.ha.protocols import KnownKey, Quarantined
from flintlock.ha.store_rules import (
    SLICE,
    batched,
    duplicate_job,
    fence,
    key_reused,
    no_job_for_operations,
    not_quarantined,
    still_cleaned_up,
)
from flintlock.model.commands import JobOperations
from flintlock.model.errors import InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import FencingToken, JobId, RegionId
from flintlock.model.jobs import JobHistory, JobResult, JobSnapshot, JobSummary, StoredJob
from flintlock.model.states import checked_move
from flintlock.model.tasks import REGION_MOVES, RegionRecord, ResultRows
from flintlock.testing.fakes.memory_election import (
    MemoryElection,
    MemoryLeaderRegister,
    MemoryLeadership,
    StepHook,
    yielding,
)

T = TypeVar("T")


class ResultEntry(Struct, frozen=True, kw_only=True):
    """A stored JobResult."""

    dirty: bool
    end_ms: int
    payload: bytes


class EndedEntry(Struct, frozen=True, kw_only=True):
    """A stored ended job."""

    end_ms: int
    summary: bytes
    snapshot: bytes
    rows: dict[str, bytes]


class MemoryCluster(MemoryLeadership):
    """All that is durable, and which process leads. Tests may read the records, and damage them."""

    def __init__(self, *, automatic: bool = False) -> None:
        super().__init__(automatic=automatic)
        self.graphs: Final[dict[JobId, bytes]] = {}
        self.quarantined: Final[dict[JobId, tuple[str, bytes]]] = {}  # reason, payload
        self.keys: Final[dict[str, KnownKey]] = {}
        self.results: Final[dict[JobId, ResultEntry]] = {}
        self.progress: Final[dict[JobId, dict[RegionId, bytes]]] = {}
        self.ended: Final[dict[JobId, EndedEntry]] = {}
        self.operations: Final[dict[JobId, bytes]] = {}
        self.histories: Final[dict[JobId, bytes]] = {}
        self.cluster_records: Final[dict[str, bytes]] = {}  # by the name of the store

    def clear(self) -> None:
        """Remove every record; the newest token stays."""
        jobs = self.graphs, self.quarantined, self.keys, self.results
        for records in (*jobs, self.progress, self.histories, self.ended, self.operations, self.cluster_records):
            records.clear()

    def forget_keys(self, job_id: JobId) -> None:
        """Remove the keys that refer to a job."""
        for key in [key for key, known in self.keys.items() if known.job_id == job_id]:
            del self.keys[key]


class _TermStore:
    """What all stores share: operations that take effect at one instant, writes under one token."""

    def __init__(self, cluster: MemoryCluster, token: FencingToken, step: StepHook) -> None:
        self._cluster: Final = cluster
        self._token: Final = token
        self._step: Final = step

    async def _write(self, name: str, effect: Callable[[], T]) -> T:
        await self._step(f"{name}:before")
        if self._token in self._cluster.pauses:
            raise Unavailable(f"nothing is written now: {self._cluster.pauses[self._token]}")
        adopted = fence(self._cluster.token, self._token)
        value = effect()  # raises before it changes anything
        self._cluster.token = adopted
        await self._step(f"{name}:after")
        return value

    async def _read(self, name: str, effect: Callable[[], T]) -> T:
        await self._step(f"{name}:before")
        value = effect()
        await self._step(f"{name}:after")
        return value


class MemoryJobGraphStore(_TermStore):
    """Graphs, quarantined graphs, and idempotency keys."""

    async def put(self, job: StoredJob) -> None:
        """Add a job with its key."""
        cluster, job_id, key = self._cluster, job.graph.job_id, job.idempotency_key
        payload = payloads.STORED_JOB.encode(job)

        def effect() -> None:
            if job_id in cluster.results:
                raise duplicate_job(job_id, ended=True)
            if job_id in cluster.graphs or job_id in cluster.quarantined:
                raise duplicate_job(job_id, ended=False)
            if key is not None:
                known = cluster.keys.get(key)
                if known is not None and known.job_id != job_id:
                    raise key_reused(key, known.job_id)
                cluster.keys[key] = KnownKey(job_id=job_id, digest=job.digest)
            cluster.graphs[job_id] = payload

        await self._write("graphs.put", effect)

    async def replace(self, job: StoredJob) -> None:
        """Replace a stored job."""
        job_id, payload = job.graph.job_id, payloads.STORED_JOB.encode(job)

        def effect() -> None:
            if job_id not in self._cluster.graphs:
                raise NotFound(f"no graph is stored for job {job_id}")
            self._cluster.graphs[job_id] = payload

        await self._write("graphs.replace", effect)

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all stored graphs."""
        return await self._read("graphs.ids", lambda: tuple(self._cluster.graphs))

    async def recover(self, job_id: JobId) -> StoredJob:
        """Return a stored job."""
        payload = await self._read("graphs.recover", lambda: self._cluster.graphs.get(job_id))
        if payload is None:
            raise NotFound(f"no graph is stored for job {job_id}")
        return payloads.STORED_JOB.decode(payload, f"job {job_id}")

    async def remove(self, job_id: JobId) -> None:
        """Remove a graph, and its key if it has no result."""

        def effect() -> None:
            self._cluster.graphs.pop(job_id, None)
            if job_id not in self._cluster.results:
                self._cluster.forget_keys(job_id)

        await self._write("graphs.remove", effect)

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Move a graph to quarantine."""

        def effect() -> None:
            payload = self._cluster.graphs.pop(job_id, None)
            if payload is not None:
                self._cluster.quarantined[job_id] = (reason, payload)

        await self._write("graphs.quarantine", effect)

    async def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the quarantined graphs."""

        def effect() -> tuple[Quarantined, ...]:
            entries = self._cluster.quarantined.items()
            return tuple(Quarantined(job_id=job_id, reason=reason) for job_id, (reason, _) in entries)

        return await self._read("graphs.quarantined", effect)

    async def read_quarantined(self, job_id: JobId) -> StoredJob:
        """Return a quarantined job."""
        entry = await self._read("graphs.read_quarantined", lambda: self._cluster.quarantined.get(job_id))
        if entry is None:
            raise not_quarantined(job_id)
        return payloads.STORED_JOB.decode(entry[1], f"job {job_id}")

    async def restore(self, job_id: JobId) -> None:
        """Take a graph out of quarantine."""
        cluster = self._cluster

        def effect() -> None:
            if job_id in cluster.graphs:
                return
            if job_id not in cluster.quarantined:
                raise not_quarantined(job_id)
            if job_id in cluster.results and cluster.results[job_id].dirty:
                raise still_cleaned_up(job_id)
            cluster.graphs[job_id] = cluster.quarantined.pop(job_id)[1]
            for records in (cluster.results, cluster.ended, cluster.operations):
                records.pop(job_id, None)

        await self._write("graphs.restore", effect)

    async def discard_quarantined(self, result: JobResult) -> None:
        """Remove a quarantined graph; a dirty result takes its place."""
        entry = ResultEntry(dirty=True, end_ms=result.retained_from_ms, payload=payloads.JOB_RESULT.encode(result))

        def effect() -> None:
            if self._cluster.quarantined.pop(result.job_id, None) is not None:
                self._cluster.results[result.job_id] = entry

        await self._write("graphs.discard_quarantined", effect)

    async def key(self, key: str) -> KnownKey | None:
        """Return the job that a key refers to."""
        return await self._read("graphs.key", lambda: self._cluster.keys.get(key))


class MemoryJobResultStore(_TermStore):
    """Results, dirty and clean."""

    async def create_dirty(self, result: JobResult) -> None:
        """Add a dirty entry."""
        entry = ResultEntry(dirty=True, end_ms=result.retained_from_ms, payload=payloads.JOB_RESULT.encode(result))

        def effect() -> None:
            if result.job_id in self._cluster.results:
                raise InvariantBroken(f"job {result.job_id} has a result already")
            self._cluster.results[result.job_id] = entry

        await self._write("results.create_dirty", effect)

    async def mark_clean(self, job_id: JobId) -> None:
        """Mark an entry as clean: cleanup is done."""

        def effect() -> None:
            entry = self._cluster.results.get(job_id)
            if entry is None:
                raise NotFound(f"job {job_id} has no result to mark as clean")
            self._cluster.results[job_id] = ResultEntry(dirty=False, end_ms=entry.end_ms, payload=entry.payload)

        await self._write("results.mark_clean", effect)

    async def get(self, job_id: JobId) -> JobResult | None:
        """Return the job's entry."""
        entry = await self._read("results.get", lambda: self._cluster.results.get(job_id))
        return None if entry is None else payloads.JOB_RESULT.decode(entry.payload, f"job {job_id}")

    async def dirty(self) -> tuple[JobResult, ...]:
        """Return all dirty entries that can be read."""

        def effect() -> list[tuple[JobId, bytes]]:
            return [(job_id, entry.payload) for job_id, entry in sorted(self._cluster.results.items()) if entry.dirty]

        return payloads.JOB_RESULT.readable(await self._read("results.dirty", effect))

    async def known(self, job_ids: Collection[JobId]) -> frozenset[JobId]:
        """Return those of the ids that have an entry."""
        return await self._read("results.known", lambda: frozenset(job_ids) & self._cluster.results.keys())


class MemoryJobProgressStore(_TermStore):
    """Records of regions."""

    async def record(self, record: RegionRecord) -> None:
        """Replace the record of one region. A record that may not follow the one before it is a bug."""
        payload = payloads.REGION_RECORD.encode(record)

        def effect() -> None:
            records = self._cluster.progress.setdefault(record.job_id, {})
            before = records.get(record.region)
            if before is not None and before != payload:
                old = payloads.REGION_RECORD.decode(before, f"job {record.job_id}")
                checked_move(REGION_MOVES, old.phase, record.phase)
            records[record.region] = payload

        await self._write("progress.record", effect)

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return all records of a job, by region."""
        stored = await self._read("progress.read", lambda: sorted(self._cluster.progress.get(job_id, {}).items()))
        return tuple(
            payloads.REGION_RECORD.decode(payload, f"job {job_id}, region {region}") for region, payload in stored
        )

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs with records."""
        return await self._read("progress.ids", lambda: tuple({**self._cluster.progress, **self._cluster.histories}))

    async def record_history(self, history: JobHistory) -> None:
        """Replace what is stored of the job's history."""
        payload = payloads.JOB_HISTORY.encode(history)

        def effect() -> None:
            self._cluster.histories[history.job_id] = payload

        await self._write("progress.record_history", effect)

    async def read_history(self, job_id: JobId) -> JobHistory | None:
        """Return the job's history."""
        payload = await self._read("progress.read_history", lambda: self._cluster.histories.get(job_id))
        return None if payload is None else payloads.JOB_HISTORY.decode(payload, f"job {job_id}")

    async def remove(self, job_id: JobId) -> None:
        """Remove the records of a job, and its history."""

        def effect() -> None:
            self._cluster.progress.pop(job_id, None)
            self._cluster.histories.pop(job_id, None)

        await self._write("progress.remove", effect)


class MemoryEndedJobStore(_TermStore):
    """Ended jobs."""

    async def put(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Store an ended job."""
        entry = EndedEntry(
            end_ms=snapshot.retained_from_ms,
            summary=payloads.JOB_SUMMARY.encode(snapshot.summary()),
            snapshot=payloads.JOB_SNAPSHOT.encode(snapshot),
            rows={result.name: payloads.RESULT_ROWS.encode(result) for result in results},
        )

        def effect() -> None:
            self._cluster.ended[snapshot.graph.job_id] = entry

        await self._write("ended.put", effect)

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job."""
        entry = await self._read("ended.get", lambda: self._cluster.ended.get(job_id))
        return None if entry is None else payloads.JOB_SNAPSHOT.decode(entry.snapshot, f"job {job_id}")

    async def result(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return stored rows of an ended job."""
        entry = await self._read("ended.result", lambda: self._cluster.ended.get(job_id))
        stored = None if entry is None else entry.rows.get(name)
        return None if stored is None else payloads.RESULT_ROWS.decode(stored, f"job {job_id}, result {name!r}")

    async def summaries(self) -> AsyncGenerator[tuple[JobSummary, ...]]:
        """Yield the summaries of all ended jobs, each slice as it is at its own instant."""

        def effect() -> list[tuple[int, JobId]]:
            return sorted(((entry.end_ms, job_id) for job_id, entry in self._cluster.ended.items()), reverse=True)

        def read(some: tuple[tuple[int, JobId], ...]) -> list[tuple[JobId, bytes]]:
            found = ((job_id, self._cluster.ended.get(job_id)) for _, job_id in some)
            return [(job_id, entry.summary) for job_id, entry in found if entry is not None]

        for some in batched(await self._read("ended.summaries", effect), SLICE):
            yield payloads.JOB_SUMMARY.readable(await self._read("ended.slice", partial(read, some)))

    async def expire(self, before_ms: int) -> tuple[JobId, ...]:
        """Remove jobs that ended before then, a slice of them."""
        cluster = self._cluster

        def effect() -> tuple[JobId, ...]:
            old = {job_id for job_id, entry in cluster.ended.items() if entry.end_ms < before_ms}
            old |= {job_id for job_id, entry in cluster.results.items() if entry.end_ms < before_ms}
            old -= {job_id for job_id, entry in cluster.results.items() if entry.dirty}
            old -= cluster.graphs.keys() | cluster.quarantined.keys()
            removed = tuple(sorted(old)[:SLICE])
            for job_id in removed:
                cluster.ended.pop(job_id, None)
                cluster.results.pop(job_id, None)
                cluster.operations.pop(job_id, None)
                cluster.forget_keys(job_id)
            return removed

        return await self._write("ended.expire", effect)


class MemoryJobOperationStore(_TermStore):
    """Operations of jobs."""

    async def put(self, operations: JobOperations) -> None:
        """Replace what is stored of a job's operations."""
        job_id, payload = operations.job_id, payloads.JOB_OPERATIONS.encode(operations)

        def effect() -> None:
            if job_id not in self._cluster.graphs and job_id not in self._cluster.results:
                raise no_job_for_operations(job_id)
            self._cluster.operations[job_id] = payload

        await self._write("operations.put", effect)

    async def read(self, job_id: JobId) -> JobOperations | None:
        """Return the operations of a job."""
        payload = await self._read("operations.read", lambda: self._cluster.operations.get(job_id))
        return None if payload is None else payloads.JOB_OPERATIONS.decode(payload, f"job {job_id}")

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that have operations."""
        return await self._read("operations.ids", lambda: tuple(self._cluster.operations))


class MemoryClusterRecordStore(_TermStore, Generic[T]):
    """One record of the cluster."""

    def __init__(
        self, cluster: MemoryCluster, token: FencingToken, step: StepHook, name: str, kind: Payload[T]
    ) -> None:
        super().__init__(cluster, token, step)
        self._name: Final = name
        self._kind: Final = kind

    async def record(self, value: T) -> None:
        """Replace what is stored."""
        payload = self._kind.encode(value)

        def effect() -> None:
            self._cluster.cluster_records[self._name] = payload

        await self._write(f"{self._name}.record", effect)

    async def read(self) -> T | None:
        """Return what was recorded last."""
        payload = await self._read(f"{self._name}.read", lambda: self._cluster.cluster_records.get(self._name))
        return None if payload is None else self._kind.decode(payload, "the cluster")


class _Term(_TermStore):
    """The term itself."""

    async def confirm(self) -> None:
        """Check its token."""
        await self._write("confirm_term", lambda: None)


class _AllRecords(_TermStore):
    """Every record at once."""

    async def remove(self) -> None:
        """Remove all of them."""
        await self._write("cleanup", self._cluster.clear)


async def remove_all_records(cluster: MemoryCluster, token: FencingToken, step: StepHook) -> None:
    """Remove the records of all stores at one instant, under the fence of a term."""
    await _AllRecords(cluster, token, step).remove()


class MemoryStores:
    """All stores of one term."""

    def __init__(self, cluster: MemoryCluster, token: FencingToken, step: StepHook) -> None:
        self.graphs: Final = MemoryJobGraphStore(cluster, token, step)
        self.results: Final = MemoryJobResultStore(cluster, token, step)
        self.progress: Final = MemoryJobProgressStore(cluster, token, step)
        self.ended: Final = MemoryEndedJobStore(cluster, token, step)
        self.operations: Final = MemoryJobOperationStore(cluster, token, step)
        self.retention_clock: Final = MemoryClusterRecordStore(
            cluster, token, step, "retention_clock", payloads.RETENTION_READING
        )
        self.access_tokens: Final = MemoryClusterRecordStore(
            cluster, token, step, "access_tokens", payloads.ACCESS_TOKENS
        )
        self.disposals: Final = MemoryClusterRecordStore(
            cluster, token, step, "disposals", payloads.SAVEPOINT_DISPOSALS
        )
        self._term: Final = _Term(cluster, token, step)

    async def confirm_term(self) -> None:
        """Check the token."""
        await self._term.confirm()


class MemoryHaServices:
    """Election and stores of one simulated process, named `holder`."""

    def __init__(self, cluster: MemoryCluster, holder: str, step: StepHook = yielding) -> None:
        self._cluster: Final = cluster
        self._step: Final = step
        self.election: Final = MemoryElection(cluster, holder, step)
        self.leader: Final = MemoryLeaderRegister(cluster, step)
        self.leader_timeout_s: Final = 0.0  # a leader that ends is noticed at once
        self.standstill_limit_s: Final = None
        self.blobs: Final = None
        self.blocking_jobs: Final = None

    def stores(self, token: FencingToken) -> MemoryStores:
        """Return the stores bound to a term."""
        return MemoryStores(self._cluster, token, self._step)

    async def cleanup_all_data(self, token: FencingToken) -> None:
        """Remove every record."""
        await remove_all_records(self._cluster, token, self._step)

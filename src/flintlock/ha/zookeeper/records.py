"""Progress and ended jobs in ZooKeeper, and their expiry."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sized
from itertools import chain
from typing import Final, Generic, TypeVar

from msgspec import Struct

from flintlock.ha import payloads
from flintlock.ha.payloads import Payload
from flintlock.ha.store_rules import SLICE, batched, no_job_for_operations
from flintlock.ha.terms import unless_cancelled
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.jobs import ZooKeeperJobGraphStore, ZooKeeperJobResultStore, key_removal
from flintlock.ha.zookeeper.operations import Check, Create, Delete, Op, SetData
from flintlock.ha.zookeeper.writer import MAX_REMOVALS, Change, Found, Storage, TermStore, for_each
from flintlock.model.access.tokens import AccessTokens
from flintlock.model.commands import JobOperations
from flintlock.model.ids import FencingToken, JobId, RegionId
from flintlock.model.jobs import JobHistory, JobSnapshot, JobSummary, RetentionReading
from flintlock.model.streaming.savepoints import SavepointDisposals
from flintlock.model.tasks import RegionRecord, ResultRows

T = TypeVar("T")

_SHARDS_AT_ONCE: Final = 8  # that expired jobs are looked for in
_FEW: Final = 10_000  # marks that the loop can go through in one step


class ZooKeeperJobProgressStore(TermStore):
    """Records of regions."""

    async def record(self, record: RegionRecord) -> None:
        """Replace the record of one region."""
        job_id, path = record.job_id, self._paths.region(record.job_id, record.region)
        async with self._stored("progress", job_id, payloads.REGION_RECORD.encode(record)) as (file,):
            pointer = tree.REGION.encode(tree.RegionPointer(file=file))
            await self._write(lambda: self._replacement(job_id, path, pointer))

    async def _replacement(self, job_id: JobId, path: str, pointer: bytes) -> Change:
        """Return the change that sets a pointer below a job's progress, which it may have to create."""
        found = await self._find(path, tree.REGION)
        if found is not None:
            return Change((SetData(path, pointer, found.version),), [found.pointer.file] if found.pointer else ())
        parent = self._paths.regions(job_id)
        created = Create(path, pointer)
        return Change((created,) if await self._link.exists(parent) else (Create(parent), created))

    async def record_history(self, history: JobHistory) -> None:
        """Replace what is stored of the job's history."""
        job_id, path = history.job_id, self._paths.history(history.job_id)
        async with self._stored("progress", job_id, payloads.JOB_HISTORY.encode(history)) as (file,):
            pointer = tree.REGION.encode(tree.RegionPointer(file=file))
            await self._write(lambda: self._replacement(job_id, path, pointer))

    async def read_history(self, job_id: JobId) -> JobHistory | None:
        """Return the job's history."""
        path, owner = self._paths.history(job_id), f"job {job_id}"
        return await self._load(path, tree.REGION, lambda found: found.file, payloads.JOB_HISTORY, owner)

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return all records of a job, by region."""
        names = await self._link.children(self._paths.regions(job_id))
        regions = sorted(int(name) for name in names if name != tree.HISTORY_NAME)

        async def read(region: int) -> RegionRecord | None:
            path = self._paths.region(job_id, RegionId(region))
            owner = f"job {job_id}, region {region}"
            return await self._load(path, tree.REGION, lambda found: found.file, payloads.REGION_RECORD, owner)

        return tuple(record for record in await for_each(regions, read) if record is not None)

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that may have records."""
        return tuple(JobId(name) for name in await self._names(self._paths.progress))

    async def remove(self, job_id: JobId) -> None:
        """Remove all records of a job, and its history, in several transactions if there are many."""
        while await self._remove_some(job_id):
            continue

    async def _remove_some(self, job_id: JobId) -> bool:
        """Remove as many records as one transaction can; return whether there are more."""
        parent, more = self._paths.regions(job_id), False

        async def plan() -> Change:
            nonlocal more
            names = sorted(await self._link.children(parent))
            more = len(names) > MAX_REMOVALS
            if not names and not await self._link.exists(parent):
                return Change()
            paths = [f"{parent}/{name}" for name in names[:MAX_REMOVALS]]
            found = await for_each(paths, lambda path: self._find(path, tree.REGION))
            ops: list[Op] = [Delete(path, node.version) for path, node in zip(paths, found, strict=True) if node]
            files = [node.pointer.file for node in found if node and node.pointer]
            return Change(ops if more else [*ops, Delete(parent)], files)

        await self._write(plan)
        return more


class _ExpiryWalk(Struct):
    """How far the expiry of the jobs that ended before some time has come."""

    before_ms: int
    shards: list[str]  # not listed yet
    old: dict[JobId, list[str]] = {}  # of those that were: the jobs that are left to remove, with their marks


class ZooKeeperEndedJobStore(TermStore):
    """Ended jobs: summaries in ZooKeeper, snapshot and rows in files."""

    def __init__(self, storage: Storage, token: FencingToken) -> None:
        super().__init__(storage, token)
        self._walk: _ExpiryWalk | None = None  # written by `expire`

    async def put(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Store an ended job."""
        job_id, end_ms = snapshot.graph.job_id, snapshot.retained_from_ms
        path, mark = self._paths.ended_job(job_id), self._paths.job_end(job_id, end_ms)
        encoded = (payloads.JOB_SNAPSHOT.encode(snapshot), *(payloads.RESULT_ROWS.encode(rows) for rows in results))
        async with self._stored("ended", job_id, *encoded) as (file, *row_files):
            pointer = tree.ENDED.encode(
                tree.EndedPointer(
                    end_ms=end_ms,
                    summary=payloads.JOB_SUMMARY.encode(snapshot.summary()),
                    snapshot=file,
                    rows={rows.name: name for rows, name in zip(results, row_files, strict=True)},
                )
            )

            async def plan() -> Change:
                found = await self._find(path, tree.ENDED)
                marked = await self._link.exists(mark)
                ops: list[Op] = [] if marked else [Create(mark)]
                if found is None:
                    return Change([Create(path, pointer), *ops])
                ops.append(SetData(path, pointer, found.version))
                if found.pointer is None:
                    return Change(ops)
                if found.pointer.end_ms != end_ms:
                    ops.append(Delete(self._paths.job_end(job_id, found.pointer.end_ms)))
                return Change(ops, found.pointer.files)

            await self._write(plan)

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job."""
        path = self._paths.ended_job(job_id)
        return await self._load(path, tree.ENDED, lambda found: found.snapshot, payloads.JOB_SNAPSHOT, f"job {job_id}")

    async def result(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return the rows of a result."""
        path, owner = self._paths.ended_job(job_id), f"job {job_id}, result {name!r}"
        return await self._load(path, tree.ENDED, lambda found: found.rows.get(name), payloads.RESULT_ROWS, owner)

    async def summaries(self) -> AsyncGenerator[tuple[JobSummary, ...]]:
        """Yield the summaries: the marks of their ends have the order, the znodes are read slice by slice."""
        marks = await self._names(self._paths.ends)
        ids = await _in_thread_if_many(marks, lambda: _latest_first(marks))
        for some in batched(ids, SLICE):
            nodes = await for_each(some, lambda job_id: self._link.get(self._paths.ended_job(job_id)))
            summaries: list[JobSummary] = []
            for job_id, node in zip(some, nodes, strict=True):
                pointer = tree.ENDED.readable([(job_id, node.data)]) if node else ()
                summaries += payloads.JOB_SUMMARY.readable((job_id, each.summary) for each in pointer)
            yield tuple(summaries)

    async def expire(self, before_ms: int) -> tuple[JobId, ...]:
        """Remove jobs that ended before then, each in a transaction of its own.

        Calls with the same time are one walk: it lists each shard once, however many calls it takes.
        """
        walk = self._walk
        if walk is None or walk.before_ms != before_ms:
            walk = self._walk = _ExpiryWalk(before_ms, sorted(await self._link.children(self._paths.ends)))
        removed: list[JobId] = []
        while len(removed) < SLICE and (walk.old or walk.shards):
            if not walk.old:
                part = walk.shards[:_SHARDS_AT_ONCE]
                for found in await for_each(part, lambda shard: self._old_in_shard(shard, before_ms)):
                    walk.old |= found
                del walk.shards[: len(part)]
                continue
            job_id, marks = next(iter(walk.old.items()))
            if await self._remove(job_id, [f"{self._paths.ends}/{name[:2]}/{name}" for name in marks], before_ms):
                removed.append(job_id)
            del walk.old[job_id]
        if not removed:
            self._walk = None
            await self._write(_nothing)  # a leader that was superseded is Fenced here too
        return tuple(removed)

    async def _old_in_shard(self, shard: str, before_ms: int) -> dict[JobId, list[str]]:
        """Return the marks of the jobs of a shard that ended before then, and for good."""
        paths = self._paths
        names, *kept = await unless_cancelled(
            asyncio.gather(
                *(
                    self._link.children(f"{parent}/{shard}")
                    for parent in (paths.ends, paths.dirty, paths.graphs, paths.quarantine)
                )
            )
        )
        marks = await _in_thread_if_many(names, lambda: _old_marks(names, before_ms))
        for job_id in chain.from_iterable(kept):
            marks.pop(JobId(job_id), None)
        return marks

    async def _remove(self, job_id: JobId, marks: list[str], before_ms: int) -> bool:
        """Remove one job, unless it has not ended for good, or is not old after all; return whether it was removed."""
        paths = self._paths
        removed = True

        async def plan() -> Change:
            nonlocal removed
            dirty, graph, ended, result, quarantined = await unless_cancelled(
                asyncio.gather(
                    self._link.exists(paths.dirty_mark(job_id)),
                    self._link.exists(paths.graph(job_id)),
                    self._find(paths.ended_job(job_id), tree.ENDED),
                    self._find(paths.result(job_id), tree.RESULT),
                    self._link.exists(paths.quarantined_graph(job_id)),
                )
            )
            kept = dirty or graph or quarantined
            removed = not kept and (_is_old(ended, before_ms) or _is_old(result, before_ms))
            if not removed:
                return Change()
            existing = {paths.ended_job(job_id): ended, paths.result(job_id): result}
            ops: list[Op] = [
                *tree.absent(paths.dirty_mark(job_id)),
                *tree.absent(paths.graph(job_id)),
                *tree.absent(paths.quarantined_graph(job_id)),
            ]
            ops += [Delete(path, found.version) for path, found in existing.items() if found is not None]
            ops += await key_removal(self, job_id)
            operations = await self._link.get(paths.job_operations(job_id))
            ops += [Delete(paths.job_operations(job_id), operations.version)] if operations else []
            ops += [Delete(mark) for mark in marks if await self._link.exists(mark)]
            files = [*ended.pointer.files] if ended and ended.pointer else []
            files += [result.pointer.file] if result and result.pointer else []
            return Change(ops, [file for file in files if file])

        await self._write(plan)
        return removed


class ZooKeeperJobOperationStore(TermStore):
    """Operations of jobs: small records, in ZooKeeper itself."""

    async def put(self, operations: JobOperations) -> None:
        """Replace what is stored of a job's operations."""
        job_id, paths, data = operations.job_id, self._paths, payloads.JOB_OPERATIONS.encode(operations)
        path = paths.job_operations(job_id)

        async def plan() -> Change:
            graph, result, node = await unless_cancelled(
                asyncio.gather(
                    self._link.exists(paths.graph(job_id)),
                    self._link.exists(paths.result(job_id)),
                    self._link.get(path),
                )
            )
            if not graph and not result:
                raise no_job_for_operations(job_id)
            stored = Check(paths.result(job_id) if result else paths.graph(job_id))
            return Change((stored, Create(path, data) if node is None else SetData(path, data, node.version)))

        await self._write(plan)

    async def read(self, job_id: JobId) -> JobOperations | None:
        """Return the operations of a job."""
        node = await self._link.get(self._paths.job_operations(job_id))
        return None if node is None else payloads.JOB_OPERATIONS.decode(node.data, f"job {job_id}")

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that have operations."""
        return tuple(JobId(name) for name in await self._names(self._paths.operations))


class ZooKeeperClusterRecordStore(TermStore, Generic[T]):
    """One record of the cluster: one znode."""

    def __init__(self, storage: Storage, token: FencingToken, path: str, kind: Payload[T]) -> None:
        super().__init__(storage, token)
        self._path: Final = path
        self._kind: Final = kind

    async def record(self, value: T) -> None:
        """Replace what is stored."""
        data = self._kind.encode(value)

        async def plan() -> Change:
            node = await self._link.get(self._path)
            return Change((Create(self._path, data) if node is None else SetData(self._path, data, node.version),))

        await self._write(plan)

    async def read(self) -> T | None:
        """Return what was recorded last."""
        node = await self._link.get(self._path)
        return None if node is None else self._kind.decode(node.data, "the cluster")


async def _in_thread_if_many(marks: Sized, work: Callable[[], T]) -> T:
    """Return the result of work on marks: they are as many as there are ended jobs."""
    return work() if len(marks) <= _FEW else await asyncio.to_thread(work)


def _old_marks(marks: Iterable[str], before_ms: int) -> dict[JobId, list[str]]:
    """Return the jobs with an end before then, in the order of their ids, each with all its marks."""
    found: defaultdict[JobId, list[str]] = defaultdict(list)
    old: set[JobId] = set()
    for mark in marks:
        job_id, end_ms = tree.end_of(mark)
        found[job_id].append(mark)
        if end_ms < before_ms:
            old.add(job_id)
    return {job_id: found[job_id] for job_id in sorted(old)}


def _latest_first(marks: Iterable[str]) -> list[JobId]:
    """Return the jobs that have a mark of their end, the latest end first."""
    ends = ((*tree.end_of(mark), mark) for mark in marks)
    jobs = ((end_ms, job_id) for job_id, end_ms, mark in ends if mark.endswith(tree.JOB_END))
    return [*dict.fromkeys(job_id for _, job_id in sorted(jobs, reverse=True))]


async def _nothing() -> Change:
    return Change()


def _is_old(found: Found[tree.EndedPointer] | Found[tree.ResultPointer] | None, before_ms: int) -> bool:
    """Return whether an entry has expired; of one that cannot be read only its mark is known, and that was old."""
    return found is not None and (found.pointer is None or found.pointer.end_ms < before_ms)


class ZooKeeperStores:
    """All stores of one term."""

    def __init__(self, storage: Storage, token: FencingToken) -> None:
        self.graphs: ZooKeeperJobGraphStore = ZooKeeperJobGraphStore(storage, token)
        self.results: ZooKeeperJobResultStore = ZooKeeperJobResultStore(storage, token)
        self.progress: ZooKeeperJobProgressStore = ZooKeeperJobProgressStore(storage, token)
        self.ended: ZooKeeperEndedJobStore = ZooKeeperEndedJobStore(storage, token)
        self.operations: ZooKeeperJobOperationStore = ZooKeeperJobOperationStore(storage, token)
        self.retention_clock: ZooKeeperClusterRecordStore[RetentionReading] = ZooKeeperClusterRecordStore(
            storage, token, storage.paths.retention_clock, payloads.RETENTION_READING
        )
        self.access_tokens: ZooKeeperClusterRecordStore[AccessTokens] = ZooKeeperClusterRecordStore(
            storage, token, storage.paths.access_tokens, payloads.ACCESS_TOKENS
        )
        self.disposals: ZooKeeperClusterRecordStore[SavepointDisposals] = ZooKeeperClusterRecordStore(
            storage, token, storage.paths.disposals, payloads.SAVEPOINT_DISPOSALS
        )
        self._writer: Final = storage.writer
        self._token: Final = token

    async def confirm_term(self) -> None:
        """Have a quorum check the epoch."""
        await self._writer.attempt(self._token, ())

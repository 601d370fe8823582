"""Graphs, idempotency keys and results in ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from flintlock.ha import payloads
from flintlock.ha.protocols import KnownKey, Quarantined
from flintlock.ha.store_rules import duplicate_job, key_reused, not_quarantined, still_cleaned_up
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.operations import Check, Create, Delete, Op, RefusalReason, SetData
from flintlock.ha.zookeeper.writer import Change, TermStore, for_each
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobResult, StoredJob

log = structlog.get_logger(__name__)

_MAX_REASON: Final = 10_000  # characters of the reason for a quarantine: the pointer has to fit into a znode


class ZooKeeperJobGraphStore(TermStore):
    """Graphs, quarantined ones included, and idempotency keys."""

    async def put(self, job: StoredJob) -> None:
        """Add a job with its key."""
        job_id, paths = job.graph.job_id, self._paths
        async with self._stored("graphs", job_id, payloads.STORED_JOB.encode(job)) as (file,):
            pointer = Create(paths.graph(job_id), tree.GRAPH.encode(tree.GraphPointer(file=file)))
            keys = _new_key(paths, job)
            while True:
                ops = (
                    *tree.absent(paths.result(job_id)),
                    *tree.absent(paths.quarantined_graph(job_id)),
                    pointer,
                    *keys,
                )
                refusal = await self._writer.attempt(self._token, ops)
                if refusal is None:
                    return
                if refusal.op in keys:
                    keys = await self._known_key(job)
                elif refusal.reason is RefusalReason.NODE_EXISTS:
                    raise duplicate_job(job_id, ended=refusal.op.path == paths.result(job_id))
                else:
                    raise Unavailable(f"job {job_id} could not be stored: {refusal.reason.name} at {refusal.op.path}")

    async def replace(self, job: StoredJob) -> None:
        """Replace a stored job."""
        job_id, path = job.graph.job_id, self._paths.graph(job.graph.job_id)
        async with self._stored("graphs", job_id, payloads.STORED_JOB.encode(job)) as (file,):

            async def plan() -> Change:
                found = await self._find(path, tree.GRAPH)
                if found is None:
                    raise NotFound(f"no graph is stored for job {job_id}")
                fresh = tree.GRAPH.encode(tree.GraphPointer(file=file))
                return Change((SetData(path, fresh, found.version),), [found.pointer.file] if found.pointer else ())

            await self._write(plan)

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all stored graphs."""
        return tuple(JobId(name) for name in await self._names(self._paths.graphs))

    async def recover(self, job_id: JobId) -> StoredJob:
        """Return a stored job."""
        found = await self._load(
            self._paths.graph(job_id), tree.GRAPH, lambda pointer: pointer.file, payloads.STORED_JOB, f"job {job_id}"
        )
        if found is None:
            raise NotFound(f"no graph is stored for job {job_id}")
        return found

    async def remove(self, job_id: JobId) -> None:
        """Remove a graph, and its key if it has no result."""
        path, result = self._paths.graph(job_id), self._paths.result(job_id)

        async def plan() -> Change:
            found = await self._find(path, tree.GRAPH)
            ops: list[Op] = [] if found is None else [Delete(path, found.version)]
            if await self._link.exists(result):
                ops.append(Check(result))
            else:
                ops += [*tree.absent(result), *await key_removal(self, job_id)]
            return Change(ops, [found.pointer.file] if found and found.pointer else ())

        await self._write(plan)

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Quarantine a graph. Its file stays where it is: another pointer names it now."""
        path, quarantined = self._paths.graph(job_id), self._paths.quarantined_graph(job_id)

        async def plan() -> Change:
            found = await self._find(path, tree.GRAPH)
            if found is None:
                return Change()
            file = found.pointer.file if found.pointer else ""  # an unreadable pointer names no file
            if await self._link.exists(quarantined):
                return Change((Delete(path, found.version), Check(quarantined)), [file] if file else ())
            record = tree.QUARANTINE.encode(tree.QuarantinePointer(file=file, reason=reason[:_MAX_REASON]))
            return Change((Delete(path, found.version), Create(quarantined, record)))

        await self._write(plan)

    async def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the quarantined graphs."""

        async def read(name: str) -> Quarantined | None:
            job_id = JobId(name)
            found = await self._find(self._paths.quarantined_graph(job_id), tree.QUARANTINE)
            if found is None:
                return None
            reason = found.pointer.reason if found.pointer else "the reason for the quarantine cannot be read any more"
            return Quarantined(job_id=job_id, reason=reason)

        return tuple(found for found in await for_each(await self._names(self._paths.quarantine), read) if found)

    async def read_quarantined(self, job_id: JobId) -> StoredJob:
        """Return a quarantined job."""
        path = self._paths.quarantined_graph(job_id)
        found = await self._load(
            path, tree.QUARANTINE, lambda each: each.file or None, payloads.STORED_JOB, f"job {job_id}"
        )
        if found is not None:
            return found
        if await self._link.exists(path):
            raise Corrupt(f"the pointer to the graph of job {job_id} could not be read when it was quarantined")
        raise not_quarantined(job_id)

    async def restore(self, job_id: JobId) -> None:
        """Take a graph out of quarantine. Its file stays where it is."""
        paths = self._paths

        async def plan() -> Change:
            if await self._link.exists(paths.graph(job_id)):
                return Change((Check(paths.graph(job_id)),))
            found = await self._find(paths.quarantined_graph(job_id), tree.QUARANTINE)
            if found is None:
                raise not_quarantined(job_id)
            if await self._link.exists(paths.dirty_mark(job_id)):
                raise still_cleaned_up(job_id)
            result = await self._find(paths.result(job_id), tree.RESULT)
            ended = await self._find(paths.ended_job(job_id), tree.ENDED)
            operations = await self._link.get(paths.job_operations(job_id))
            graph = tree.GRAPH.encode(tree.GraphPointer(file=found.pointer.file if found.pointer else ""))
            ops: list[Op] = [
                *tree.absent(paths.dirty_mark(job_id)),
                Delete(paths.quarantined_graph(job_id), found.version),
                Create(paths.graph(job_id), graph),
            ]
            ops += [Delete(paths.result(job_id), result.version)] if result else []
            ops += [Delete(paths.ended_job(job_id), ended.version)] if ended else []
            ops += [Delete(paths.job_operations(job_id), operations.version)] if operations else []
            marks = [paths.result_end(job_id, result.pointer.end_ms)] if result and result.pointer else []
            marks += [paths.job_end(job_id, ended.pointer.end_ms)] if ended and ended.pointer else []
            ops += [Delete(mark) for mark in marks if await self._link.exists(mark)]
            files = [result.pointer.file] if result and result.pointer else []
            return Change(ops, [*files, *(ended.pointer.files if ended and ended.pointer else ())])

        await self._write(plan)

    async def discard_quarantined(self, result: JobResult) -> None:
        """Remove a quarantined graph; a dirty result takes its place."""
        job_id, paths = result.job_id, self._paths
        path, mark = paths.result(job_id), paths.result_end(job_id, result.retained_from_ms)
        async with self._stored("results", job_id, payloads.JOB_RESULT.encode(result)) as (file,):
            pointer = tree.RESULT.encode(tree.ResultPointer(file=file, end_ms=result.retained_from_ms))

            async def plan() -> Change:
                found = await self._find(paths.quarantined_graph(job_id), tree.QUARANTINE)
                if found is None:
                    return Change((), [file])
                before = await self._find(path, tree.RESULT)
                ops: list[Op] = [
                    Delete(paths.quarantined_graph(job_id), found.version),
                    Create(path, pointer) if before is None else SetData(path, pointer, before.version),
                ]
                if not await self._link.exists(paths.dirty_mark(job_id)):
                    ops.append(Create(paths.dirty_mark(job_id)))
                if not await self._link.exists(mark):
                    ops.append(Create(mark))
                old = before.pointer if before is not None else None
                if old is not None and old.end_ms != result.retained_from_ms:
                    ops.append(Delete(paths.result_end(job_id, old.end_ms)))
                unlinked = [found.pointer.file if found.pointer else "", old.file if old is not None else ""]
                return Change(ops, [each for each in unlinked if each])

            await self._write(plan)

    async def key(self, key: str) -> KnownKey | None:
        """Return the job of a key."""
        node = await self._link.get(self._paths.key(tree.key_digest(key)))
        if node is None:
            return None
        record = tree.KEY.decode(node.data, f"the idempotency key {key!r}")
        return KnownKey(job_id=record.job_id, digest=record.digest)

    async def _known_key(self, job: StoredJob) -> tuple[Op, ...]:
        """Return operations for a key, or a job's key, that exists already. Raises KeyReused, Corrupt."""
        key, job_id = job.idempotency_key, job.graph.job_id
        if key is None:
            return ()
        known = await self.key(key)
        if known is not None and known.job_id != job_id:
            raise key_reused(key, known.job_id)
        # What is left of the job's former keys is removed in the same transaction, before the new one is created.
        old, path = await key_removal(self, job_id), self._paths.key(tree.key_digest(key))
        if known is not None and Delete(path) not in old:
            old = (*old, Delete(path))
        return (*old, *_new_key(self._paths, job))


class ZooKeeperJobResultStore(TermStore):
    """Results, dirty and clean."""

    async def create_dirty(self, result: JobResult) -> None:
        """Add a dirty entry."""
        job_id, paths = result.job_id, self._paths
        async with self._stored("results", job_id, payloads.JOB_RESULT.encode(result)) as (file,):
            pointer = tree.RESULT.encode(tree.ResultPointer(file=file, end_ms=result.retained_from_ms))
            ops = (
                Create(paths.result(job_id), pointer),
                Create(paths.dirty_mark(job_id)),
                Create(paths.result_end(job_id, result.retained_from_ms)),
            )
            refusal = await self._writer.attempt(self._token, ops)
            if refusal is not None:
                raise InvariantBroken(f"job {job_id} has a result already")

    async def mark_clean(self, job_id: JobId) -> None:
        """Record that cleanup is done."""
        result, dirty = self._paths.result(job_id), self._paths.dirty_mark(job_id)

        async def plan() -> Change:
            if not await self._link.exists(result):
                raise NotFound(f"job {job_id} has no result to mark as clean")
            return Change((Delete(dirty),) if await self._link.exists(dirty) else (Check(result), *tree.absent(dirty)))

        await self._write(plan)

    async def get(self, job_id: JobId) -> JobResult | None:
        """Return the job's entry."""
        return await self._load(
            self._paths.result(job_id), tree.RESULT, lambda pointer: pointer.file, payloads.JOB_RESULT, f"job {job_id}"
        )

    async def dirty(self) -> tuple[JobResult, ...]:
        """Return all dirty entries that can be read."""

        async def read(name: str) -> JobResult | None:
            try:
                return await self.get(JobId(name))
            except Corrupt as error:
                log.warning(log_events.RECORD_UNREADABLE, job_id=name, reason=error.public)
                return None

        return tuple(result for result in await for_each(await self._names(self._paths.dirty), read) if result)

    async def known(self, job_ids: Collection[JobId]) -> frozenset[JobId]:
        """Return those of the ids that have an entry."""
        wanted = tuple(job_ids)
        exist = await for_each(wanted, lambda job_id: self._link.exists(self._paths.result(job_id)))
        return frozenset(job_id for job_id, found in zip(wanted, exist, strict=True) if found)


async def key_removal(store: TermStore, job_id: JobId) -> tuple[Op, ...]:
    """Return operations that remove the key of a job, if it has one."""
    link, paths = store._link, store._paths  # pyright: ignore[reportPrivateUsage]  # a part of the stores
    node = await link.get(paths.job_key(job_id))
    if node is None:
        return ()
    own, key = Delete(paths.job_key(job_id), node.version), paths.key(node.data.decode("ascii", "replace"))
    return (own, Delete(key)) if await link.exists(key) else (own,)


def _new_key(paths: tree.Tree, job: StoredJob) -> tuple[Op, ...]:
    key, job_id = job.idempotency_key, job.graph.job_id
    if key is None:
        return ()
    digest = tree.key_digest(key)
    record = tree.KEY.encode(tree.KeyRecord(key=key, job_id=job_id, digest=job.digest))
    return Create(paths.key(digest), record), Create(paths.job_key(job_id), digest.encode())

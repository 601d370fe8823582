"""Removing all data of a cluster that has ended for good.

Pointers go first, in fenced transactions; then their payloads, which nothing names any more. Of the pointers, those to
graphs go first: a leader that takes over from a half-finished removal must not find a graph without its result, for it
would run that job again. The epoch, the latches, the marker of the storage directory and the empty shards stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.operations import Delete
from flintlock.ha.zookeeper.writer import MAX_REMOVALS, Change, TermStore
from flintlock.model.ids import Epoch, JobId


class Cleaner(TermStore):
    """Removes what the stores of a term may hold."""

    async def remove_all(self) -> None:
        """Remove pointers, then payloads. Raises Fenced, Unavailable."""
        paths = self._paths
        await self._remove(paths.graphs)
        await self._remove(paths.quarantine)
        for job_id in map(JobId, await self._names(paths.progress)):
            regions = [f"{paths.regions(job_id)}/{name}" for name in await self._link.children(paths.regions(job_id))]
            await self._delete([*regions, paths.regions(job_id)])
        for records in (
            paths.operations,
            paths.keys,
            paths.job_keys,
            paths.dirty,
            paths.results,
            paths.ends,
            paths.ended,
            paths.blobs,
        ):
            await self._remove(records)
        await self._delete([f"{paths.blocking_jobs}/{name}" for name in await self._link.children(paths.blocking_jobs)])
        await self._delete([paths.retention_clock, paths.access_tokens, paths.disposals])
        await self._files.sweep(Epoch(self._token.epoch + 1), set(), set())

    async def _remove(self, records: str) -> None:
        await self._delete([tree.sharded(records, name) for name in await self._names(records)])

    async def _delete(self, records: Sequence[str]) -> None:
        for start in range(0, len(records), MAX_REMOVALS):
            await self._delete_batch(records[start : start + MAX_REMOVALS])

    async def _delete_batch(self, records: Sequence[str]) -> None:
        async def plan() -> Change:
            return Change(tuple([Delete(path) for path in records if await self._link.exists(path)]))

        await self._write(plan)

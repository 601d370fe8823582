"""Payloads without a pointer: found and removed once in each term, some time after recovery.

A leader that dies between a payload and its pointer, or between the removal of a pointer and of its file, leaves a file
behind; so does a write whose answer was lost and that never took place. They are harmless, but accumulate.

Which may be removed follows from the names (`payload_files`): files of epochs before this term's that no pointer names.
Files of a job, or a blob, one of whose pointers cannot be read stay: they are what is left of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from flintlock.ha.payloads import Payload
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.writer import Storage, TermStore, for_each
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import FencingToken, JobId

log = structlog.get_logger(__name__)

P = TypeVar("P")

#: The delay from the beginning of a term. Until then recovery has the ensemble and the disks for itself.
SWEEP_AFTER_S: Final = 300.0


async def sweep_later(storage: Storage, token: FencingToken, after_s: float = SWEEP_AFTER_S) -> None:
    """Wait, then sweep. An error is logged: the next term retries."""
    await asyncio.sleep(after_s)
    try:
        removed = await Sweeper(storage, token).sweep()
        log.info(log_events.PAYLOADS_SWEPT, epoch=token.epoch, removed=removed)
    except FlintlockError as error:
        log.warning(log_events.PAYLOAD_SWEEP_FAILED, epoch=token.epoch, reason=error.public)


class Sweeper(TermStore):
    """Reads every pointer of the cluster."""

    async def sweep(self) -> int:
        """Remove what older epochs left behind. Returns how many files. Raises Unavailable."""
        paths, excluded = self._paths, set[str]()
        used: set[str] = set()
        # Graphs before quarantined ones: a pointer that moves from the one to the other meanwhile is found in either.
        used |= await self._used(paths.graphs, tree.GRAPH, lambda found: [found.file], excluded)
        used |= await self._used(paths.quarantine, tree.QUARANTINE, lambda found: [found.file], excluded)
        used |= await self._used(paths.results, tree.RESULT, lambda found: [found.file], excluded)
        used |= await self._used(paths.ended, tree.ENDED, lambda found: [*found.files], excluded)
        used |= await self._used(paths.blobs, tree.BLOB, lambda found: [found.file], excluded)
        for name in await self._names(paths.progress):
            job_id = JobId(name)
            names = await self._link.children(paths.regions(job_id))
            for found in await for_each(
                [f"{paths.regions(job_id)}/{name}" for name in names], lambda path: self._find(path, tree.REGION)
            ):
                if found is not None and found.pointer is None:
                    excluded.add(job_id)
                elif found is not None and found.pointer is not None:
                    used.add(found.pointer.file)
        return await self._files.sweep(self._token.epoch, used, excluded)

    async def _used(
        self,
        parent: str,
        kind: Payload[P],
        files: Callable[[P], list[str]],
        excluded: set[str],
    ) -> set[str]:
        """Return the files that the pointers of one tree name; adds the owners of unreadable ones to `excluded`."""
        owners = await self._names(parent)
        pointers = await for_each(owners, lambda owner: self._find(tree.sharded(parent, owner), kind))
        used: set[str] = set()
        for owner, found in zip(owners, pointers, strict=True):
            if found is not None and found.pointer is None:
                excluded.add(owner)
            elif found is not None and found.pointer is not None:
                used.update(files(found.pointer))
        return used

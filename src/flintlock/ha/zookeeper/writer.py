"""Fenced transactions, and what all stores in ZooKeeper are made from.

Each write is one transaction whose first operation checks the version of the epoch's znode: any newer term has changed
it, so a write of an older one fails as a whole, at the ensemble, whatever its sender assumes. A token that is newer
than the stored one is adopted by setting the znode in that same place.

Every other precondition is an operation of the same transaction too (a version, a znode that must or must not exist),
so that nothing depends on what was read before. A transaction that finds another state is planned again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar

from msgspec import Struct

from flintlock.ha.payloads import Payload
from flintlock.ha.store_rules import batched, fence
from flintlock.ha.terms import unless_cancelled
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.ha.zookeeper.operations import Check, Create, Op, Refusal, RefusalReason, SetData, check_size
from flintlock.ha.zookeeper.storage.payload_files import PayloadFiles, PayloadGone, PayloadUnreadable
from flintlock.model.errors import Corrupt, FlintlockError, Unavailable
from flintlock.model.ids import FencingToken, JobId

T = TypeVar("T")
P = TypeVar("P")

#: How often a write is planned before it is given up as Unavailable.
MAX_ATTEMPTS: Final = 50

#: How many znodes are read at once where there may be very many.
BATCH: Final = 200

#: How many znodes one transaction removes at most: a path has some 150 bytes, so far fewer than MAX_TRANSACTION_BYTES.
MAX_REMOVALS: Final = 500


class Found(Struct, Generic[P], frozen=True):
    """A pointer and its version; `pointer` is None if it cannot be read."""

    pointer: P | None
    version: int


class Change(Struct, frozen=True):
    """What a write does: operations, and the files that nothing points to once they are done."""

    ops: Sequence[Op] = ()
    unlinked: Collection[str] = ()


class FencedWriter:
    """Transactions under a token. One for each process."""

    def __init__(self, link: ZooKeeperLink, paths: tree.Tree, guard: Callable[[FencingToken], None]) -> None:
        self._link: Final = link
        self._paths: Final = paths
        self._guard: Final = guard
        self._epoch: tuple[tree.EpochRecord, int] | None = None  # as last read; None when it has changed
        self._sharded: Final[set[str]] = set()  # trees whose shards are known to exist: they are never removed

    async def attempt(self, token: FencingToken, ops: Sequence[Op]) -> Refusal | None:
        """Do all of it or nothing; return which operation was refused. Raises Fenced, with nothing done; Unavailable.

        The guard is called right before sending: a leader that has stepped down by its own clock sends nothing. Raises
        TooLarge for what the ensemble would not accept: it would end the connection, with everything else under way.
        """
        check_size(ops)
        while True:
            self._guard(token)
            fencing = await self._fence(token)
            self._guard(token)
            refusal = await self._link.transact([fencing, *ops])
            if refusal is None:
                if isinstance(fencing, SetData):
                    self._epoch = None
                return None
            if refusal.op is fencing:
                self._epoch = None
            elif not await self._make_shards(refusal):
                return refusal

    async def _fence(self, token: FencingToken) -> Check | SetData:
        if self._epoch is None:
            self._epoch = await read_epoch(self._link, self._paths)
        record, version = self._epoch
        try:
            adopted = fence(record.token, token)
        except FlintlockError:
            self._epoch = None
            raise
        if adopted == record.token:
            return Check(self._paths.epoch, version)
        fresh = tree.EpochRecord(epoch=token.epoch, session=token.session)
        return SetData(self._paths.epoch, tree.EPOCH.encode(fresh), version)

    async def _make_shards(self, refusal: Refusal) -> bool:
        """Create the shards that a new znode lacked, those of a whole tree. Empty ones need no fence."""
        if refusal.reason is not RefusalReason.NO_NODE or not isinstance(refusal.op, Create):
            return False
        parent = self._paths.tree_of(refusal.op.path)
        if parent in self._sharded:
            return False
        await self._link.ensure(parent)
        while missing := sorted(tree.SHARDS - set(await self._link.children(parent))):
            await self._link.transact([Create(f"{parent}/{shard}") for shard in missing])
        self._sharded.add(parent)
        return True


async def read_epoch(link: ZooKeeperLink, paths: tree.Tree) -> tuple[tree.EpochRecord, int]:
    """Return the record of the current or last term, and its version. Raises Unavailable, Corrupt."""
    node = await link.get(paths.epoch)
    if node is None:
        raise Corrupt(f"{paths.epoch} does not exist: the cluster's data was removed from ZooKeeper")
    return tree.EPOCH.decode(node.data, "the cluster"), node.version


class Storage(Struct, frozen=True, eq=False):
    """What the stores of one process work on."""

    link: ZooKeeperLink
    paths: tree.Tree
    files: PayloadFiles
    writer: FencedWriter


class TermStore:
    """What the stores share: writes under one token, reads without."""

    def __init__(self, storage: Storage, token: FencingToken) -> None:
        self._link: Final = storage.link
        self._paths: Final = storage.paths
        self._files: Final = storage.files
        self._writer: Final = storage.writer
        self._token: Final = token

    async def _write(self, plan: Callable[[], Awaitable[Change]]) -> None:
        """Plan and try until the plan matches the state. Raises what `plan` raises, Fenced, Unavailable."""
        for _ in range(MAX_ATTEMPTS):
            change = await plan()
            if await self._writer.attempt(self._token, change.ops) is None:
                await self._files.discard(change.unlinked)
                return
        raise Unavailable("the store has changed again and again during a write")

    @asynccontextmanager
    async def _stored(self, kind: str, job_id: JobId, *payloads: bytes) -> AsyncGenerator[tuple[str, ...]]:
        """Store payloads; yields their names, for pointers."""
        epoch = self._token.epoch
        writing = asyncio.gather(*(self._files.write(kind, job_id, epoch, each) for each in payloads))
        names = tuple(await unless_cancelled(writing))
        async with self._pointed(names):
            yield names

    @asynccontextmanager
    async def _pointed(self, names: Collection[str]) -> AsyncGenerator[None]:
        """Write pointers to payloads within; if it is certain that none was written, the payloads are removed."""
        try:
            yield
        except Unavailable:
            raise  # the pointer may exist, or be written later: an ambiguous error never discards a payload
        except FlintlockError:
            await self._files.discard(names)
            raise

    async def _find(self, path: str, kind: Payload[P]) -> Found[P] | None:
        """Return a pointer for a write, readable or not; None if it does not exist."""
        node = await self._link.get(path)
        if node is None:
            return None
        with suppress(Corrupt):
            return Found(kind.decode(node.data, path), node.version)
        return Found(None, node.version)

    async def _load(
        self, path: str, kind: Payload[P], file: Callable[[P], str | None], payload: Payload[T], owner: str
    ) -> T | None:
        """Return the payload behind a pointer; None if there is no pointer, or it names no file. Raises Corrupt."""
        seen: int | None = None
        while True:
            node = await self._link.get(path)
            if node is None:
                return None
            name = file(kind.decode(node.data, owner))
            if name is None:
                return None
            try:
                return payload.decode(await self._files.read(name), owner)
            except PayloadGone:
                if node.version == seen:
                    raise Corrupt(f"the payload of {owner} is gone: {name}") from None
                seen = node.version  # it may have been replaced meanwhile: read once more
            except PayloadUnreadable as error:
                raise Corrupt(f"the payload of {owner} cannot be read: {error}") from error

    async def _names(self, parent: str) -> list[str]:
        """Return the names in all shards of a tree, sorted."""
        return await names_below(self._link, parent)


async def names_below(link: ZooKeeperLink, parent: str) -> list[str]:
    """Return the names in all shards of a tree, sorted. Raises Unavailable."""

    async def names(shard: str) -> list[str]:
        return sorted(await link.children(f"{parent}/{shard}"))  # one shard in one step of the loop

    found: list[str] = []
    for shards in batched(sorted(await link.children(parent)), BATCH):
        for some in await for_each(shards, names):
            found += some  # a shard's name begins all names in it
    return found


async def for_each(items: Iterable[P], ask: Callable[[P], Awaitable[T]]) -> list[T]:
    """Call `ask` for each item, BATCH at a time; the answers are in the order of the items."""
    pending = list(items)
    answers: list[T] = []
    for start in range(0, len(pending), BATCH):
        answers += await unless_cancelled(asyncio.gather(*(ask(item) for item in pending[start : start + BATCH])))
    return answers

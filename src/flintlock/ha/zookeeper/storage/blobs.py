"""Copies of blobs: files under the storage directory, each with a pointer in ZooKeeper under the hash of its content.

A pointer is written and removed by fenced transactions, its file is written before and removed after it. So whatever a
leader was about to do when it was superseded, a copy that the next one sees stays: the old one's removal is refused,
and its own files have names that no other process uses. What it leaves behind without a pointer is swept (`sweep`).

One pointer for a blob, not one for each upload: which jobs refer to it is known from the stored graphs, and an upload
of a blob whose copy its leader has not read yet replaces that copy, as a damaged one has to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.gateways.blobs import BlobChunk, BlobRange
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.operations import Create, Delete, SetData
from flintlock.ha.zookeeper.storage.payload_files import PayloadGone, PayloadUnreadable
from flintlock.ha.zookeeper.writer import Change, Storage, TermStore, for_each, names_below
from flintlock.model.errors import Corrupt, FlintlockError, NotFound, Unavailable
from flintlock.model.ids import BlobKey, FencingToken, is_blob_key

_PREFIX: Final = "sha256-"


class ZooKeeperBlobCopies:
    """BlobCopies of one process. `leading` returns the token of the term that it leads, if it leads."""

    def __init__(self, storage: Storage, leading: Callable[[], FencingToken | None]) -> None:
        self._link: Final = storage.link
        self._paths: Final = storage.paths
        self._files: Final = storage.files
        self._storage: Final = storage
        self._leading: Final = leading

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a copy."""
        key, seen = message.key, -1
        path = self._paths.blob(_digest(key))
        while True:
            node = await self._link.get(path)
            if node is None:
                raise NotFound(f"no blob {key} is stored in this cluster")
            pointer = tree.BLOB.decode(node.data, f"blob {key}")
            start, end = message.offset, min(message.offset + message.limit, pointer.size)
            if start >= end:
                return BlobChunk(data=b"", size=pointer.size)
            try:
                data = await self._files.read(pointer.file, start, end)
            except PayloadGone:
                if node.version == seen:
                    raise Corrupt(f"the copy of blob {key} is gone: {pointer.file}") from None
                seen = node.version  # it may have been replaced meanwhile: read once more
            except PayloadUnreadable as error:
                raise Corrupt(f"the copy of blob {key} cannot be read: {error}") from error
            else:
                return BlobChunk(data=data, size=pointer.size)

    async def has(self, key: BlobKey) -> bool:
        """Return whether there is a copy; a pointer that cannot be read is none."""
        return await self._pointer(_digest(key)) is not None

    async def put(self, key: BlobKey, source: Path, *, size: int, stored_s: float) -> None:
        """Copy a file and point to the copy."""
        await self._term().put(_digest(key), source, size, int(stored_s * 1000))

    async def remove(self, key: BlobKey) -> None:
        """Remove a pointer, then its file."""
        await self._term().remove(_digest(key))

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> tuple[BlobKey, ...]:
        """Return old blobs without a reference. A pointer that cannot be read has no age and stays."""
        keys = [BlobKey(_PREFIX + digest) for digest in await names_below(self._link, self._paths.blobs)]
        free = [key for key in keys if not is_referenced(key)]
        pointers = await for_each(free, lambda key: self._pointer(_digest(key)))
        limit_ms = limit_s * 1000
        return tuple(key for key, found in zip(free, pointers, strict=True) if found and found.stored_ms < limit_ms)

    async def _pointer(self, digest: str) -> tree.BlobPointer | None:
        node = await self._link.get(self._paths.blob(digest))
        if node is None:
            return None
        try:
            return tree.BLOB.decode(node.data, f"blob {_PREFIX}{digest}")
        except Corrupt:
            return None

    def _term(self) -> _BlobPointers:
        token = self._leading()
        if token is None:
            raise Unavailable("this JobManager does not lead: it stores no blobs")
        return _BlobPointers(self._storage, token)


class _BlobPointers(TermStore):
    """Changes of copies in one term."""

    async def put(self, digest: str, source: Path, size: int, stored_ms: int) -> None:
        """Copy a file, then point to the copy."""
        path = self._paths.blob(digest)
        await self._link.get(path)  # nothing is copied for a pointer that cannot be written now
        file = await self._files.copy("blobs", digest, self._token.epoch, source)
        pointer = tree.BLOB.encode(tree.BlobPointer(file=file, size=size, stored_ms=stored_ms))

        async def plan() -> Change:
            found = await self._find(path, tree.BLOB)
            if found is None:
                return Change((Create(path, pointer),))
            return Change((SetData(path, pointer, found.version),), [found.pointer.file] if found.pointer else ())

        try:
            async with self._pointed((file,)):
                await self._write(plan)
        except asyncio.CancelledError:
            with suppress(
                FlintlockError
            ):  # answered after everything that was sent: what it does not show was not written
                found = await self._find(path, tree.BLOB)
                if found is None or found.pointer is None or found.pointer.file != file:
                    await self._files.discard((file,))
            raise

    async def remove(self, digest: str) -> None:
        """Remove a pointer, then its file."""
        path = self._paths.blob(digest)

        async def plan() -> Change:
            found = await self._find(path, tree.BLOB)
            if found is None:
                return Change()
            return Change((Delete(path, found.version),), [found.pointer.file] if found.pointer else ())

        await self._write(plan)


def _digest(key: BlobKey) -> str:
    if not is_blob_key(key):
        raise NotFound(f"{key!r} is not a blob's key")
    return key.removeprefix(_PREFIX)

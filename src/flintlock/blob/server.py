"""BlobServer: keeps uploads, serves them, and removes them when no job refers to them.

Where blobs lie is the business of a store (`stores`): a directory, or copies that every JobManager reaches. What keeps
a blob: jobs that refer to it (`retain` to `release`), holds (the time between upload and persisting), and uploads that
no job has taken up yet (until they expire). References live in memory; the Dispatcher tells them anew when it begins to
lead (`retain_only`). Only the leader may call what removes: a standby knows no references.

Uploads and removals of one blob come one after another, and whether it may go is decided in its turn. So identical
uploads are one, and an upload is either before a removal, which then does not happen, or after it.

Rejected: a table of references in the store (it repeats what the stored graphs say, and can disagree with them).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import structlog

from flintlock.blob import files
from flintlock.blob.files import IncomingFile, Offload, on_disk
from flintlock.blob.references import References
from flintlock.blob.stores import BlobStore, CopiedStore, DirectoryStore
from flintlock.gateways.blobs import BlobChunk, BlobCopies, BlobRange
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, FlintlockError, Invalid, NotFound
from flintlock.model.ids import BlobKey, JobId

log = structlog.get_logger(__name__)

#: An upload up to this size is gathered in memory and written in one go.
SMALL_BYTES: Final = 1 << 20

#: The most that one answer carries, whatever was asked for.
MAX_CHUNK_BYTES: Final = 8 << 20

#: How many blobs are removed at once.
_WIDTH: Final = 16


class BlobServer:
    """Blobs in a directory on a local file system, or in `copies`, then with that directory as a cache.

    `start` it once; belongs to one event loop.
    """

    def __init__(
        self,
        directory: Path,
        copies: BlobCopies | None = None,
        *,
        new_upload_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        now_s: Callable[[], float] = time.time,
        offload: Offload = asyncio.to_thread,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self._directory: Final = directory
        self._new_upload_id: Final = new_upload_id
        self._now_s: Final = now_s
        self._offload: Final = offload
        self._sync: Final = sync
        self._store: Final[BlobStore] = (
            DirectoryStore(directory, new_upload_id, offload)
            if copies is None
            else CopiedStore(directory / "cache", copies, offload, now_s)
        )
        self._references: Final = References()
        self._turns: Final = WeakValueDictionary[BlobKey, asyncio.Lock]()  # of blobs that are being changed
        self._removing: Final[set[BlobKey]] = set()  # no job can refer to these any more

    async def start(self) -> None:
        """Make the directory and remove what crashes left half-written. Uploads of other processes stay."""
        await self._offload(self._directory.mkdir, parents=True, exist_ok=True)
        await self._offload(files.sweep, self._directory)

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store what the stream gives; return its key and size once it is durable.

        The same content twice is one blob. It stays until a job has taken it up and let go of it, or it expires.
        Where `stream` raises or the caller is cancelled, nothing is left. Raises Unavailable if it cannot be stored.
        """
        gathered = bytearray()
        incoming: IncomingFile | None = None
        try:
            async for piece in stream:
                gathered += piece
                if len(gathered) > SMALL_BYTES:
                    incoming = incoming or self._incoming()
                    await on_disk(self._offload, incoming.write, gathered)
                    gathered = bytearray()
            if incoming is None:
                known = files.key_of(hashlib.sha256(gathered).hexdigest())
                if self._store.has(known):
                    self._references.uploaded(known, self._now_s())
                    return known, len(gathered)
                incoming = self._incoming()
            await on_disk(self._offload, incoming.write, gathered)
            key = files.key_of(incoming.digest)
            async with self._turn(key):
                if self._store.has(key):
                    incoming.discard()
                else:
                    await self._store.add(key, incoming)
                self._references.uploaded(key, self._now_s())
        except BaseException:
            if incoming is not None:
                incoming.discard()
            raise
        return key, incoming.size

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a blob, at most `MAX_CHUNK_BYTES`.

        Raises NotFound; Invalid for a range that is none; Corrupt, naming the blob, for one whose content is another.
        """
        if message.offset < 0 or message.limit < 0:
            raise Invalid(f"no range of a blob: offset {message.offset}, limit {message.limit}")
        limit = min(message.limit, MAX_CHUNK_BYTES)
        for _ in range(2):  # the file that was found may have been removed since, and another be there
            path = await self.path_of(message.key)
            try:
                data, size = await self._offload(files.read_range, path, message.offset, limit)
            except FileNotFoundError:
                continue
            return BlobChunk(data=data, size=size)
        raise files.missing(message.key)

    async def path_of(self, key: BlobKey) -> Path:
        """Return a local file with the blob's content, checked against its hash when first asked for.

        Raises NotFound if no sound one is there; Corrupt if what is there has another content.
        """
        return await self._store.path_of(key)

    async def size_of(self, key: BlobKey) -> int | None:
        """Return a stored blob's size, or None if it is not there. One that is damaged is not: upload it again."""
        try:
            async with self._turn(key):
                there = await self._store.recall(key)
            if not there:
                return None
            return (await self.read_blob(BlobRange(key=key, limit=0))).size
        except NotFound:
            return None
        except Corrupt as error:
            log.warning(log_events.BLOB_DAMAGED, blob=key, reason=error.public)
            return None

    def hold(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Keep blobs as long as the context lasts, those too that are put meanwhile. Leaving it removes nothing."""
        return self._references.hold(keys)

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Keep blobs until `release`. Call it before the job is persisted. Idempotent.

        Raises NotFound, and keeps none of them, if one is not there: neither put nor asked for (`size_of`) in this
        term, or gone since. Need not be awaited; and as nothing runs in between, nobody can remove what it has found.
        """
        wanted = frozenset(keys)
        for key in sorted(wanted):
            if key in self._removing or not self._store.claim(key):
                raise files.missing(key)
        self._references.retain(job_id, wanted)

    async def release(self, job_id: JobId) -> None:
        """The job needs its blobs no more: remove those that nothing else keeps. Idempotent, also where it raises.

        Call it after the job's graph was removed in a fenced transaction.
        """
        keys = self._references.release(job_id)
        try:
            await self._remove(keys)
        except Exception:
            self._references.restore(job_id, keys)
            raise

    async def abandon(self, keys: Collection[BlobKey]) -> None:
        """No job will take up these uploads; those that nothing else keeps go. What cannot be removed now expires."""
        for key in keys:
            self._references.served(key)
        try:
            await self._remove(keys)
        except FlintlockError as error:
            log.warning(log_events.UPLOAD_NOT_REMOVED, reason=error.public)

    async def unsound(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        """Return which blobs are not there as they were uploaded, and why. Raises Unavailable."""
        found: dict[BlobKey, str] = {}
        for key in keys:
            try:
                await self.path_of(key)
            except (NotFound, Corrupt) as error:
                found[key] = error.public
        return found

    async def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """Begin to lead: these jobs are all there are. Remove what neither they nor uploads of this life keep.

        Copies that every JobManager reaches are not removed, but expire: their uploaders can still name them. A blob
        that is missing is not an error here: the job that needs it will fail by itself.
        """
        self._references.retain_only(jobs)
        await self._remove(await self._store.begin())

    async def expire_unreferenced(self, older_than_s: float) -> tuple[BlobKey, ...]:
        """Remove uploads that no job refers to and that are older than that; return which."""
        limit_s = self._now_s() - older_than_s
        self._references.expire(limit_s)
        return await self._remove(await self._store.stored_before(limit_s, self._references.keeps))

    def _incoming(self) -> IncomingFile:
        return IncomingFile(self._directory, self._new_upload_id(), self._sync)

    def _turn(self, key: BlobKey) -> asyncio.Lock:
        return self._turns.setdefault(key, asyncio.Lock())

    async def _remove(self, keys: Collection[BlobKey]) -> tuple[BlobKey, ...]:
        """Remove those of them that nothing keeps when their turn comes; return which. Raises what went wrong first."""
        free = sorted(key for key in keys if not self._references.keeps(key))
        gone: list[BlobKey] = []
        for start in range(0, len(free), _WIDTH):
            some = free[start : start + _WIDTH]
            outcomes = await asyncio.gather(*map(self._remove_one, some), return_exceptions=True)
            for key, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome:
                    gone.append(key)
        return tuple(gone)

    async def _remove_one(self, key: BlobKey) -> bool:
        async with self._turn(key):
            if self._references.keeps(key):
                return False
            self._removing.add(key)
            try:
                await self._store.remove(key)
            finally:
                self._removing.discard(key)
        return True

"""BlobServer: stores uploads, serves them, and removes them when no job refers to them.

Where blobs are is decided by a store (`stores`): a directory, or copies that every JobManager reaches. A blob is
protected by jobs that refer to it (`retain` to `release`), by pins (the time between upload and persisting), and as an
upload that no job refers to yet (until it expires). References are in memory; the Dispatcher passes them when it begins
to lead (`retain_only`). Only the leader may call what removes: a standby has no references.

Uploads and removals of one blob are serialised, and whether it may be removed is decided under its lock. So identical
uploads are one, and an upload is either before a removal, which then does not happen, or after it.

Rejected: a table of references in the store (it repeats what the stored graphs contain, and can disagree with them).
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
from flintlock.host.boot_clock import boot_time_s
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, FlintlockError, Invalid, NotFound
from flintlock.model.ids import BlobKey, JobId

log = structlog.get_logger(__name__)

#: An upload up to this size is collected in memory and written at once.
SMALL_BYTES: Final = 1 << 20

#: The most bytes in one answer, whatever was requested.
MAX_CHUNK_BYTES: Final = 8 << 20

#: How many blobs are removed at once.
_BATCH: Final = 16


class BlobServer:
    """Blobs in a directory on a local file system, or in `copies`, then with that directory as a cache.

    `start` it once; belongs to one event loop. Of the blobs of ended jobs `ended_bytes` are stored, the latest.

    `now_s` is the wall clock, which says when a blob was stored, to other processes, too. It may be wrong, and jump: no
    blob expires before `elapsed_s` has counted as long.
    """

    def __init__(
        self,
        directory: Path,
        copies: BlobCopies | None = None,
        *,
        new_upload_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        now_s: Callable[[], float] = time.time,
        elapsed_s: Callable[[], float] = boot_time_s,
        offload: Offload = asyncio.to_thread,
        sync: Callable[[int], None] = os.fsync,
        ended_bytes: int = 0,
    ) -> None:
        self._directory: Final = directory
        self._new_upload_id: Final = new_upload_id
        self._now_s: Final = now_s
        self._elapsed_s: Final = elapsed_s
        self._leads_since_s = elapsed_s()  # replaced by retain_only
        self._offload: Final = offload
        self._sync: Final = sync
        self._store: Final[BlobStore] = (
            DirectoryStore(directory, new_upload_id, offload)
            if copies is None
            else CopiedStore(directory / "cache", copies, offload, now_s)
        )
        self._references: Final = References(ended_bytes)
        self._locks: Final = WeakValueDictionary[BlobKey, asyncio.Lock]()  # of blobs that are being changed
        self._removing: Final[set[BlobKey]] = set()  # no job can refer to these any more

    async def start(self) -> None:
        """Create the directory and remove what crashes left incomplete. Uploads of other processes stay."""
        await self._offload(self._directory.mkdir, parents=True, exist_ok=True)
        await self._offload(files.sweep, self._directory)

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store the content of the stream; return its key and size once it is durable.

        The same content twice is one blob. It stays until a job has referred to it and released it, or it expires.
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
                    self._references.uploaded(known, self._elapsed_s())
                    return known, len(gathered)
                incoming = self._incoming()
            await on_disk(self._offload, incoming.write, gathered)
            key = files.key_of(incoming.digest)
            async with self._lock(key):
                if self._store.has(key):
                    incoming.discard()
                else:
                    await self._store.add(key, incoming)
                self._references.uploaded(key, self._elapsed_s())
        except BaseException:
            if incoming is not None:
                incoming.discard()
            raise
        return key, incoming.size

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a blob, at most `MAX_CHUNK_BYTES`.

        Raises NotFound; Invalid for a range that is none; Corrupt, naming the blob, for one whose content is another or
        cannot be read; Unavailable.
        """
        if message.offset < 0 or message.limit < 0:
            raise Invalid(f"no range of a blob: offset {message.offset}, limit {message.limit}")
        limit = min(message.limit, MAX_CHUNK_BYTES)
        for _ in range(2):  # the file that was found may have been removed since, and another exist
            path = await self.path_of(message.key)
            try:
                data, size = await self._offload(files.read_range, path, message.key, message.offset, limit)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise files.unavailable(error) from error
            return BlobChunk(data=data, size=size)
        raise files.missing(message.key)

    async def path_of(self, key: BlobKey) -> Path:
        """Return a local file with the blob's content, checked against its hash when first requested.

        Raises NotFound if there is no intact one; Corrupt if the one that exists has another content, or cannot be
        read; Unavailable.
        """
        return await self._store.path_of(key)

    async def size_of(self, key: BlobKey) -> int | None:
        """Return a stored blob's size, or None if it does not exist. A damaged one does not count: upload it again."""
        try:
            async with self._lock(key):
                there = await self._store.recall(key)
            if not there:
                return None
            return (await self.read_blob(BlobRange(key=key, limit=0))).size
        except NotFound:
            return None
        except Corrupt as error:
            log.warning(log_events.BLOB_DAMAGED, blob=key, reason=error.public)
            return None

    def pin(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Protect blobs while the context lasts, also those that are uploaded meanwhile. Its end removes nothing."""
        return self._references.pin(keys)

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Protect blobs until `release`. Call it before the job is persisted. Idempotent.

        Raises NotFound, and protects none of them, if one does not exist: neither uploaded nor queried (`size_of`) in
        this term, or removed since. Does not await, so nothing can be removed between the check and the reference.
        """
        wanted = frozenset(keys)
        for key in sorted(wanted):
            if key in self._removing or not self._store.claim(key):
                raise files.missing(key)
        self._references.retain(job_id, wanted)

    async def release(self, job_id: JobId) -> None:
        """Drop the references of a job and remove blobs without any other. Idempotent, also where it raises.

        Call it after the job's graph was removed in a fenced transaction. Those that are stored for ended jobs stay.
        """
        keys = self._references.release(job_id)
        try:
            sizes = {key: await self.size_of(key) for key in sorted(keys)} if self._references.ended.max_bytes else {}
            await self._remove((*keys, *self._keep_for_ended(sizes)))
        except Exception:
            self._references.restore(job_id, keys)
            raise

    async def abandon(self, keys: Collection[BlobKey]) -> None:
        """Remove uploads that no job will refer to, unless they are referenced. What cannot be removed now expires."""
        for key in keys:
            self._references.consume_upload(key)
        try:
            await self._remove(keys)
        except FlintlockError as error:
            log.warning(log_events.UPLOAD_NOT_REMOVED, reason=error.public)

    async def find_damaged(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        """Return the blobs that are missing or damaged, each with the reason. Raises Unavailable."""
        found: dict[BlobKey, str] = {}
        for key in keys:
            try:
                await self.path_of(key)
            except (NotFound, Corrupt) as error:
                found[key] = error.public
        return found

    async def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """Begin to lead with these jobs. Remove what neither they nor uploads to this process refer to.

        Copies that every JobManager reaches are not removed, but expire: their uploaders can still refer to them. A
        missing blob is not an error here: the job that needs it fails by itself.
        """
        self._leads_since_s = self._elapsed_s()
        self._references.retain_only(jobs)
        found = await self._store.begin()
        # Which of them were those of ended jobs is not known: what no job refers to may have been.
        await self._remove((*found, *self._keep_for_ended(found)))

    async def expire_unreferenced(self, older_than_s: float, ended_s: float = 0.0) -> tuple[BlobKey, ...]:
        """Remove uploads that no job refers to and that are older than that; return which.

        `ended_s`: how long the blobs of ended jobs are stored. Only the leader receives uploads, so what was uploaded
        to another process is older than this one's term.
        """
        elapsed_s = self._elapsed_s()
        self._references.expire(elapsed_s - older_than_s)
        old: Collection[BlobKey] = self._references.ended.expire(elapsed_s - ended_s)
        if elapsed_s - self._leads_since_s >= older_than_s:
            limit_s = self._now_s() - older_than_s
            old = (*old, *await self._store.stored_before(limit_s, self._references.is_referenced))
        return await self._remove(dict.fromkeys(old))

    def _keep_for_ended(self, sizes: Mapping[BlobKey, int | None]) -> list[BlobKey]:
        """Protect blobs of ended jobs, as far as there is room; return those that have to give way."""
        gone: list[BlobKey] = []
        for key, size in sizes.items():
            if size is not None and not self._references.is_in_use(key):
                gone += self._references.ended.add(key, size, self._elapsed_s())
        return gone

    def _incoming(self) -> IncomingFile:
        return IncomingFile(self._directory, self._new_upload_id(), self._sync)

    def _lock(self, key: BlobKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _remove(self, keys: Collection[BlobKey]) -> tuple[BlobKey, ...]:
        """Remove those of them that are unreferenced once they are locked; return which. Raises the first error."""
        free = sorted(key for key in keys if not self._references.is_referenced(key))
        removed: list[BlobKey] = []
        for start in range(0, len(free), _BATCH):
            some = free[start : start + _BATCH]
            outcomes = await asyncio.gather(*map(self._remove_one, some), return_exceptions=True)
            for key, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome:
                    removed.append(key)
        return tuple(removed)

    async def _remove_one(self, key: BlobKey) -> bool:
        async with self._lock(key):
            if self._references.is_referenced(key):
                return False
            self._removing.add(key)
            try:
                await self._store.remove(key)
            finally:
                self._removing.discard(key)
        return True

"""BlobServer: keeps uploads, serves them, and removes them when no job refers to them.

A blob is stored as `<hash>/<upload id>`; to its readers all files of one hash are one blob. A file is never written
again and never renamed. A leader that was overtaken while it cleaned up removes the names that it knew, and no newer
upload of the same content is among them: each life of a server writes under names of its own, and gives a blob that a
job refers to by key alone a name of its own, too.

What keeps a blob: jobs that refer to it (`retain` to `release`), holds (the time between upload and persisting), and
uploads that no job has taken up yet (until they expire). References live in memory; the Dispatcher tells them anew when
it begins to lead (`retain_only`). Only the leader may call what removes: a standby knows no references.

Rejected: a table of references in the store (it repeats what the stored graphs say, and can disagree with them).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flintlock.blob import files
from flintlock.blob.files import IncomingFile, Offload
from flintlock.gateways.blobs import BlobChunk, BlobRange
from flintlock.model.errors import Invalid, NotFound
from flintlock.model.ids import BlobKey, JobId

#: An upload up to this size is gathered in memory and written in one go.
SMALL_BYTES: Final = 1 << 20

#: The most that one answer carries, whatever was asked for.
MAX_CHUNK_BYTES: Final = 8 << 20


class _Waiting:
    """Uploads of one blob that no job has taken up yet."""

    def __init__(self) -> None:
        self.uploads = 0
        self.since_s = 0.0  # the latest of them


class BlobServer:
    """Blobs in a directory on a local file system. `start` it once; belongs to one event loop."""

    def __init__(
        self,
        directory: Path,
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
        self._sound: Final[dict[BlobKey, Path]] = {}  # written or checked in this life; emptied by removal
        self._own: Final[set[Path]] = set()  # names that this life made
        self._names: Final[dict[BlobKey, set[Path]]] = {}  # names seen when a job began to refer to the blob
        self._jobs: Final[dict[JobId, frozenset[BlobKey]]] = {}  # written by retain, release, retain_only
        self._holds: Final[Counter[BlobKey]] = Counter()
        self._waiting: Final[dict[BlobKey, _Waiting]] = {}  # filled by put, emptied by retain and expiry
        self._doomed: Final[set[Path]] = set()  # being removed just now: nobody is given these any more

    async def start(self) -> None:
        """Make the directory and remove what crashes left half-written. Uploads of other processes stay."""
        await self._offload(self._directory.mkdir, parents=True, exist_ok=True)
        await self._offload(files.sweep, self._directory)

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store what the stream gives; return its key and size once it is durable.

        The same content twice is one blob. It stays until a job has taken it up and let go of it, or it expires.
        Where `stream` raises or the caller is cancelled, nothing is left.
        """
        gathered = bytearray()
        incoming: IncomingFile | None = None
        try:
            async for piece in stream:
                gathered += piece
                if len(gathered) > SMALL_BYTES:
                    incoming = incoming or self._incoming()
                    await self._offload(incoming.write, gathered)
                    gathered = bytearray()
            if incoming is None:
                known = files.key_of(hashlib.sha256(gathered).hexdigest())
                if self._has_own(known):
                    self._uploaded(known)
                    return known, len(gathered)
                incoming = self._incoming()
            await self._offload(incoming.write, gathered)
            key = files.key_of(incoming.digest)
            if self._has_own(key):
                incoming.discard()
            else:
                target = self._new_name(key)
                await self._offload(incoming.keep, target)
                self._sound[key] = target
                self._own.add(target)
                self._names.setdefault(key, set()).add(target)
            self._uploaded(key)
        except BaseException:
            if incoming is not None:
                incoming.discard()
            raise
        return key, incoming.size

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a blob, at most `MAX_CHUNK_BYTES`. Raises NotFound; Invalid for a range that is none."""
        if message.offset < 0 or message.limit < 0:
            raise Invalid(f"no range of a blob: offset {message.offset}, limit {message.limit}")
        limit = min(message.limit, MAX_CHUNK_BYTES)
        for _ in range(2):  # the file that was found may have been removed since, and another be there
            path = await self.path_of(message.key)
            try:
                data, size = await self._offload(files.read_range, path, message.offset, limit)
            except FileNotFoundError:
                self._sound.pop(message.key, None)
            else:
                return BlobChunk(data=data, size=size)
        raise _missing(message.key)

    async def path_of(self, key: BlobKey) -> Path:
        """Return a file with the blob's content, checked against its hash when first asked for.

        A file that fails the check is removed. Raises NotFound if no sound one is there.
        """
        path = self._sound.get(key)
        if path is None:
            path = await self._offload(files.first_sound, self._directory, key)
            if path is None or path in self._doomed:
                raise _missing(key)
            self._sound[key] = path
        return path

    async def size_of(self, key: BlobKey) -> int | None:
        """Return a stored blob's size, or None if it is not there."""
        try:
            return (await self.read_blob(BlobRange(key=key, limit=0))).size
        except NotFound:
            return None

    @contextmanager
    def hold(self, keys: Iterable[BlobKey]) -> Generator[None]:
        """Keep blobs as long as the context lasts, those too that are put meanwhile. Leaving it removes nothing."""
        held = tuple(keys)
        self._holds.update(held)
        try:
            yield
        finally:
            self._holds.subtract(held)

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Keep blobs until `release`. Call it before the job is persisted. Idempotent.

        Raises NotFound, and keeps none of them, if one is not there. Looks at names only, so it need not be awaited;
        and as nothing runs in between, nobody can remove what it has just found.
        """
        wanted = frozenset(keys)
        found = {key: self._claimed(key) for key in sorted(wanted)}
        for key, names in found.items():
            self._names.setdefault(key, set()).update(names)
        for key in wanted - self._jobs.get(job_id, frozenset()):
            self._taken_up(key)
        if wanted:
            self._jobs[job_id] = self._jobs.get(job_id, frozenset()) | wanted

    async def release(self, job_id: JobId) -> None:
        """The job needs its blobs no more: remove those that nothing else keeps. Idempotent.

        Call it after the job's graph was removed in a fenced transaction.
        """
        free = self._jobs.pop(job_id, frozenset()) - self._kept()
        await self._remove({key: self._names.get(key, set()) for key in free})

    async def unsound(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        """Return which blobs are not here as they were uploaded, and why; each is read once in this life."""
        found: dict[BlobKey, str] = {}
        for key in keys:
            try:
                await self.path_of(key)
            except NotFound as error:
                found[key] = error.public
        return found

    async def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """Begin to lead: these jobs are all there are. Remove what neither they nor uploads of this life keep.

        A blob that is missing is not an error here: the job that needs it will fail by itself.
        """
        self._jobs.clear()
        self._jobs.update({job_id: frozenset(keys) for job_id, keys in jobs.items() if keys})
        there = await self._offload(files.all_names, self._directory)
        kept = self._kept()
        for key in kept & there.keys():
            self._names.setdefault(key, set()).update(there[key])
        await self._remove({key: set(names) for key, names in there.items() if key not in kept})

    async def expire_unreferenced(self, older_than_s: float) -> tuple[BlobKey, ...]:
        """Remove uploads that no job refers to and that are older than that; return which."""
        limit_s = self._now_s() - older_than_s
        there = await self._offload(_older_names, self._directory, limit_s)
        for key in [key for key, waiting in self._waiting.items() if waiting.since_s < limit_s]:
            del self._waiting[key]
        kept = self._kept()
        old = {key: set(names) for key, names in there.items() if key not in kept}
        await self._remove(old)
        return tuple(sorted(old))

    def _incoming(self) -> IncomingFile:
        return IncomingFile(self._directory, self._new_upload_id(), self._sync)

    def _new_name(self, key: BlobKey) -> Path:
        return self._directory / files.digest_of(key) / self._new_upload_id()

    def _has_own(self, key: BlobKey) -> bool:
        """Whether this life wrote the blob; another's file may be removed by that other."""
        return self._sound.get(key) in self._own

    def _uploaded(self, key: BlobKey) -> None:
        waiting = self._waiting.setdefault(key, _Waiting())
        waiting.uploads += 1
        waiting.since_s = self._now_s()

    def _taken_up(self, key: BlobKey) -> None:
        """A job refers to the blob: one upload of it has served its purpose."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.uploads -= 1
            if waiting.uploads == 0:
                del self._waiting[key]

    def _claimed(self, key: BlobKey) -> set[Path]:
        """Return the blob's names, one of them made by this life. Raises NotFound."""
        names = set(files.names_of(self._directory, key)) - self._doomed
        if not names:
            raise _missing(key)
        own = self._new_name(key)
        if self._own.isdisjoint(names) and any(files.link_file(name, own) for name in sorted(names)):
            self._own.add(own)
            names.add(own)
        return names

    def _kept(self) -> set[BlobKey]:
        kept = {key for keys in self._jobs.values() for key in keys}
        kept.update(key for key, count in self._holds.items() if count > 0)
        kept.update(self._waiting)
        return kept

    async def _remove(self, names_by_key: Mapping[BlobKey, set[Path]]) -> None:
        """Remove exactly these names."""
        doomed = {name for names in names_by_key.values() for name in names}
        for key, names in names_by_key.items():
            if self._sound.get(key) in names:
                del self._sound[key]
            self._names.pop(key, None)
        self._own.difference_update(doomed)
        self._doomed.update(doomed)
        try:
            await self._offload(_remove_all, sorted(doomed))
        finally:
            self._doomed.difference_update(doomed)


def _remove_all(names: list[Path]) -> None:
    for name in names:
        files.remove_file(name)


def _older_names(directory: Path, limit_s: float) -> dict[BlobKey, list[Path]]:
    old: dict[BlobKey, list[Path]] = {}
    for key, names in files.all_names(directory).items():
        for name in names:
            try:
                if name.stat().st_mtime < limit_s:
                    old.setdefault(key, []).append(name)
            except FileNotFoundError:
                continue
    return old


def _missing(key: BlobKey) -> NotFound:
    return NotFound(f"no blob {key} is stored here")

"""Where a BlobServer stores blobs durably: a directory of this host, or copies that every JobManager reaches.

The server serialises the changes of one blob (`add`, `recall`, `remove`), and decides what may be removed; a store
knows what exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from flintlock.blob import files
from flintlock.blob.cache import BlobCache
from flintlock.blob.files import IncomingFile, Offload, on_disk
from flintlock.gateways.blobs import BlobCopies
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, NotFound, Unavailable
from flintlock.model.ids import BlobKey

log = structlog.get_logger(__name__)


class BlobStore(Protocol):
    """Stores blobs. What raises Unavailable may be retried."""

    def has(self, key: BlobKey) -> bool:
        """Return whether another upload of it would add nothing: it is durable, and only this process removes it."""
        ...

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Take over a complete file; return once it is durable. Raises Unavailable, Fenced, without taking it."""
        ...

    async def path_of(self, key: BlobKey) -> Path:
        """Return a local file with the blob's content, checked against its hash. Raises NotFound, Corrupt, Unavailable.

        The file may be removed at any time.
        """
        ...

    async def recall(self, key: BlobKey) -> bool:
        """Find out whether a blob that was stored earlier may exist, for a later `claim`. Raises Unavailable."""
        ...

    def claim(self, key: BlobKey) -> bool:
        """Return whether the blob exists, durably, until this process removes it: a job is about to refer to it.

        Does not await. True only for what was added or recalled.
        """
        ...

    async def begin(self) -> Mapping[BlobKey, int]:
        """Begin a term: drop what another leader may have changed.

        Returns blobs to remove if they are unreferenced, the oldest first, with their sizes.
        """
        ...

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs that were stored before then and are unreferenced."""
        ...

    async def remove(self, key: BlobKey) -> None:
        """Remove a blob. Idempotent: where it raises, it can be retried. Before it awaits, `has` is False."""
        ...


class DirectoryStore:
    """Blobs in one directory on a local file system, which all JobManagers of this host share.

    A blob is stored as `<hash>/<upload id>`; for readers all files of one hash are one blob. A file is never modified
    and never renamed. A leader that was superseded while it cleaned up removes the names that it knew, and no newer
    upload of the same content is among them: each server process writes under names of its own, and gives a blob that
    a job refers to by key alone a name of its own, too.
    """

    def __init__(self, directory: Path, new_upload_id: Callable[[], str], offload: Offload) -> None:
        self._directory: Final = directory
        self._new_upload_id: Final = new_upload_id
        self._offload: Final = offload
        self._intact: Final[dict[BlobKey, Path]] = {}  # written or checked by this process; emptied by removal
        self._own: Final[set[Path]] = set()  # names that this process created
        self._names: Final[dict[BlobKey, set[Path]]] = {}  # all known names, which are removed with the blob

    def has(self, key: BlobKey) -> bool:
        """Return whether this process wrote the blob; the file of another one may be removed by that one."""
        return self._intact.get(key) in self._own

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Give the file its name."""
        target = self._new_name(key)
        await on_disk(self._offload, incoming.move, target)
        self._intact[key] = target
        self._own.add(target)
        self._names.setdefault(key, set()).add(target)

    async def path_of(self, key: BlobKey) -> Path:
        """Return a file that was checked. One that fails the check is removed."""
        path = self._intact.get(key)
        if path is None or not path.exists():
            self._intact.pop(key, None)
            path = await on_disk(self._offload, files.first_intact, self._directory, key)
            if path is None:
                raise files.missing(key)
            self._intact[key] = path
        return path

    async def recall(self, key: BlobKey) -> bool:  # noqa: ARG002  # a Protocol's
        """Do nothing: `claim` reads the names."""
        return True

    def claim(self, key: BlobKey) -> bool:
        """Record the blob's names; one of them is created by this process. Raises Unavailable."""
        try:
            names = set(files.names_of(self._directory, key))
        except OSError as error:
            raise files.unavailable(error) from error
        own = self._new_name(key)
        if self._own.isdisjoint(names) and any(files.link_file(name, own) for name in sorted(names)):
            self._own.add(own)
            names.add(own)
        self._names.setdefault(key, set()).update(names)
        return bool(names)

    async def begin(self) -> Mapping[BlobKey, int]:
        """Return all blobs: uploads to a former process were not acknowledged as part of a job."""
        stored, sizes = await on_disk(self._offload, files.all_names_by_age, self._directory)
        self._add_names(stored)
        return sizes

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs all of whose files are older."""
        stored = await on_disk(self._offload, files.all_names, self._directory, limit_s)
        old = {key: names for key, names in stored.items() if not is_referenced(key)}
        self._add_names(old)
        return old.keys()

    async def remove(self, key: BlobKey) -> None:
        """Remove exactly the known names."""
        names = set(self._names.get(key, ()))
        if self._intact.get(key) in names:
            del self._intact[key]
        self._own.difference_update(names)
        await on_disk(self._offload, files.remove_files, sorted(names))
        self._names[key] = self._names.get(key, set()) - names
        if not self._names[key]:
            del self._names[key]

    def _new_name(self, key: BlobKey) -> Path:
        return self._directory / files.digest_of(key) / self._new_upload_id()

    def _add_names(self, names_by_key: dict[BlobKey, list[Path]]) -> None:
        for key, names in names_by_key.items():
            self._names.setdefault(key, set()).update(names)


class CopiedStore:
    """Blobs as copies that every JobManager reaches; a directory of this host is a cache of them.

    A copy is durable before `add` returns. Which copies exist is known for one term: until the next begins, only this
    process removes any. Local files prove nothing about that, and may be removed at any time.
    """

    def __init__(
        self, directory: Path, copies: BlobCopies, offload: Offload, now_s: Callable[[], float] = time.time
    ) -> None:
        self._copies: Final = copies
        self._cache: Final = BlobCache(directory, lambda: copies, offload=offload)
        self._now_s: Final = now_s
        self._known: dict[BlobKey, object] = {}  # copies that exist; a new object each time; emptied with each term

    def has(self, key: BlobKey) -> bool:
        """Return whether this term knows the copy."""
        return key in self._known

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Copy the file, also where a copy may exist that this term does not know: that one may be damaged."""
        known = self._known
        await self._copies.put(key, incoming.path, size=incoming.size, stored_s=self._now_s())
        known[key] = object()
        try:
            await self._cache.adopt(key, incoming)
        except Unavailable as error:  # no room here: readers get it from the copy
            log.warning(log_events.BLOB_NOT_CACHED, blob=key, reason=error.public)
            incoming.discard()

    async def path_of(self, key: BlobKey) -> Path:
        """Return the local file, fetched from the copy if it does not exist."""
        known = self._known
        found = known.get(key)
        try:
            return await self._cache.fetch(key)
        except (Corrupt, NotFound):
            if known.get(key) is found:  # unless it was uploaded meanwhile
                known.pop(key, None)  # so that the next upload of it replaces the copy
            raise

    async def recall(self, key: BlobKey) -> bool:
        """Ask whether there is a copy."""
        known = self._known
        if key not in known and await self._copies.has(key):
            known[key] = object()
        return key in known

    def claim(self, key: BlobKey) -> bool:
        """Return whether this term knows the copy."""
        return key in self._known

    async def begin(self) -> Mapping[BlobKey, int]:
        """Forget which copies exist. None is removed: they may be uploads to the former leader, and expire as such."""
        self._known = {}
        return {}

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs whose copy is older."""
        return await self._copies.stored_before(limit_s, is_referenced)

    async def remove(self, key: BlobKey) -> None:
        """Remove the copy, and the cached one."""
        self._known.pop(key, None)
        await self._copies.remove(key)
        await self._cache.drop(key)

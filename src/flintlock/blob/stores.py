"""Where a BlobServer keeps blobs durably: a directory of this host, or copies that every JobManager reaches.

The server sees to it that changes of one blob come one after another (`add`, `recall`, `remove`), and decides what may
go; a store knows what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
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
    """Keeps blobs. What raises Unavailable may be tried again."""

    def has(self, key: BlobKey) -> bool:
        """Tell whether another upload of it would add nothing: it is durable, and nobody but us removes it."""
        ...

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Take a whole file over; return once it is durable. Raises Unavailable, Fenced, and has taken nothing."""
        ...

    async def path_of(self, key: BlobKey) -> Path:
        """Return a local file with the blob's content, checked against its hash. Raises NotFound, Corrupt, Unavailable.

        The file may be removed at any time.
        """
        ...

    async def recall(self, key: BlobKey) -> bool:
        """Find out whether a blob that was stored earlier may be there, so that `claim` knows. Raises Unavailable."""
        ...

    def claim(self, key: BlobKey) -> bool:
        """A job is about to refer to the blob: tell whether it is there, durably, for as long as we do not remove it.

        Does not wait. True for nothing but what was added or recalled.
        """
        ...

    async def begin(self) -> Collection[BlobKey]:
        """A term begins: forget what another leader may have changed. Returns blobs that go if nothing keeps them."""
        ...

    async def stored_before(self, limit_s: float, kept: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs that were stored before then and that nothing keeps."""
        ...

    async def remove(self, key: BlobKey) -> None:
        """Remove a blob. Idempotent: where it raises, it can be tried again. Before it waits, `has` is False."""
        ...


class DirectoryStore:
    """Blobs in one directory on a local file system, which all JobManagers of this host share.

    A blob is stored as `<hash>/<upload id>`; to its readers all files of one hash are one blob. A file is never written
    again and never renamed. A leader that was overtaken while it cleaned up removes the names that it knew, and no
    newer upload of the same content is among them: each life of a server writes under names of its own, and gives a
    blob that a job refers to by key alone a name of its own, too.
    """

    def __init__(self, directory: Path, new_upload_id: Callable[[], str], offload: Offload) -> None:
        self._directory: Final = directory
        self._new_upload_id: Final = new_upload_id
        self._offload: Final = offload
        self._sound: Final[dict[BlobKey, Path]] = {}  # written or checked in this life; emptied by removal
        self._own: Final[set[Path]] = set()  # names that this life made
        self._names: Final[dict[BlobKey, set[Path]]] = {}  # all names seen; those go when the blob goes, and no others

    def has(self, key: BlobKey) -> bool:
        """Tell whether this life wrote the blob; another's file may be removed by that other."""
        return self._sound.get(key) in self._own

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Give the file its name."""
        target = self._new_name(key)
        await on_disk(self._offload, incoming.keep, target)
        self._sound[key] = target
        self._own.add(target)
        self._names.setdefault(key, set()).add(target)

    async def path_of(self, key: BlobKey) -> Path:
        """Return a file that was checked. One that fails the check is removed."""
        path = self._sound.get(key)
        if path is None or not path.exists():
            self._sound.pop(key, None)
            path = await on_disk(self._offload, files.first_sound, self._directory, key)
            if path is None:
                raise files.missing(key)
            self._sound[key] = path
        return path

    async def recall(self, key: BlobKey) -> bool:  # noqa: ARG002  # a Protocol's
        """Leave it to whoever reads: `claim` looks at names."""
        return True

    def claim(self, key: BlobKey) -> bool:
        """Note the blob's names; one of them is made by this life."""
        names = set(files.names_of(self._directory, key))
        own = self._new_name(key)
        if self._own.isdisjoint(names) and any(files.link_file(name, own) for name in sorted(names)):
            self._own.add(own)
            names.add(own)
        self._names.setdefault(key, set()).update(names)
        return bool(names)

    async def begin(self) -> Collection[BlobKey]:
        """Return all there is: whoever uploaded to another life has been told nothing that still holds."""
        there = await on_disk(self._offload, files.all_names, self._directory)
        self._seen(there)
        return there.keys()

    async def stored_before(self, limit_s: float, kept: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs all of whose files are older."""
        there = await on_disk(self._offload, files.all_names, self._directory, limit_s)
        old = {key: names for key, names in there.items() if not kept(key)}
        self._seen(old)
        return old.keys()

    async def remove(self, key: BlobKey) -> None:
        """Remove exactly the names that were seen."""
        names = set(self._names.get(key, ()))
        if self._sound.get(key) in names:
            del self._sound[key]
        self._own.difference_update(names)
        await on_disk(self._offload, files.remove_files, sorted(names))
        self._names[key] = self._names.get(key, set()) - names
        if not self._names[key]:
            del self._names[key]

    def _new_name(self, key: BlobKey) -> Path:
        return self._directory / files.digest_of(key) / self._new_upload_id()

    def _seen(self, names_by_key: dict[BlobKey, list[Path]]) -> None:
        for key, names in names_by_key.items():
            self._names.setdefault(key, set()).update(names)


class CopiedStore:
    """Blobs as copies that every JobManager reaches; a directory of this host is a cache of them.

    A copy is durable before `add` returns. What of the copies is known to be there is known for one term: until the
    next begins, nobody but this process removes any. Local files say nothing about that, and may go at any time.
    """

    def __init__(
        self, directory: Path, copies: BlobCopies, offload: Offload, now_s: Callable[[], float] = time.time
    ) -> None:
        self._copies: Final = copies
        self._cache: Final = BlobCache(directory, lambda: copies, offload=offload)
        self._now_s: Final = now_s
        self._known: dict[BlobKey, object] = {}  # copies that are there, each time it was found; anew for each term

    def has(self, key: BlobKey) -> bool:
        """Tell whether this term knows of the copy."""
        return key in self._known

    async def add(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Copy the file, also where a copy may be there that this term does not know: that one may be damaged."""
        known = self._known
        await self._copies.put(key, incoming.path, size=incoming.size, stored_s=self._now_s())
        known[key] = object()
        try:
            await self._cache.adopt(key, incoming)
        except Unavailable as error:  # no room here: whoever asks gets it from the copy
            log.warning(log_events.BLOB_NOT_CACHED, blob=key, reason=error.public)
            incoming.discard()

    async def path_of(self, key: BlobKey) -> Path:
        """Return the local file, made from the copy if it is not there."""
        known = self._known
        found = known.get(key)
        try:
            return await self._cache.fetch(key)
        except (Corrupt, NotFound):
            if known.get(key) is found:  # unless it was put meanwhile
                known.pop(key, None)  # so that the next upload of it replaces the copy
            raise

    async def recall(self, key: BlobKey) -> bool:
        """Ask whether there is a copy."""
        known = self._known
        if key not in known and await self._copies.has(key):
            known[key] = object()
        return key in known

    def claim(self, key: BlobKey) -> bool:
        """Tell whether this term knows of the copy."""
        return key in self._known

    async def begin(self) -> Collection[BlobKey]:
        """Forget which copies are there. None goes: they may be uploads to the former leader, and expire as such."""
        self._known = {}
        return ()

    async def stored_before(self, limit_s: float, kept: Callable[[BlobKey], bool]) -> Collection[BlobKey]:
        """Return blobs whose copy is older."""
        return await self._copies.stored_before(limit_s, kept)

    async def remove(self, key: BlobKey) -> None:
        """Remove the copy, and what is here of it."""
        self._known.pop(key, None)
        await self._copies.remove(key)
        await self._cache.drop(key)

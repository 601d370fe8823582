"""BlobCache: local copies of blobs, fetched once, checked against their hash, evicted when there is no room.

A TaskManager caches what the JobManager serves, a JobManager what is in shared storage. Copies survive a restart and
are checked again when first used. A copy gets its name only when it is complete, so a crash leaves nothing that could
be mistaken for one.

Rejected: emptying the directory at each start (a restart would fetch everything again); flushing copies to the disk (a
copy that a loss of power damaged fails its check, and is fetched again).
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from flintlock.blob import files
from flintlock.blob.files import IncomingFile, Offload, on_disk
from flintlock.blob.pins import Pins
from flintlock.gateways.blobs import BlobGateway, BlobRange
from flintlock.host.files.file_errors import concerns_one_file
from flintlock.model.errors import Corrupt
from flintlock.model.ids import BlobKey

DEFAULT_LIMIT_BYTES: Final = 2 << 30


class BlobCache:
    """Local copies of blobs, in a directory of its own. `server` returns the gateway that serves them now."""

    def __init__(
        self,
        directory: Path,
        server: Callable[[], BlobGateway],
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        *,
        offload: Offload = asyncio.to_thread,
    ) -> None:
        self._directory: Final = directory
        self._server: Final = server
        self._limit_bytes: Final = limit_bytes
        self._offload: Final = offload
        self._swept = False  # leftovers of a former process were removed; set by the first fetch
        self._used: Final[dict[BlobKey, Path]] = {}  # checked by this process, least recently used first
        self._pins: Final = Pins()
        self._locks: Final = WeakValueDictionary[BlobKey, asyncio.Lock]()  # of blobs that are being fetched

    async def fetch(self, key: BlobKey) -> Path:
        """Return a local file with the blob's content. Concurrent fetches of one blob share one download.

        The file stays until there is no room: a caller that needs its path for longer pins it (`pin`). Raises NotFound
        naming the key if the server has no such blob, Unavailable if the server cannot be reached or the disk is full,
        Corrupt if what arrived has another content.
        """
        path = self._directory / files.digest_of(key)
        async with self._lock(key):
            if not (key in self._used and path.exists()) and not await on_disk(self._offload, _is_intact, path, key):
                await self._download(key, path)
            self._use(key, path)
        return path

    async def adopt(self, key: BlobKey, incoming: IncomingFile) -> None:
        """Add a file whose content is the blob's, as if it had been fetched. Raises Unavailable."""
        path = self._directory / files.digest_of(key)
        async with self._lock(key):
            await self._store(incoming, path)
            self._use(key, path)

    async def drop(self, key: BlobKey) -> None:
        """Remove a copy, unless it is pinned. Idempotent. Raises Unavailable."""
        async with self._lock(key):
            if key not in self._pins:
                path = self._used.pop(key, self._directory / files.digest_of(key))
                await on_disk(self._offload, path.unlink, missing_ok=True)

    def pin(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Evict none of these while the context lasts, even if there is no room."""
        return self._pins.pin(keys)

    async def _download(self, key: BlobKey, path: Path) -> None:
        if not self._swept:
            self._swept = True
            await on_disk(self._offload, files.sweep, self._directory)
        incoming = IncomingFile(self._directory, uuid.uuid4().hex)
        try:
            server = self._server()
            while True:
                chunk = await server.read_blob(BlobRange(key=key, offset=incoming.size))
                await on_disk(self._offload, incoming.write, chunk.data)
                if incoming.size >= chunk.size or not chunk.data:
                    break
            if files.key_of(incoming.digest) != key:
                raise Corrupt(f"what arrived as blob {key} has another content ({incoming.size} bytes)")
            await self._store(incoming, path)
        except BaseException:
            incoming.discard()
            raise

    async def _store(self, incoming: IncomingFile, path: Path) -> None:
        room = self._limit_bytes - incoming.size
        await on_disk(self._offload, _make_room, self._directory, room, self._recency())
        await on_disk(self._offload, incoming.move, path, durable=False)

    def _lock(self, key: BlobKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _use(self, key: BlobKey, path: Path) -> None:
        self._used.pop(key, None)
        self._used[key] = path

    def _recency(self) -> dict[str, float]:
        """Return the order in which copies were used by this process, later ones higher; pinned ones are infinite."""
        order: dict[str, float] = {files.digest_of(key): position for position, key in enumerate(self._used)}
        order.update((files.digest_of(key), math.inf) for key in self._pins)
        return order


def _is_intact(path: Path, key: BlobKey) -> bool:
    """Return whether the copy exists and is intact; one that is damaged, or cannot be read, is removed."""
    try:
        if files.file_digest(path) == files.digest_of(key):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        if not concerns_one_file(error):
            raise
    path.unlink(missing_ok=True)
    return False


def _make_room(directory: Path, limit_bytes: int, recency: Mapping[str, float]) -> None:
    """Remove copies until there is room: first those not used by this process, then the least recently used."""
    copies = [path for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []
    copies.sort(key=lambda path: (recency.get(path.name, -1), path.name))
    sizes = {path: path.stat().st_size for path in copies}
    total = sum(sizes.values())
    for path in copies:
        if total <= limit_bytes or recency.get(path.name) == math.inf:
            return
        path.unlink(missing_ok=True)
        total -= sizes[path]

"""BlobCopies in memory: a storage that several JobManagers share, and the access of each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from flintlock.gateways.blobs import BlobChunk, BlobRange
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Unavailable
from flintlock.model.ids import BlobKey, Epoch


class SharedCopy(Struct, frozen=True):
    """One copy."""

    content: bytes
    stored_s: float


class SharedBlobs:
    """The storage. It refuses the writes of an older epoch."""

    def __init__(self) -> None:
        self.copies: dict[BlobKey, SharedCopy] = {}
        self.epoch = Epoch(0)  # the highest that has written


async def _at_once(step: str) -> None:
    pass


class FakeBlobCopies:
    """The access of one JobManager, which leads in `epoch`, or not. Raises `fail_with` if set; counts its writes.

    `step` is awaited before and after each operation takes effect, under the operation's name.
    """

    def __init__(
        self, shared: SharedBlobs, epoch: Epoch | None = None, step: Callable[[str], Awaitable[None]] = _at_once
    ) -> None:
        self.shared = shared
        self.epoch = epoch
        self.step = step
        self.fail_with: FlintlockError | None = None
        self.puts = 0

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a copy, damaged or not."""
        await self._before("read")
        found = self.shared.copies.get(message.key)
        if found is None:
            raise NotFound(f"no blob {message.key} is stored in this cluster")
        data = found.content[message.offset : message.offset + message.limit]
        return BlobChunk(data=data, size=len(found.content))

    async def has(self, key: BlobKey) -> bool:
        """Return whether there is a copy."""
        await self._before("has")
        there = key in self.shared.copies
        await self.step("has")
        return there

    async def put(self, key: BlobKey, source: Path, *, size: int, stored_s: float) -> None:
        """Copy a file."""
        await self._before("put")
        content = source.read_bytes()  # noqa: ASYNC240  # small
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes, not the {size} that were given")
        self._fence()
        self.puts += 1
        self.shared.copies[key] = SharedCopy(content, stored_s)
        await self.step("put")

    async def remove(self, key: BlobKey) -> None:
        """Remove a copy."""
        await self._before("remove")
        self._fence()
        self.shared.copies.pop(key, None)
        await self.step("remove")

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> tuple[BlobKey, ...]:
        """Return old blobs without a reference."""
        await self._before("stored_before")
        old = [key for key, copy in self.shared.copies.items() if copy.stored_s < limit_s and not is_referenced(key)]
        await self.step("stored_before")
        return tuple(sorted(old))

    async def _before(self, operation: str) -> None:
        await self.step(operation)
        if self.fail_with is not None:
            raise self.fail_with

    def _fence(self) -> None:
        if self.epoch is None:
            raise Unavailable("this JobManager does not lead: it keeps no blobs")
        if self.epoch < self.shared.epoch:
            raise Fenced(f"epoch {self.shared.epoch} has begun; this is of epoch {self.epoch}")
        self.shared.epoch = self.epoch

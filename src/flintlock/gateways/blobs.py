"""Where artifacts are stored, and how TaskManagers get them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from flintlock.model.ids import BlobKey


class BlobRange(Struct, frozen=True, kw_only=True):
    """A piece of a blob."""

    key: BlobKey
    offset: int = 0
    limit: int = 4 << 20


class BlobChunk(Struct, frozen=True, kw_only=True):
    """Bytes from the offset on; `size` is the blob's whole length."""

    data: bytes
    size: int


class BlobGateway(Protocol):
    """Serves the content of blobs. Raises NotFound."""

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a blob."""
        ...


class BlobCopies(Protocol):
    """Copies of blobs in a place that every JobManager reaches. All may read them; only the leader changes them.

    What is written is refused, as a whole, once a newer leader has begun: Fenced. Unavailable leaves open whether it
    took place, as with all stores.
    """

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        """Return a piece of a copy, as it lies there. Raises NotFound, Unavailable; Corrupt for a copy that is gone."""
        ...

    async def has(self, key: BlobKey) -> bool:
        """Return whether there is a copy. Raises Unavailable."""
        ...

    async def put(self, key: BlobKey, source: Path, *, size: int, stored_s: float) -> None:
        """Copy a file, in the place of a former copy; return once the copy is durable. Raises Unavailable, Fenced."""
        ...

    async def remove(self, key: BlobKey) -> None:
        """Remove a copy. Idempotent. Raises Unavailable, Fenced."""
        ...

    async def stored_before(self, limit_s: float, is_referenced: Callable[[BlobKey], bool]) -> tuple[BlobKey, ...]:
        """Return the blobs that were stored before then and are unreferenced. Raises Unavailable."""
        ...

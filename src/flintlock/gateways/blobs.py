"""Where artifacts are kept, and how TaskManagers get them."""

from __future__ import annotations

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

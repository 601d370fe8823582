"""A BlobServer in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Generator, Iterable
from contextlib import contextmanager

from flintlock.model.ids import BlobKey


class FakeBlobs:
    """Content in memory: what `rest` uploads to, and what a TaskManager's cache fetches from."""

    def __init__(self) -> None:
        self.content: dict[BlobKey, bytes] = {}
        self.pinned: list[tuple[BlobKey, ...]] = []  # the keys of every `pin`
        self.open_pins = 0  # how many of them are open
        self.abandoned: list[BlobKey] = []

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store content; an interrupted stream leaves nothing."""
        data = b"".join([piece async for piece in stream])
        key = BlobKey("sha256-" + hashlib.sha256(data).hexdigest())
        self.content[key] = data
        return key, len(data)

    async def abandon(self, keys: Collection[BlobKey]) -> None:
        """Record that no job will use these."""
        self.abandoned += keys

    async def size_of(self, key: BlobKey) -> int | None:
        """Return the size; None if it is not stored."""
        return len(self.content[key]) if key in self.content else None

    @contextmanager
    def pin(self, keys: Iterable[BlobKey]) -> Generator[None]:
        """Record that these are in use."""
        self.pinned.append(tuple(keys))
        self.open_pins += 1
        try:
            yield
        finally:
            self.open_pins -= 1

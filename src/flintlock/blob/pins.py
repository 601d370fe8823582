"""Blobs that are in use at present."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from flintlock.model.ids import BlobKey


class Pins:
    """Counts the users of blobs. Nothing here awaits."""

    def __init__(self) -> None:
        self._counts: Final[Counter[BlobKey]] = Counter()  # only what is pinned has an entry

    def __contains__(self, key: BlobKey) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._counts)

    @contextmanager
    def pin(self, keys: Iterable[BlobKey]) -> Generator[None]:
        """Pin these as long as the context lasts."""
        pinned = tuple(keys)
        self._counts.update(pinned)
        try:
            yield
        finally:
            self._counts.subtract(pinned)
            for key in pinned:
                if not self._counts[key]:
                    del self._counts[key]

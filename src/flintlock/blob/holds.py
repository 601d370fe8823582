"""Blobs that somebody is using just now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from flintlock.model.ids import BlobKey


class Holds:
    """Counts who holds what. Nothing here waits."""

    def __init__(self) -> None:
        self._counts: Final[Counter[BlobKey]] = Counter()  # only what is held has an entry

    def __contains__(self, key: BlobKey) -> bool:
        return key in self._counts

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._counts)

    @contextmanager
    def hold(self, keys: Iterable[BlobKey]) -> Generator[None]:
        """Hold these as long as the context lasts."""
        held = tuple(keys)
        self._counts.update(held)
        try:
            yield
        finally:
            self._counts.subtract(held)
            for key in held:
                if not self._counts[key]:
                    del self._counts[key]

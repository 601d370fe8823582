"""The blobs of ended jobs: they are stored for a while, up to a number of bytes, so that a job can be run again.

In memory, as all references are. A blob that another job refers to as well counts here, too: it is stored anyway, and
what is counted is at most what is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from flintlock.model.ids import BlobKey


class EndedJobBlobs:
    """Protects blobs from removal; the ones that were added first are given up first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: Final = max_bytes  # 0: nothing is protected
        self._blobs: Final[dict[BlobKey, tuple[int, float]]] = {}  # size, and since when; the oldest first
        self._bytes = 0

    def __contains__(self, key: BlobKey) -> bool:
        return key in self._blobs

    def add(self, key: BlobKey, size: int, now_s: float) -> Collection[BlobKey]:
        """Protect a blob from now on; return those that are no longer protected, itself if it is too large."""
        if self.max_bytes <= 0:
            return [key]
        self._drop(key)
        self._blobs[key] = (size, now_s)
        self._bytes += size
        gone: list[BlobKey] = []
        while self._bytes > self.max_bytes:
            oldest = next(iter(self._blobs))
            self._drop(oldest)
            gone.append(oldest)
        return gone

    def expire(self, limit_s: float) -> Collection[BlobKey]:
        """Stop protecting what was added before then; return which."""
        old = [key for key, (_, since_s) in self._blobs.items() if since_s < limit_s]
        for key in old:
            self._drop(key)
        return old

    def _drop(self, key: BlobKey) -> None:
        size, _ = self._blobs.pop(key, (0, 0.0))
        self._bytes -= size

"""What protects a blob from removal: jobs that refer to it, also ended ones, pins, and uploads without a job yet.

All of it is in memory: which job refers to what is read from the stored graphs when a term begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from flintlock.blob.ended_jobs import EndedJobBlobs
from flintlock.blob.pins import Pins
from flintlock.model.ids import BlobKey, JobId


class _Pending:
    """Uploads of one blob that no job refers to yet."""

    def __init__(self) -> None:
        self.uploads = 0
        self.since_s = 0.0  # the latest of them


class References:
    """Counts references. Nothing here awaits, so what is found to be referenced cannot be removed in between."""

    def __init__(self, ended_bytes: int = 0) -> None:
        self.ended: Final = EndedJobBlobs(ended_bytes)
        self._jobs: Final[dict[JobId, frozenset[BlobKey]]] = {}  # written by retain, release, retain_only
        self._users: Final[Counter[BlobKey]] = Counter()  # how many of these jobs refer to a blob
        self._pins: Final = Pins()
        self._pending: Final[dict[BlobKey, _Pending]] = {}  # filled by uploads, emptied by retain and expiry

    def is_referenced(self, key: BlobKey) -> bool:
        """Return whether anything protects the blob."""
        return self.is_in_use(key) or key in self.ended

    def is_in_use(self, key: BlobKey) -> bool:
        """Return whether anything but an ended job protects the blob."""
        return self._users[key] > 0 or key in self._pins or key in self._pending

    def uploaded(self, key: BlobKey, now_s: float) -> None:
        """Protect an upload until a job refers to it, or it expires."""
        pending = self._pending.setdefault(key, _Pending())
        pending.uploads += 1
        pending.since_s = now_s

    def expire(self, limit_s: float) -> None:
        """Drop uploads that came before then."""
        for key in [key for key, pending in self._pending.items() if pending.since_s < limit_s]:
            del self._pending[key]

    def pin(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Protect blobs as long as the context lasts."""
        return self._pins.pin(keys)

    def retain(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Protect blobs until the job is released; each consumes one upload. Idempotent."""
        before = self._jobs.get(job_id, frozenset())
        for key in frozenset(keys) - before:
            self._users[key] += 1
            self.consume_upload(key)
        if keys:
            self._jobs[job_id] = before | frozenset(keys)

    def release(self, job_id: JobId) -> frozenset[BlobKey]:
        """Remove a job; return what it referred to. Idempotent."""
        keys = self._jobs.pop(job_id, frozenset[BlobKey]())
        for key in keys:
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._users[key]
        return keys

    def restore(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Undo a release: what it should have removed still exists."""
        self.release(job_id)
        self._jobs[job_id] = frozenset(keys)
        self._users.update(self._jobs[job_id])

    def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """Replace all jobs by these. Uploads and pins stay."""
        self._jobs.clear()
        self._users.clear()
        for job_id, keys in jobs.items():
            if keys:
                self._jobs[job_id] = frozenset(keys)
                self._users.update(self._jobs[job_id])

    def consume_upload(self, key: BlobKey) -> None:
        """Drop one upload of the blob: a job refers to it, or none will."""
        pending = self._pending.get(key)
        if pending is not None:
            pending.uploads -= 1
            if pending.uploads == 0:
                del self._pending[key]

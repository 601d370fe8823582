"""What keeps a blob: jobs that refer to it, holds, and uploads that no job has taken up yet.

All of it lives in memory: which job refers to what is told anew by the stored graphs when a term begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from flintlock.blob.holds import Holds
from flintlock.model.ids import BlobKey, JobId


class _Waiting:
    """Uploads of one blob that no job has taken up yet."""

    def __init__(self) -> None:
        self.uploads = 0
        self.since_s = 0.0  # the latest of them


class References:
    """Counts who keeps what. Nothing here waits, so nobody can remove what was just found to be kept."""

    def __init__(self) -> None:
        self._jobs: Final[dict[JobId, frozenset[BlobKey]]] = {}  # written by retain, release, retain_only
        self._users: Final[Counter[BlobKey]] = Counter()  # how many of these jobs refer to a blob
        self._holds: Final = Holds()
        self._waiting: Final[dict[BlobKey, _Waiting]] = {}  # filled by uploads, emptied by retain and expiry

    def keeps(self, key: BlobKey) -> bool:
        """Tell whether anything keeps the blob."""
        return self._users[key] > 0 or key in self._holds or key in self._waiting

    def uploaded(self, key: BlobKey, now_s: float) -> None:
        """Keep an upload until a job takes it up, or it expires."""
        waiting = self._waiting.setdefault(key, _Waiting())
        waiting.uploads += 1
        waiting.since_s = now_s

    def expire(self, limit_s: float) -> None:
        """Give up uploads that came before then."""
        for key in [key for key, waiting in self._waiting.items() if waiting.since_s < limit_s]:
            del self._waiting[key]

    def hold(self, keys: Iterable[BlobKey]) -> AbstractContextManager[None]:
        """Keep blobs as long as the context lasts."""
        return self._holds.hold(keys)

    def retain(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Keep blobs until the job is released; each takes up one upload. Idempotent."""
        before = self._jobs.get(job_id, frozenset())
        for key in frozenset(keys) - before:
            self._users[key] += 1
            self.served(key)
        if keys:
            self._jobs[job_id] = before | frozenset(keys)

    def release(self, job_id: JobId) -> frozenset[BlobKey]:
        """Forget a job; return what it referred to. Idempotent."""
        keys = self._jobs.pop(job_id, frozenset[BlobKey]())
        for key in keys:
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._users[key]
        return keys

    def restore(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Take a release back: what it should remove is there still."""
        self.release(job_id)
        self._jobs[job_id] = frozenset(keys)
        self._users.update(self._jobs[job_id])

    def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        """These jobs are all there are. Uploads and holds stay."""
        self._jobs.clear()
        self._users.clear()
        for job_id, keys in jobs.items():
            if keys:
                self._jobs[job_id] = frozenset(keys)
                self._users.update(self._jobs[job_id])

    def served(self, key: BlobKey) -> None:
        """One upload of the blob has served its purpose: a job refers to it, or none will."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.uploads -= 1
            if waiting.uploads == 0:
                del self._waiting[key]

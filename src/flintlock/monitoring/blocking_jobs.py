"""Records of jobs that block the event loop of a leader, or end it by an internal error, for the leaders after it.

A record is a small file in the state directory, or what all JobManagers reach where they run on several hosts (a znode:
`ha.zookeeper.blocking_jobs`): it is written by a thread while one piece of work on the job takes too long, and removed
when the work ends. So a record that stays belongs to a JobManager
that died, or was replaced, while it worked on the job. A leader that an error of the job's own code in this process
ends (a broken invariant) writes one, too. Two of them are no coincidence: the next leader quarantines the job, instead
of being the third. A record also says which process blocks: a standby does not take that one for busy with a recovery.

Rejected: recording each job before it is initialised, and counting those whose record a dead leader left. A leader that
is killed for any other reason leaves such records of innocent jobs, and of all of them if it dies while it recovers.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from flintlock.model.ids import JobId, is_job_id


class BlockingJobRecords(Protocol):
    """The records of one cluster. Every method but `name` may block for a while: call it in a thread."""

    def name(self, job_id: JobId) -> str:
        """Return the name of a new record of a job."""
        ...

    def write(self, record: str) -> None:
        """Record that work on its job takes too long. Idempotent.

        Raises OSError; then the record may be there, or come later: it has to be removed all the same.
        """
        ...

    def remove(self, record: str) -> None:
        """Remove a record, if it is there: the work has ended. Raises OSError."""
        ...

    def lost_leaders(self, job_ids: Collection[JobId]) -> dict[JobId, int]:
        """Return how many leaders were lost while they worked on each of these jobs; remove the records of all others.

        Raises OSError.
        """
        ...


class BlockingJobs:
    """Implements BlockingJobRecords by files in a directory."""

    def __init__(self, directory: Path, process: str = "unknown") -> None:
        """`process` identifies this process among all that ever ran on its machine; it has no dot in it."""
        self._directory: Final = directory
        self._process: Final = process

    def name(self, job_id: JobId) -> str:
        """Return the name of a new record."""
        return f"{job_id}.{self._process}.{uuid.uuid4().hex}"

    def write(self, record: str) -> None:
        """Record that work on the job takes too long."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, record: str) -> None:
        """Remove a record: the work has ended."""
        (self._directory / record).unlink(missing_ok=True)

    def is_blocked(self, process: str) -> bool:
        """Return whether work on a job takes too long in this process. Raises OSError."""
        if not self._directory.is_dir():
            return False
        with os.scandir(self._directory) as entries:
            return any(entry.name.split(".")[1:2] == [process] for entry in entries)

    def lost_leaders(self, job_ids: Collection[JobId]) -> dict[JobId, int]:
        """Return how many leaders were lost while they worked on each of these jobs; remove all other records."""
        counts: Counter[JobId] = Counter()
        wanted = frozenset(job_ids)
        if not self._directory.is_dir():
            return {}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                job_id = JobId(entry.name.partition(".")[0])
                if job_id in wanted:
                    counts[job_id] += 1
                elif is_job_id(job_id):
                    Path(entry.path).unlink(missing_ok=True)
        return dict(counts)

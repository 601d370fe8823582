"""Records of jobs that block the event loop of a leader (`monitoring.blocking_jobs`), in ZooKeeper.

A leader whose loop stands still is on a host, or in a container, that its successor does not have: only what all
JobManagers reach can tell it. The threads of ZooKeeper's client go on while the loop stands still, so a record is one
znode that another thread has them write. No record is fenced: it is of use when its writer leads no more.

Rejected: files in the storage directory. It may be an object store, whose client is not to be used while a process is
about to end, and which has no bound on how long a write takes.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from typing import Final

from flintlock.ha.zookeeper.link import ZooKeeperLink
from flintlock.model.ids import JobId, is_job_id

ANSWER_LIMIT_S: Final = 0.5
"""How long a record may take: a thread that waits for it cannot end the process meanwhile."""

_READ_LIMIT_S: Final = 5.0


class ZooKeeperBlockingJobs:
    """Implements BlockingJobRecords."""

    def __init__(self, link: ZooKeeperLink, path: str) -> None:
        self._link: Final = link
        self._path: Final = path

    def name(self, job_id: JobId) -> str:
        """Return the name of a new record."""
        return f"{job_id}.{uuid.uuid4().hex}"

    def write(self, record: str) -> None:
        """Record that work on the job takes too long."""
        self._link.create_in_thread(f"{self._path}/{record}", ANSWER_LIMIT_S)

    def remove(self, record: str) -> None:
        """Remove a record."""
        self._link.delete_in_thread(f"{self._path}/{record}", ANSWER_LIMIT_S)

    def lost_leaders(self, job_ids: Collection[JobId]) -> dict[JobId, int]:
        """Return how many leaders were lost while they worked on each of these jobs; remove all other records."""
        wanted = frozenset(job_ids)
        counts: Counter[JobId] = Counter()
        for record in self._link.children_in_thread(self._path, _READ_LIMIT_S):
            job_id = JobId(record.partition(".")[0])
            if job_id in wanted:
                counts[job_id] += 1
            elif is_job_id(job_id):
                self._link.delete_in_thread(f"{self._path}/{record}", _READ_LIMIT_S)
        return dict(counts)

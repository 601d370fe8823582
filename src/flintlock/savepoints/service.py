"""The savepoints of one JobManager: in threads, on file systems that it reaches as directories."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flintlock.model.errors import Conflict, Forbidden
from flintlock.model.ids import TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.savepoints.checkpoints import local_path
from flintlock.savepoints.writing import savepoint_name, write_savepoint


class SavepointFiles:
    """Makes savepoints of the checkpoints below one directory."""

    def __init__(
        self,
        checkpoints_dir: str,
        savepoints_dir: str,
        *,
        spark: str,
        clock_ms: Callable[[], int],
        confined: bool = False,
    ) -> None:
        self._checkpoints_dir: Final = checkpoints_dir
        self._savepoints_dir: Final = savepoints_dir
        self._spark: Final = spark  # its version
        self._clock_ms: Final = clock_ms
        self._confined: Final = confined  # user code has a user of its own: this process writes nowhere else for it

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:
        """Make a savepoint. See dispatcher.services.Savepoints."""
        if job.job_type is not JobType.STREAMING:
            raise Conflict(f"job {job.job_id} is a batch job: only streaming jobs have savepoints")
        parent = self._parent(directory)
        checkpoints = local_path(self._checkpoints_dir, "state.checkpoints.dir") / job.job_id
        name, now_ms, unique = savepoint_name(job.job_id, trigger_id), self._clock_ms(), uuid.uuid4().hex[:12]

        def write() -> Path:
            return write_savepoint(
                job, checkpoints=checkpoints, parent=parent, name=name, spark=self._spark, now_ms=now_ms, unique=unique
            )

        return str(await asyncio.to_thread(write))

    def _parent(self, directory: str) -> Path:
        root = local_path(self._savepoints_dir, "state.savepoints.dir")
        if not directory:
            return root
        parent = local_path(directory, "the directory")
        if self._confined and not parent.resolve().is_relative_to(root.resolve()):
            raise Forbidden(
                f"{directory} is not below state.savepoints.dir ({root}): where jobs run as another user, savepoints"
                " are made only there"
            )
        return parent

"""The savepoints of one JobManager, made and restored: in threads, on file systems that it reaches as directories."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    CHECKPOINTS_DIR,
    RESTORE_CLAIM_MODE,
    RESTORE_IGNORE_UNCLAIMED,
    RESTORE_PATH,
    RESTORE_REWIND_SINKS,
    SAVEPOINTS_DIR,
)
from flintlock.model.errors import Conflict, Forbidden, Invalid, Refused, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.savepoints.checkpoints import local_path
from flintlock.savepoints.going_back import has_gone_on, way_back
from flintlock.savepoints.removing import check_removal, remove_savepoint
from flintlock.savepoints.restoring import Restore, check_restore, is_restored, restore_job
from flintlock.savepoints.writing import prepare_directory, savepoint_name, write_savepoint

T = TypeVar("T")


class SavepointFiles:
    """Makes savepoints of the checkpoints below one directory, and checkpoints of savepoints."""

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
        parent = self._allowed(directory or self._savepoints_dir, "the directory")
        checkpoints = self._checkpoints(job)
        name, now_ms, unique = savepoint_name(job.job_id, trigger_id), self._clock_ms(), uuid.uuid4().hex[:12]

        def write() -> Path:
            return write_savepoint(
                job, checkpoints=checkpoints, parent=parent, name=name, spark=self._spark, now_ms=now_ms, unique=unique
            )

        try:
            return str(await asyncio.to_thread(write))
        except (OSError, ValueError) as error:  # a file that cannot be synced, or has not the form that Spark writes
            raise Unavailable(f"the savepoint {parent / name} could not be made: {error}") from error

    async def check_disposal(self, path: str) -> str:
        """Check that there is a savepoint. See dispatcher.services.Savepoints."""
        return await self._check(partial(check_removal, self._allowed(path, "the savepoint")))

    async def dispose(self, path: str, identity: str) -> None:
        """Remove a savepoint. See dispatcher.services.Savepoints."""
        try:
            await asyncio.to_thread(remove_savepoint, self._allowed(path, "the savepoint"), identity)
        except OSError as error:
            raise Unavailable(f"the savepoint {path} cannot be removed: {error.strerror}") from error

    async def prepare(self, directory: str) -> None:
        """Check that savepoints can be made in a directory. See dispatcher.services.Savepoints."""
        local_path(self._checkpoints_dir, CHECKPOINTS_DIR.key)
        await asyncio.to_thread(prepare_directory, self._allowed(directory or self._savepoints_dir, "the directory"))

    async def check_restore(self, job: JobGraph) -> None:
        """Check that a job can be restored as it asks for. See dispatcher.services.Savepoints."""
        restore = self._restore_of(job)
        if restore is not None:
            if job.job_type is not JobType.STREAMING:
                raise Invalid(f"{RESTORE_PATH.key} is set, but only a streaming job begins from a savepoint")
            self._check_rewind(job)
            self._checkpoints(job)
            await self._check(lambda: check_restore(job, restore, self._spark))

    async def _check(self, check: Callable[[], T]) -> T:
        """Call a check that reads files. Raises what it raises, Unavailable in the place of OSError."""
        try:
            return await asyncio.to_thread(check)
        except OSError as error:
            raise Unavailable(f"the savepoint cannot be checked: {error.strerror}: {error.filename}") from error

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:
        """Return where a savepoint is, or will be. See dispatcher.services.Savepoints."""
        return str(self._allowed(self._savepoints_dir, "the directory") / savepoint_name(job.job_id, trigger_id))

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:
        """Check that a job can go on from where another one is. See dispatcher.services.Savepoints."""
        self._check_rewind(job)
        made = Path(await self.save(former, TriggerId(uuid.uuid4().hex), ""))
        try:
            restore = Restore(path=made, allow_unclaimed=Configuration(job.config).get(RESTORE_IGNORE_UNCLAIMED))
            await self._check(lambda: check_restore(job, restore, self._spark, stopped=True))
        finally:
            await asyncio.to_thread(remove_savepoint, made)

    async def way_back(self, job: JobGraph, former: JobGraph) -> str | None:
        """Return from where the former graph may run again. See dispatcher.services.Savepoints."""
        restore, checkpoints, unique = self._restore_of(job), self._checkpoints(job), uuid.uuid4().hex[:12]
        if restore is None:
            return None
        path = restore.path
        try:
            found = await asyncio.to_thread(
                lambda: way_back(job, former, savepoint=path, checkpoints=checkpoints, unique=unique)
            )
        except OSError as error:
            text = f"the way back from job {job.job_id} cannot be found: {error.strerror}: {error.filename}"
            raise Unavailable(text) from error
        return None if found is None else str(found)

    async def has_gone_on(self, job: JobGraph) -> bool:
        """Return whether a job has a batch after its savepoint. See dispatcher.services.Savepoints."""
        restore, checkpoints = self._restore_of(job), self._checkpoints(job)
        if restore is None:
            return False
        path = restore.path
        try:
            return await asyncio.to_thread(lambda: has_gone_on(job, savepoint=path, checkpoints=checkpoints))
        except OSError as error:
            text = f"the checkpoints of job {job.job_id} cannot be read: {error.strerror}: {error.filename}"
            raise Unavailable(text) from error

    async def is_restored(self, job: JobGraph) -> bool:
        """Return whether nothing is left to restore. See dispatcher.services.Savepoints."""
        # Without a look at the path of the savepoint: a job that is restored no longer needs it.
        if not job.config.get(RESTORE_PATH.key):
            return True
        return await asyncio.to_thread(is_restored, self._checkpoints(job))

    async def restore(self, job: JobGraph) -> None:
        """Make the checkpoints of a job from its savepoint. See dispatcher.services.Savepoints."""
        checkpoints, new_id = self._checkpoints(job), str(uuid.uuid4())

        def restore() -> None:
            found = self._restore_of(job)
            if found is not None and not is_restored(checkpoints):
                self._check_rewind(job)
                restore_job(job, found, checkpoints=checkpoints, new_id=new_id, spark=self._spark)

        try:
            await asyncio.to_thread(restore)
        except OSError as error:
            raise Unavailable(f"job {job.job_id} could not be restored: {error.strerror}: {error.filename}") from error

    async def abandon_restore(self, job: JobGraph) -> None:
        """Remove what has been restored. See dispatcher.services.Savepoints."""
        if job.config.get(RESTORE_PATH.key):
            with suppress(Refused):  # nothing is restored to another file system
                await asyncio.to_thread(shutil.rmtree, self._checkpoints(job), ignore_errors=True)

    def _restore_of(self, job: JobGraph) -> Restore | None:
        """Return what a job asks to be restored from; None if it starts from the beginning."""
        configuration = Configuration(job.config)
        path = configuration.get(RESTORE_PATH)
        if not path:
            return None
        return Restore(
            path=self._allowed(path, RESTORE_PATH.key),
            allow_unclaimed=configuration.get(RESTORE_IGNORE_UNCLAIMED),
            claim=configuration.get(RESTORE_CLAIM_MODE) == "CLAIM",
            rewind_sinks=configuration.get(RESTORE_REWIND_SINKS),
        )

    def _check_rewind(self, job: JobGraph) -> None:
        """Raise Forbidden if this process would move files in a directory that user code may change meanwhile."""
        if self._confined and Configuration(job.config).get(RESTORE_REWIND_SINKS):
            raise Forbidden(
                f"{RESTORE_REWIND_SINKS.key} is set: where jobs run as another user, the JobManager moves no files in"
                " their sinks. Choose another path for each sink that is ahead of the savepoint"
            )

    def _checkpoints(self, job: JobGraph) -> Path:
        return local_path(self._checkpoints_dir, CHECKPOINTS_DIR.key) / job.job_id

    def _allowed(self, directory: str, what: str) -> Path:
        """Return a directory for savepoints. Raises Refused if it is none of this machine, or not a permitted one."""
        path = local_path(directory, what)
        if not self._confined:
            return path
        root = local_path(self._savepoints_dir, SAVEPOINTS_DIR.key)
        try:
            is_below = path.resolve().is_relative_to(root.resolve())
        except (RuntimeError, ValueError) as error:  # a loop of symbolic links, or characters that no path has
            raise Refused(f"{what} {directory!r} leads to no directory: {error}") from error
        if not is_below:
            raise Forbidden(
                f"{directory} is not below state.savepoints.dir ({root}): where jobs run as another user, savepoints"
                " are made and read only there"
            )
        return path

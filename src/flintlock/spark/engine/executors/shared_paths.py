"""Finds local paths that executors on other machines do not see as this machine does, before a job uses them.

Executors write into their own file system, and the driver lists its own: what they write elsewhere looks like an output
without rows. So they are sent to write one file for each core into a hidden directory beside the output, and the files
are counted here. Of a source, one file is looked up by as many tasks, and those that find it are counted: a task that
failed would be repeated, and find it elsewhere. Spark distributes the tasks of an idle
application over all of its executors; a busy one may leave some executors out, and then the comparison after the work
(`runner.task_files`) notices what this test does not.

Only an answer that is certain counts: a directory that cannot be written to, or a file that is removed meanwhile, is
left to the job. What was confirmed is not tested again for as long as the engine runs. Paths of other file systems
(HDFS, object stores) are the same everywhere.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError

from flintlock.model.files.staging import PREFIX, is_data
from flintlock.spark.engine.publication.hadoop_files import FileFailure

#: `Failure.exception` of a job with a path that is not shared.
PATH_NOT_SHARED: Final = "PathNotShared"

#: How many tasks test a path at most.
MAX_TASKS: Final = 64

#: How many confirmed paths are remembered, and how many files of a source are looked at to find one with data.
MAX_REMEMBERED: Final = 10_000
MAX_VISITED: Final = 1_000

#: Writes a file with each task.
WRITE: Final = "INSERT OVERWRITE DIRECTORY '{place}' USING parquet SELECT id FROM range(0, {count}, 1, {count})"

#: Has a task look a file up. Spark reads no more than its length; a file that is not there has no row.
IGNORE_MISSING: Final = "SET spark.sql.files.ignoreMissingFiles=true"
LOOK_UP: Final = "SELECT length FROM binaryFile.`{file}`"

#: Fails if a task has not found it. Its error has the text.
MISSING: Final = "some executors do not find this file"
COUNT: Final = 'SELECT assert_true(count(*) >= {count}, "{missing}") FROM ({lookups})'
#: A path with one of these is a pattern.
_PATTERN: Final = frozenset("*?[]{}\\")


class LocalPaths(Protocol):
    """Knows which paths are local; `HadoopFiles` does."""

    def local_path(self, path: str) -> Path | None:
        """Return a path as the operating system knows it; None if it is on another file system."""
        ...


class SharedPaths:
    """The paths of one engine whose executors are elsewhere. Thread-safe."""

    def __init__(
        self,
        files: LocalPaths,
        run: Callable[..., None],
        tasks: Callable[[], int],
        *,
        errors: tuple[type[Exception], ...] = (Py4JJavaError,),
    ) -> None:
        """`run` runs queries in one session, on the executors, and may raise one of the `errors`.

        `tasks`: how many the executors run at once.
        """
        self._files: Final = files
        self._run: Final = run
        self._tasks: Final = tasks
        self._errors: Final = errors
        self._confirmed: Final[dict[Path, None]] = {}  # the oldest first

    def is_shared(self, directory: str) -> bool:
        """Return whether what executors write into a directory is there. Raises one of the errors of `run`."""
        place = self._files.local_path(directory)
        return place is None or self._writes_arrive(place)

    def find_unshared(self, targets: Iterable[str], sources: Iterable[str]) -> str | None:
        """Return the first path that executors do not share; None if there is none, as far as that can be known."""
        for target in targets:
            place = self._local(target)
            if place is not None and not self._accepts(nearest_directory(place)):
                return target
        for source in sources:
            place = None if _PATTERN & set(source) else self._local(source)
            if place is not None and not self._is_found(place):
                return source
        return None

    def _local(self, path: str) -> Path | None:
        try:
            return self._files.local_path(path)
        except FileFailure:
            return None  # only the job has the settings of that file system; it says why, if it cannot open it either

    def _accepts(self, directory: Path) -> bool:
        if directory in self._confirmed:
            return True
        try:
            return self._writes_arrive(directory)
        except self._errors:
            return True  # the job says why, if it cannot write there either

    def _writes_arrive(self, directory: Path) -> bool:
        place, count = directory / f"{PREFIX}shared-{uuid.uuid4().hex}", self._count()
        try:
            self._run(WRITE.format(place=_in_literal(f"file://{place}"), count=count))
            written = [file for file in place.iterdir() if is_data(file.name)] if place.is_dir() else []
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return len(written) >= count and self._confirm(directory)

    def _is_found(self, source: Path) -> bool:
        file = a_file_of(source)
        if file is None or source in self._confirmed or _PATTERN & set(str(file)):
            return True
        count, lookup = self._count(), LOOK_UP.format(file=f"file://{file}".replace("`", "``"))
        lookups = " UNION ALL ".join([lookup] * count)
        try:
            self._run(IGNORE_MISSING, COUNT.format(count=count, missing=MISSING, lookups=lookups))
        except self._errors as error:
            return not (MISSING in str(error) and file.exists())
        return self._confirm(source)

    def _count(self) -> int:
        return max(1, min(MAX_TASKS, self._tasks()))

    def _confirm(self, path: Path) -> bool:
        self._confirmed[path] = None
        while len(self._confirmed) > MAX_REMEMBERED:
            self._confirmed.pop(next(iter(self._confirmed)), None)
        return True


def nearest_directory(path: Path) -> Path:
    """Return the directory that a path is, or the nearest one above it that exists."""
    return next((place for place in (path, *path.parents) if place.is_dir()), Path("/"))


def a_file_of(source: Path) -> Path | None:
    """Return a file with data that a source is, or has; None if none is found soon."""
    if source.is_file():
        return source
    visited = 0
    for directory, names, files in os.walk(source):
        names[:] = sorted(name for name in names if is_data(name))
        for name in sorted(files):
            visited += 1
            if is_data(name):
                return Path(directory) / name
        if visited > MAX_VISITED:
            return None
    return None


def not_shared(master: str, path: str) -> str:
    """Return the text for a source or sink that executors see elsewhere than this machine."""
    return (
        f"the executors of {master} do not see {path} as this machine does: it must be on a file system that all"
        " machines share, at the same path"
    )


def _in_literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")

"""Publication through Hadoop's file systems: file by file, in the order of `publish_steps`.

All of it can be repeated: a publication that was interrupted anywhere, or is done by two processes at once, ends with
the same files. A move is a rename, and only if that fails the reason is determined: a target that exists already and
has the source's length is that file, moved by another process.

Rejected: `fs.rename` of whole directories (readers would see the old or the new, but a second run would nest them);
recursive deletes of a target (one late repetition would remove what others published since).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from py4j.protocol import Py4JJavaError

from flintlock.spark.engine.messages import Publish
from flintlock.spark.engine.metrics import JavaObject
from flintlock.spark.engine.publication.hadoop_files import FileFailure, HadoopFiles, is_a, with_path
from flintlock.spark.engine.publication.publish_steps import publish_steps, step_count

#: The longest time between two progress reports of a publication, as long as it advances.
PROGRESS_INTERVAL_S: Final = 0.2


def publish(files: HadoopFiles, order: Publish, report: Callable[[int, int], None], stopped: Callable[[], bool]) -> int:
    """Publish, reporting (done, total) periodically and before a failure; return the total. May be repeated.

    Raises:
        FileFailure: A file is neither at its source nor at its target, a file system refused, or it was stopped.
    """
    total, done, reported_s = step_count(order), 0, time.monotonic()
    try:
        for _ in publish_steps(order, HadoopPublication(files)):
            done += 1
            if stopped():
                raise FileFailure("the publication was stopped")
            if done.bit_count() == 1 or time.monotonic() - reported_s > PROGRESS_INTERVAL_S:  # 1, 2, 4, 8 … files
                reported_s = time.monotonic()
                report(done, total)
    except FileFailure:
        report(done, total)
        raise
    return total


class HadoopPublication:
    """The file operations of one publication; satisfies `PublishedFiles`. Each raises FileFailure with the path."""

    def __init__(self, files: HadoopFiles) -> None:
        self._files: Final = files
        self._made: Final[set[str]] = set()  # directories that need not be made again

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""

        def act() -> bool:
            fs, place = self._files.open_path(path)
            return bool(fs.exists(place))

        return with_path(path, "find", act)

    def move(self, source: str, target: str) -> None:
        """Move a file. One that is neither at its source nor at its target is a failure."""
        with_path(source, f"move to {target}", lambda: self._move(source, target))

    def remove(self, path: str) -> None:
        """Remove a file."""

        def act() -> None:
            fs, place = self._files.open_path(path)
            if not fs.delete(place, False) and fs.exists(place):
                raise FileFailure(f"cannot remove {path}: the file system refuses")

        with_path(path, "remove", act)

    def mark(self, path: str) -> None:
        """Make an empty file."""

        def act() -> None:
            fs, place = self._files.open_path(path)
            fs.create(place, True).close()

        with_path(path, "create", act)

    def sync(self, directories: Iterable[str], files: Iterable[str] = ()) -> None:
        """Make local directories and files durable."""
        self._files.sync(directories, files)

    def remove_staging(self, path: str) -> None:
        """Remove a staging directory with its directories, unless a file is left there: that is not ours."""

        def act() -> None:
            fs, place = self._files.open_path(path)
            if fs.exists(place) and not self._files.names_below(fs, place):
                fs.delete(place, True)

        with_path(path, "clean up", act)

    def remove_empty(self, path: str) -> None:
        """Remove a directory if it is empty."""

        def act() -> None:
            fs, place = self._files.open_path(path)
            try:
                if not fs.listStatusIterator(place).hasNext():
                    fs.delete(place, False)
            except Py4JJavaError as error:
                if not is_a(error, "java.io.IOException"):
                    raise
                # Gone, or no longer empty: files of others stay.

        with_path(path, "clean up", act)

    def _move(self, source: str, target: str) -> None:
        fs, there = self._files.open_path(source)
        _, here = self._files.open_path(target)
        directory = target.rpartition("/")[0]
        if directory not in self._made:
            fs.mkdirs(here.getParent())
            self._made.add(directory)
        if _rename(fs, there, here):
            return
        length, arrived = _length(fs, there), _length(fs, here)
        if length is None and arrived is None:
            raise FileFailure(f"{source} is gone and was not moved to {target}: neither file exists", permanent=True)
        if length is None:
            return  # moved already
        if length == arrived:
            # A copy was interrupted before it removed its source, or another process has moved it.
            fs.delete(there, False)
            return
        if arrived is not None:
            fs.delete(here, False)  # a copy was interrupted; its source is complete
        if arrived is None or not _rename(fs, there, here):
            raise FileFailure(f"cannot move {source} to {target}: the file system refuses")


def _rename(fs: JavaObject, there: JavaObject, here: JavaObject) -> bool:
    """Return whether it was moved; a missing source or existing target is an exception in some file systems."""
    try:
        return bool(fs.rename(there, here))
    except Py4JJavaError as error:
        if is_a(error, "java.io.FileNotFoundException", "org.apache.hadoop.fs.FileAlreadyExistsException"):
            return False
        raise


def _length(fs: JavaObject, place: JavaObject) -> int | None:
    """Return a file's length, or None if it does not exist."""
    try:
        return int(fs.getFileStatus(place).getLen())
    except Py4JJavaError as error:
        if is_a(error, "java.io.FileNotFoundException"):
            return None
        raise

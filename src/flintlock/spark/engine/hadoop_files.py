"""Files of users and of Flintlock, through Hadoop's file systems in the engine's JVM.

Any path that Spark can write, with its schemes and its credentials, can be listed, published and removed here. All of
it is done file by file and can be repeated: a publication that was interrupted anywhere, or is done by two processes at
once, ends with the same files. A move is a rename, and only if that fails the reason is determined: a target that
exists already and has the source's length is that file, moved by another process.

Every call into the JVM is a round trip, and so is each part of a class's name: classes are resolved once, and a listing
is transferred as one text.

Rejected: `fs.rename` of whole directories (readers would see the old or the new, but a second run would nest them);
recursive deletes of a target (one late repetition would remove what others published since).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from flintlock.model.errors import Refused
from flintlock.model.staging import ANY_ATTEMPT, PREFIX
from flintlock.spark.engine.messages import Publish
from flintlock.spark.engine.metrics import JavaObject
from flintlock.spark.engine.publish_plan import FileListing

#: The longest time between two progress reports of a publication, as long as it advances.
PROGRESS_INTERVAL_S: Final = 0.2

#: Separates the names of a listing: the one character that no file system allows in a name.
_SEPARATOR: Final = "\0"


#: What Hadoop's globs give a meaning to.
_GLOB_CHARACTERS: Final = frozenset("\\*?[]{}")


class FileFailure(Exception):
    """A file system operation failed: the message names the file and the reason."""


#: What a file system raises for a directory that cannot exist: no file system of that scheme, no such bucket.
_NO_SUCH_PLACE: Final = (
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
    "org.apache.hadoop.fs.s3a.UnknownStoreException",
    "java.io.FileNotFoundException",
)


class HadoopFiles:
    """The file systems of the engine's Hadoop configuration. Thread-safe."""

    def __init__(self, jvm: JavaObject, configuration: JavaObject, work_root: str) -> None:
        self._configuration: Final = configuration
        self._work_root: Final = work_root
        self._systems: Final[dict[tuple[str, str], JavaObject]] = {}  # by scheme and authority; Hadoop caches them, too
        self._path: Final = jvm.org.apache.hadoop.fs.Path
        self._leaves: Final = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().listLeafStatuses
        self._to_list: Final = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList
        self._to_scala: Final = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._status: Final = jvm.scala.reflect.ClassTag.apply(
            jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
        )
        self._to_paths: Final = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths
        self._wrapped: Final = getattr(getattr(jvm.scala, "Predef$"), "MODULE$").genericWrapArray

    def list_files(self, path: str, *, with_size: bool = False) -> FileListing:
        """Return the files below a path; for a path that is a file, that file.

        Raises:
            FileFailure: The file system cannot be reached or denies access.
        """

        def act() -> FileListing:
            fs, root = self._open(path)
            try:
                files = self._names_below(fs, root)
                size = int(fs.getContentSummary(root).getLength()) if with_size else 0
            except Py4JJavaError as error:
                if _is(error, "java.io.FileNotFoundException"):
                    return FileListing(exists=False)
                raise
            return FileListing(files=files, size=size)

        return _with_path(path, "list", act)

    def publish(self, order: Publish, report: Callable[[int, int], None]) -> int:
        """Publish, reporting (done, total) periodically; return the total. Repeating it is harmless.

        Raises:
            FileFailure: A file is neither at its source nor at its target, or a file system refused.
        """
        total = len(order.moves) + len(order.removes) + len(order.success_markers)
        done = 0
        reported_s = time.monotonic()
        made: set[str] = set()  # directories

        def step(path: str, verb: str, act: Callable[[], None]) -> None:
            nonlocal done, reported_s
            _with_path(path, verb, act)
            done += 1
            if done.bit_count() == 1 or time.monotonic() - reported_s > PROGRESS_INTERVAL_S:  # 1, 2, 4, 8 … files
                reported_s = time.monotonic()
                report(done, total)

        for move in order.moves:
            step(move.source, f"move to {move.target}", lambda move=move: self._move(move.source, move.target, made))
        for path in order.removes:
            step(path, "remove", lambda path=path: self._remove(path))
        for path in order.success_markers:
            step(path, "create", lambda path=path: self._mark(path))
        for path in order.staging_dirs:
            _with_path(path, "clean up", lambda path=path: self._drop_staging(path))
        for path in order.left_dirs:
            _with_path(path, "clean up", lambda path=path: self._drop_empty(path))
        return total

    def remove_tree(self, path: str) -> None:
        """Remove a directory that is Flintlock's own, or all staging directories of a pattern. Idempotent.

        One that cannot exist, because there is no such file system or bucket, counts as removed.

        Raises:
            Refused: The directory is neither named `.flintlock-*` nor below the work directory.
            FileFailure: The file system refuses.
        """
        if not self._is_own(path):
            raise Refused(
                f"{path} is not Flintlock's own: only directories named {PREFIX}* and those below "
                f"{self._work_root or 'a work directory (none is set)'} are removed"
            )

        def act() -> None:
            try:
                fs, root = self._open(path)
                places = self._staging_matching(fs, path) if path.endswith(ANY_ATTEMPT) else [root]
                for place in places:
                    if not fs.delete(place, True) and fs.exists(place):
                        raise FileFailure(f"cannot remove {place.toString()}: the file system refuses")
            except Py4JJavaError as error:
                if not _is(error, *_NO_SUCH_PLACE):
                    raise

        _with_path(path, "remove", act)

    def _staging_matching(self, fs: JavaObject, pattern: str) -> list[JavaObject]:
        """Return the directories that a pattern of `model.staging` names. Only its last character is a wildcard."""
        escaped = "".join(f"\\{char}" if char in _GLOB_CHARACTERS else char for char in pattern[:-1])
        found = fs.globStatus(self._path(f"{escaped}*"))
        return [] if found is None else [status.getPath() for status in found]

    def _is_own(self, path: str) -> bool:
        """Decide by the name alone; a path with `.` or `..` in it cannot be judged by its name."""
        parts = path.rstrip("/").split("/")
        if ".." in parts or "." in parts:
            return False
        if parts[-1].startswith(PREFIX):
            return True
        if not self._work_root:
            return False

        def qualified(text: str) -> str:
            fs, place = self._open(text)
            return str(fs.makeQualified(place).toString()).rstrip("/")

        return _with_path(path, "find", lambda: qualified(path).startswith(f"{qualified(self._work_root)}/"))

    def _open(self, path: str) -> tuple[JavaObject, JavaObject]:
        if not path:
            raise FileFailure("a path is empty")
        place = self._path(path)
        root = urlsplit(path)[:2]  # scheme and authority
        system = self._systems.get(root)
        if system is None:
            system = self._systems[root] = place.getFileSystem(self._configuration)
        return system, place

    def _names_below(self, fs: JavaObject, root: JavaObject) -> tuple[str, ...]:
        """Return the files below a directory, relative to it; for a file, its name. Raises Py4JJavaError."""
        if str(fs.getScheme()) == "file":
            # The file system's own listing reads permissions, and Hadoop starts a process for those of each local file.
            statuses = self._leaves(fs, root)
        else:  # an object store lists all directories as one
            statuses = self._to_scala(self._to_list(fs.listFiles(root, True)))
        found = str(self._wrapped(self._to_paths(statuses.toArray(self._status))).mkString(_SEPARATOR))
        base = str(fs.getFileStatus(root).getPath().toString()).rstrip("/")
        full = found.split(_SEPARATOR) if found else []
        return tuple(sorted(name[len(base) + 1 :] if name != base else name.rpartition("/")[2] for name in full))

    def _length(self, fs: JavaObject, place: JavaObject) -> int | None:
        """Return a file's length, or None if it does not exist."""
        try:
            return int(fs.getFileStatus(place).getLen())
        except Py4JJavaError as error:
            if _is(error, "java.io.FileNotFoundException"):
                return None
            raise

    def _move(self, source: str, target: str, made: set[str]) -> None:
        fs, there = self._open(source)
        here = self._path(target)
        directory = target.rpartition("/")[0]
        if directory not in made:
            fs.mkdirs(here.getParent())
            made.add(directory)
        if self._rename(fs, there, here):
            return
        length, arrived = self._length(fs, there), self._length(fs, here)
        if length is None and arrived is None:
            raise FileFailure(f"{source} is gone and was not moved to {target}: neither file exists")
        if length is None:
            return  # moved already
        if length == arrived:
            fs.delete(
                there, False
            )  # a copy was interrupted before it removed its source, or another process has moved it
            return
        if arrived is not None:
            fs.delete(here, False)  # a copy was interrupted; its source is complete
        if arrived is None or not self._rename(fs, there, here):
            raise FileFailure(f"cannot move {source} to {target}: the file system refuses")

    def _rename(self, fs: JavaObject, there: JavaObject, here: JavaObject) -> bool:
        """Return whether it was moved; a missing source or existing target is an exception in some file systems."""
        try:
            return bool(fs.rename(there, here))
        except Py4JJavaError as error:
            if _is(error, "java.io.FileNotFoundException", "org.apache.hadoop.fs.FileAlreadyExistsException"):
                return False
            raise

    def _remove(self, path: str) -> None:
        fs, place = self._open(path)
        if not fs.delete(place, False) and fs.exists(place):
            raise FileFailure(f"cannot remove {path}: the file system refuses")

    def _mark(self, path: str) -> None:
        fs, place = self._open(path)
        fs.create(place, True).close()

    def _drop_staging(self, path: str) -> None:
        """Remove a staging directory with its directories, unless a file is left there: that is not ours."""
        fs, place = self._open(path)
        if fs.exists(place) and not self._names_below(fs, place):
            fs.delete(place, True)

    def _drop_empty(self, path: str) -> None:
        """Remove a directory if it is empty."""
        fs, place = self._open(path)
        try:
            if not fs.listStatusIterator(place).hasNext():
                fs.delete(place, False)
        except Py4JJavaError as error:
            if not _is(error, "java.io.IOException"):
                raise
            # Gone, or no longer empty: files of others stay.


def _with_path(path: str, verb: str, act: Callable[[], Any]) -> Any:
    """Call `act`; add the path to an error of the JVM."""
    try:
        return act()
    except Py4JJavaError as error:
        cause = error.java_exception
        raise FileFailure(f"cannot {verb} {path}: {cause.getClass().getSimpleName()}: {cause.getMessage()}") from error


def _is(error: Py4JJavaError, *class_names: str) -> bool:
    """Return whether the exception is of one of these classes, or of one derived from them."""
    kind = cast("JavaObject", error.java_exception).getClass()
    while kind is not None:
        if kind.getName() in class_names:
            return True
        kind = kind.getSuperclass()
    return False

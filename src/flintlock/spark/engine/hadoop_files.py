"""Files of users and of Flintlock, through Hadoop's file systems in the engine's JVM.

Whatever path Spark can write, with its schemes and its credentials, can be listed, published and removed here. All of
it is done file by file and can be done again: a publication that was interrupted anywhere, or is done by two at once,
ends with the same files. A move is a rename, and only where that fails is looked why: a target that is there already
and has the source's length is that file, moved by somebody else a moment ago.

Every call into the JVM is a round trip, and so is each part of a class's name: classes are looked up once, and a
listing comes as one text.

Rejected: `fs.rename` of whole directories (readers would see the old or the new, but a second run would nest them);
recursive deletes of a target (one late repetition would remove what others published since).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from flintlock.model.errors import Refused
from flintlock.model.staging import PREFIX
from flintlock.spark.engine.messages import Publish
from flintlock.spark.engine.publish_plan import Listing

#: An object of the JVM; py4j has no types for them.
Java: TypeAlias = Any

#: How long a publication goes on without telling how far it is.
TELL_S: Final = 0.2

#: Stands between the names of a listing: the one character that no file system allows in a name.
_SEPARATOR: Final = "\0"


class FileFailure(Exception):
    """A file system refused: the message names the file and says what happened."""


class HadoopFiles:
    """The file systems that the engine's Hadoop configuration knows. Any thread may use it."""

    def __init__(self, jvm: Java, configuration: Java, work_root: str) -> None:
        self._configuration: Final = configuration
        self._work_root: Final = work_root
        self._systems: Final[dict[tuple[str, str], Java]] = {}  # by scheme and authority; Hadoop keeps them, too
        self._path: Final = jvm.org.apache.hadoop.fs.Path
        self._leaves: Final = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().listLeafStatuses
        self._to_list: Final = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList
        self._to_scala: Final = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._status: Final = jvm.scala.reflect.ClassTag.apply(
            jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
        )
        self._to_paths: Final = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths
        self._wrapped: Final = getattr(getattr(jvm.scala, "Predef$"), "MODULE$").genericWrapArray

    def list_files(self, path: str, *, weigh: bool = False) -> Listing:
        """Return what is below a path; a path that is a file is its own only one.

        Raises:
            FileFailure: The file system cannot be reached or does not let us look.
        """

        def act() -> Listing:
            fs, root = self._open(path)
            try:
                files = self._names_below(fs, root)
                size = int(fs.getContentSummary(root).getLength()) if weigh else 0
            except Py4JJavaError as error:
                if _is(error, "java.io.FileNotFoundException"):
                    return Listing(exists=False)
                raise
            return Listing(files=files, size=size)

        return _naming(path, "list", act)

    def publish(self, order: Publish, tell: Callable[[int, int], None]) -> int:
        """Do what is ordered, telling (done, total) now and then; return the total. Doing it again is harmless.

        Raises:
            FileFailure: A file is neither at its source nor at its target, or a file system refused.
        """
        total = len(order.moves) + len(order.removes) + len(order.success_markers)
        done = 0
        told_s = time.monotonic()
        made: set[str] = set()  # directories

        def step(path: str, verb: str, act: Callable[[], None]) -> None:
            nonlocal done, told_s
            _naming(path, verb, act)
            done += 1
            if done.bit_count() == 1 or time.monotonic() - told_s > TELL_S:  # 1, 2, 4, 8 … files
                told_s = time.monotonic()
                tell(done, total)

        for move in order.moves:
            step(move.source, f"move to {move.target}", lambda move=move: self._move(move.source, move.target, made))
        for path in order.removes:
            step(path, "remove", lambda path=path: self._remove(path))
        for path in order.success_markers:
            step(path, "create", lambda path=path: self._mark(path))
        for path in order.staging_dirs:
            _naming(path, "clean up", lambda path=path: self._drop_staging(path))
        for path in order.left_dirs:
            _naming(path, "clean up", lambda path=path: self._drop_empty(path))
        return total

    def remove_tree(self, path: str) -> None:
        """Remove a directory of Flintlock's own with all that is in it. Idempotent.

        Raises:
            Refused: The directory is neither named `.flintlock-*` nor below the work directory.
            FileFailure: The file system refused.
        """
        if not self._is_own(path):
            raise Refused(
                f"{path} is not Flintlock's own: only directories named {PREFIX}* and those below "
                f"{self._work_root or 'a work directory (none is set)'} are removed"
            )

        def act() -> None:
            fs, root = self._open(path)
            if not fs.delete(root, True) and fs.exists(root):
                raise FileFailure(f"cannot remove {path}: the file system refuses")

        _naming(path, "remove", act)

    def _is_own(self, path: str) -> bool:
        """Tell by the name alone; a path that leads upwards anywhere says nothing by its name."""
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

        return _naming(path, "find", lambda: qualified(path).startswith(f"{qualified(self._work_root)}/"))

    def _open(self, path: str) -> tuple[Java, Java]:
        if not path:
            raise FileFailure("a path is empty")
        place = self._path(path)
        root = urlsplit(path)[:2]  # scheme and authority
        system = self._systems.get(root)
        if system is None:
            system = self._systems[root] = place.getFileSystem(self._configuration)
        return system, place

    def _names_below(self, fs: Java, root: Java) -> tuple[str, ...]:
        """Return the files below a directory by their names from there; of a file, its own. Raises Py4JJavaError."""
        if str(fs.getScheme()) == "file":
            # The file system's own way asks for permissions, and Hadoop starts a process for those of each local file.
            statuses = self._leaves(fs, root)
        else:  # an object store lists all directories as one
            statuses = self._to_scala(self._to_list(fs.listFiles(root, True)))
        found = str(self._wrapped(self._to_paths(statuses.toArray(self._status))).mkString(_SEPARATOR))
        base = str(fs.getFileStatus(root).getPath().toString()).rstrip("/")
        full = found.split(_SEPARATOR) if found else []
        return tuple(sorted(name[len(base) + 1 :] if name != base else name.rpartition("/")[2] for name in full))

    def _length(self, fs: Java, place: Java) -> int | None:
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
            fs.delete(there, False)  # a copy was cut short of removing its source, or somebody moved it just now
            return
        if arrived is not None:
            fs.delete(here, False)  # a copy was cut short; its source is whole
        if arrived is None or not self._rename(fs, there, here):
            raise FileFailure(f"cannot move {source} to {target}: the file system refuses")

    def _rename(self, fs: Java, there: Java, here: Java) -> bool:
        """Tell whether it was moved; a file that is gone, or there already, is an error to some file systems only."""
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
        """Remove a staging directory with those in it, unless a file is left there, which is not ours."""
        fs, place = self._open(path)
        if fs.exists(place) and not self._names_below(fs, place):
            fs.delete(place, True)

    def _drop_empty(self, path: str) -> None:
        """Remove a directory if nothing is in it."""
        fs, place = self._open(path)
        try:
            if not fs.listStatusIterator(place).hasNext():
                fs.delete(place, False)
        except Py4JJavaError as error:
            if not _is(error, "java.io.IOException"):
                raise
            # Gone, or no longer empty: somebody else's files may stay.


def _naming(path: str, verb: str, act: Callable[[], Any]) -> Any:
    """Do it; say of an error of the JVM which file it was about."""
    try:
        return act()
    except Py4JJavaError as error:
        cause = error.java_exception
        raise FileFailure(f"cannot {verb} {path}: {cause.getClass().getSimpleName()}: {cause.getMessage()}") from error


def _is(error: Py4JJavaError, *class_names: str) -> bool:
    """Tell whether the exception is of one of these classes, or of one derived from them."""
    kind = cast("Java", error.java_exception).getClass()
    while kind is not None:
        if kind.getName() in class_names:
            return True
        kind = kind.getSuperclass()
    return False

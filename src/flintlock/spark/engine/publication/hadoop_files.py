"""Files of users and of Flintlock, through Hadoop's file systems in the engine's JVM.

Any path that Spark can write, with its schemes and its credentials, can be listed and removed here, and published by
`hadoop_publication`.

Every call into the JVM is a round trip, and so is each part of a class's name: classes are resolved once, and a listing
is transferred as one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError

from flintlock.model.errors import Refused
from flintlock.model.files.staging import ANY_ATTEMPT, PREFIX
from flintlock.spark.engine.metrics import JavaObject
from flintlock.spark.engine.publication.local_files import LocalFiles
from flintlock.spark.engine.publication.publish_plan import FileListing

#: Separates the names of a listing: the one character that no file system allows in a name.
_SEPARATOR: Final = "\0"

#: Scheme and authority of a path.
_ROOT: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")

T = TypeVar("T")


#: Exceptions that do not pass by themselves.
_PERMANENT: Final = (
    "org.apache.hadoop.security.AccessControlException",
    "java.nio.file.AccessDeniedException",
    "java.nio.file.ReadOnlyFileSystemException",
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
)


#: What Hadoop's globs give a meaning to.
_GLOB_CHARACTERS: Final = frozenset("\\*?[]{}")


class FileFailure(Exception):
    """A file system operation failed: the message names the file and the reason.

    `permanent`: its kind does not pass by itself.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent: Final = permanent


#: What a file system raises for a directory that cannot exist: no file system of that scheme, no such bucket.
_NO_SUCH_PLACE: Final = (
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
    "org.apache.hadoop.fs.s3a.UnknownStoreException",
    "java.io.FileNotFoundException",
)


class HadoopFiles:
    """The file systems of the engine's Hadoop configuration. Thread-safe."""

    def __init__(
        self,
        jvm: JavaObject,
        configuration: JavaObject,
        work_root: str,
        *,
        checkpoint_root: str = "",
        sync_files: bool = True,
    ) -> None:
        self._configuration: Final = configuration
        self._local: Final = LocalFiles() if sync_files else None  # makes local files durable
        self._roots: Final = tuple(filter(None, (work_root, checkpoint_root)))
        self._systems: Final[dict[tuple[str, str], JavaObject]] = {}  # by scheme and authority; Hadoop caches them, too
        self._schemes: Final[dict[tuple[str, str], str]] = {}  # of those
        self._path: Final = jvm.org.apache.hadoop.fs.Path
        self._leaves: Final = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().listLeafStatuses
        self._to_list: Final = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList
        self._to_scala: Final = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._status: Final = jvm.scala.reflect.ClassTag.apply(
            jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
        )
        self._to_paths: Final = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths
        self._wrapped: Final = getattr(getattr(jvm.scala, "Predef$"), "MODULE$").genericWrapArray

    def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> FileListing:
        """Return the files below a path; for a path that is a file, that file.

        `durable`: local files are made durable first, unless that is switched off.

        Raises:
            FileFailure: The file system cannot be reached or denies access.
        """

        def act() -> FileListing:
            fs, root = self.open_path(path)
            if durable and self._local is not None:
                self._sync_tree(self._local, path)
            try:
                statuses = self._statuses_below(fs, root)
                paths = self._paths_of(fs, root, statuses)
                sizes = self._sizes_of(fs, statuses, paths) if with_sizes else {}
            except Py4JJavaError as error:
                if is_a(error, "java.io.FileNotFoundException"):
                    return FileListing(exists=False)
                raise
            names = tuple(sorted(sizes if with_sizes else paths))
            return FileListing(files=names, sizes=tuple(sizes[name] for name in names) if with_sizes else ())

        return with_path(path, "list", act)

    def make_durable(self, path: str) -> None:
        """Make all files below a path durable, with the directories that lead to them, if they are local.

        Raises:
            FileFailure: A file system refuses.
        """
        if self._local is not None:
            self._sync_tree(self._local, path)

    def sync(self, directories: Iterable[str], files: Iterable[str] = ()) -> None:
        """Make the names in directories and the content of files durable where they are local.

        Raises:
            FileFailure: A file system refuses.
        """
        local = self._local
        if local is None:
            return
        places = [
            [place for path in paths if (place := self.local_path(path)) is not None] for paths in (directories, files)
        ]
        _with_errno(lambda: local.sync(*places))

    def _sync_tree(self, local: LocalFiles, path: str) -> None:
        place = self.local_path(path)
        if place is not None:
            _with_errno(lambda: local.sync_tree(place))

    def local_path(self, path: str) -> Path | None:
        """Return a path as the operating system knows it; None if it is on another file system."""

        def act() -> Path | None:
            root, plain = urlsplit(path)[:2], _ROOT.sub("", path)
            scheme = self._schemes.get(root)
            if scheme is None:
                scheme = self._schemes[root] = str(self.open_path(path)[0].getScheme())
            if scheme != "file":
                return None
            if not plain.startswith("/"):
                fs, place = self.open_path(path)
                plain = str(fs.makeQualified(place).toUri().getPath())
            return Path(plain)

        return with_path(path, "find", act)

    def remove_tree(self, path: str) -> None:
        """Remove a directory that is Flintlock's own, or all staging directories of a pattern. Idempotent.

        One that cannot exist, because there is no such file system or bucket, counts as removed.

        Raises:
            Refused: The directory is neither named `.flintlock-*` nor below the directory of work or of checkpoints.
            FileFailure: The file system refuses.
        """
        if not self._is_own(path):
            raise Refused(
                f"{path} is not Flintlock's own: only directories named {PREFIX}* and those below "
                f"{' or '.join(self._roots) or 'a work directory (none is set)'} are removed"
            )

        def act() -> None:
            try:
                fs, root = self.open_path(path)
                places = self._staging_matching(fs, path) if path.endswith(ANY_ATTEMPT) else [root]
                for place in places:
                    if not fs.delete(place, True) and fs.exists(place):
                        raise FileFailure(f"cannot remove {place.toString()}: the file system refuses")
            except Py4JJavaError as error:
                if not is_a(error, *_NO_SUCH_PLACE):
                    raise

        with_path(path, "remove", act)

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
        if not self._roots:
            return False

        def qualified(text: str) -> str:
            fs, place = self.open_path(text)
            return str(fs.makeQualified(place).toString()).rstrip("/")

        def is_below_a_root() -> bool:
            place = qualified(path)
            return any(place.startswith(f"{qualified(root)}/") for root in self._roots)

        return with_path(path, "find", is_below_a_root)

    def open_path(self, path: str) -> tuple[JavaObject, JavaObject]:
        """Return the file system of a path, and the path as Hadoop knows it. Raises FileFailure, Py4JJavaError."""
        if not path:
            raise FileFailure("a path is empty")
        place = self._path(path)
        root = urlsplit(path)[:2]  # scheme and authority
        system = self._systems.get(root)
        if system is None:
            system = self._systems[root] = place.getFileSystem(self._configuration)
        return system, place

    def names_below(self, fs: JavaObject, root: JavaObject) -> tuple[str, ...]:
        """Return the files below a directory, relative to it; for a file, its name. Raises Py4JJavaError."""
        return tuple(self._paths_of(fs, root, self._statuses_below(fs, root)))

    def _statuses_below(self, fs: JavaObject, root: JavaObject) -> JavaObject:
        """Return the statuses of the files below a directory, as a Scala sequence. Raises Py4JJavaError."""
        if str(fs.getScheme()) == "file":
            # The file system's own listing reads permissions, and Hadoop starts a process for those of each local file.
            return self._leaves(fs, root)
        return self._to_scala(self._to_list(fs.listFiles(root, True)))  # an object store lists all directories as one

    def _paths_of(self, fs: JavaObject, root: JavaObject, statuses: JavaObject) -> dict[str, str]:
        """Return the complete path of each file, by its name relative to `root`. Raises Py4JJavaError."""
        found = str(self._wrapped(self._to_paths(statuses.toArray(self._status))).mkString(_SEPARATOR))
        base = str(fs.getFileStatus(root).getPath().toString()).rstrip("/")
        full = found.split(_SEPARATOR) if found else []
        return {path[len(base) + 1 :] if path != base else path.rpartition("/")[2]: path for path in full}

    def _sizes_of(self, fs: JavaObject, statuses: JavaObject, paths: dict[str, str]) -> dict[str, int]:
        """Return the size of each of the listed files that is still there. Raises Py4JJavaError."""
        if str(fs.getScheme()) == "file":
            # Not from the statuses: printing one reads permissions, as above, and asking each is a round trip.
            return {name: size for name, path in paths.items() if (size := _local_size(path)) is not None}
        printed = str(statuses.mkString(_SEPARATOR)).split(_SEPARATOR)
        sizes: dict[str, int] = {}
        for index, (name, path) in enumerate(paths.items()):
            size = _printed_size(printed[index], path)
            sizes[name] = int(statuses.apply(index).getLen()) if size is None else size
        return sizes


def with_path(path: str, verb: str, act: Callable[[], T]) -> T:
    """Call `act`; raise an error of the JVM as a FileFailure with the path."""
    try:
        return act()
    except Py4JJavaError as error:
        cause = error.java_exception
        raise FileFailure(
            f"cannot {verb} {path}: {cause.getClass().getSimpleName()}: {cause.getMessage()}",
            permanent=is_a(error, *_PERMANENT),
        ) from error


def _with_errno(act: Callable[[], None]) -> None:
    """Call `act`, which makes files durable; raise an error of the operating system as a FileFailure."""
    try:
        act()
    except OSError as error:
        raise FileFailure(f"cannot make {error.filename or 'local files'} durable: {error.strerror}") from error


def _local_size(path: str) -> int | None:
    """Return the size of a local file; None if it is gone. Raises FileFailure."""
    try:
        return Path(path.removeprefix("file:")).stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileFailure(f"cannot read the size of {path}: {error.strerror}") from error


def _printed_size(status: str, path: str) -> int | None:
    """Return the size from a printed FileStatus; None if its class prints it in another form than Hadoop's own."""
    _, found, rest = status.partition(f"{{path={path}; isDirectory=false; length=")
    digits = rest.partition(";")[0]
    return int(digits) if found and digits.isdecimal() else None


def is_a(error: Py4JJavaError, *class_names: str) -> bool:
    """Return whether the exception is of one of these classes, or of one derived from them."""
    kind = cast("JavaObject", error.java_exception).getClass()
    while kind is not None:
        if kind.getName() in class_names:
            return True
        kind = kind.getSuperclass()
    return False

"""Installation of a job's files for user code: by name in the scratch directory, modules on sys.path.

The TaskManager's blob cache stores content under its hash; `install` copies it into the attempt's scratch directory
under the name that the user gave it. `.py` files and archives go on sys.path; Spark's Python workers get them
through `addArtifacts`, which is per session. Archives (wheels, and folders, which travel as zips) are unpacked for the
runner: neither compiled modules nor data files can be opened in an archive. Workers get them as archives.

Rejected: links into the cache. User code that opens its file for writing would change it for every other job, and
Spark's own file server hands a link out under the name of what it points to.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle

from flintlock.model.jobgraph import Artifact, ArtifactKind, JobGraph
from flintlock.model.operations import ForeachBatch, Function, Program
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

StepFunction = Callable[..., Any]
UNPACKED: Final = ".unpacked"
"""The folder of a task's directory in which each of its archives has a folder."""

#: What the job's Python environment was made of: of no use to the job itself.
_OF_ENVIRONMENT: Final = (ArtifactKind.REQUIREMENTS, ArtifactKind.REQUIREMENT_FILE, ArtifactKind.ENVIRONMENT)


class Artifacts:
    """A job's files in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self._uploads: Final[list[Path]] = []  # written by install; what Spark's Python workers need
        self._pickles: Final[dict[str, Path]] = {}  # written by install
        self._jars: Final[list[Path]] = []  # written by install
        self._files: Final[list[Path]] = []  # written by install; plain files, without those of programs
        self._search: tuple[str, ...] = ()  # what install has put on sys.path

    def install(self, graph: JobGraph, contents: Mapping[str, str]) -> None:
        """Copy every file into the directory and make modules importable. Raises TaskError if one is missing."""
        search: list[str] = []
        scripts = {vertex.operation.file for vertex in graph.vertices if isinstance(vertex.operation, Program)}
        for artifact in graph.artifacts:
            content = _content(artifact, contents)
            if artifact.kind is ArtifactKind.PICKLE:
                self._pickles[artifact.name] = content
                continue
            if artifact.kind in _OF_ENVIRONMENT:
                continue
            path = self.directory / (".jars" if artifact.kind is ArtifactKind.JAR else "") / _relative(artifact.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(content, path)
            if artifact.kind is ArtifactKind.JAR:
                self._jars.append(path)
            if artifact.kind is ArtifactKind.FILE and artifact.name not in scripts:
                self._files.append(path)
            if artifact.kind is ArtifactKind.PY_FILE:
                search += self._importable(path)
        # Before anything that is installed: a job brings its own version of a module.
        self._search = (*dict.fromkeys(search), str(self.directory))
        sys.path[:0] = self._search
        importlib.invalidate_caches()

    @property
    def uploads(self) -> tuple[Path, ...]:
        """The files that Spark's Python workers need."""
        return tuple(self._uploads)

    @property
    def jars(self) -> tuple[Path, ...]:
        """The files for the class path of the job's own driver."""
        return tuple(self._jars)

    @property
    def files(self) -> tuple[Path, ...]:
        """The plain files that were sent with the job, in addition to its programs."""
        return tuple(self._files)

    def path(self, name: str) -> Path:
        """Return where the artifact of that name is. Raises TaskError if there is none."""
        path = self._pickles.get(name) or self.directory / _relative(name)
        if not path.exists():
            raise TaskError(FailureKind.MISSING_ARTIFACT, f"the job has no artifact {name!r}")
        return path

    def unpack(self, name: str) -> None:
        """Unpack the artifact of that name into the directory, if it is an archive."""
        path = self.path(name)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(self.directory)
            importlib.invalidate_caches()

    def upload(self, spark: Any) -> None:
        """Send the modules to Spark's Python workers, for this session."""
        if self._uploads:
            before = list(sys.path)
            spark.addArtifacts(*(str(path) for path in self._uploads), pyfile=True)
            sys.path[:] = before  # PySpark appends archives, which `install` has unpacked

    def share_files(self, spark: Any) -> None:
        """Have `SparkFiles.get` find the plain files of the job, here and in the Python workers of this session."""
        from pyspark import SparkFiles

        setattr(SparkFiles, "_root_directory", str(self.directory))  # noqa: B010
        setattr(SparkFiles, "_is_running_on_worker", True)  # noqa: B010 - or else it asks the JVM of a SparkContext
        if self._files:
            spark.addArtifacts(*(str(path) for path in self._files), file=True)

    def hide_archives(self) -> None:
        """Take the archives that PySpark has put on sys.path off again: `install` has unpacked them."""
        archives = {path.name for path in self._uploads if path.suffix != ".py"}
        sys.path[:] = [entry for entry in sys.path if Path(entry).name not in archives or entry in self._search]

    def function(self, operation: Function | ForeachBatch) -> StepFunction:
        """Return a step's function: from its pickle, or imported. Exceptions of user code pass through unchanged."""
        if operation.pickle is not None:
            loaded: object = cloudpickle.loads(self.path(operation.pickle).read_bytes())
            return _callable(loaded, f"the pickle {operation.pickle!r}")
        reference = operation.reference or ""
        return _callable(_imported(reference), repr(reference))

    def data_source(self, reference: str) -> type[DataSource]:
        """Return the class of a data source in Python, so that Spark's processes can use it without the job's modules.

        Raises TaskError if it is none. Exceptions of user code pass through unchanged.
        """
        from pyspark.sql.datasource import DataSource

        found = _imported(reference)
        if not isinstance(found, type) or not issubclass(found, DataSource):
            message = f"{reference!r} is no subclass of pyspark.sql.datasource.DataSource"
            raise TaskError(FailureKind.USER_CODE, message)
        self._pickle_own_modules()
        return found

    def batch_function(self, operation: ForeachBatch) -> StepFunction:
        """Return the function of a foreachBatch, so that it also works in the process in which Connect runs it.

        That process is on this machine and gets no artifacts of the session (as workers of UDFs do): the job's own
        modules, as far as they are imported, are pickled with the function, and the others are found on sys.path.
        """
        function, search = self.function(operation), self._search
        self._pickle_own_modules()

        def call(batch: Any, batch_id: int) -> None:
            import sys

            sys.path[:0] = [path for path in search if path not in sys.path]
            function(batch, batch_id)

        return call

    def _pickle_own_modules(self) -> None:
        """Have PySpark pickle the job's own modules with what refers to them, as far as they are imported."""
        from pyspark import cloudpickle as connect_pickle

        for module in tuple(sys.modules.values()):
            if self._is_own(module):
                connect_pickle.register_pickle_by_value(module)

    def _is_own(self, module: object) -> bool:
        file: object = getattr(module, "__file__", None)
        return isinstance(file, str) and Path(file).is_relative_to(self.directory)

    def _importable(self, path: Path) -> Iterator[str]:
        """Yield the entries of sys.path that this file needs, and record what the workers need."""
        if path.suffix == ".py":
            self._uploads.append(path)
            yield str(path.parent)
        elif zipfile.is_zipfile(path):
            self._uploads.append(self._as_archive(path))
            unpacked = self.directory / UNPACKED / path.name
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked)
            yield str(unpacked)

    def _as_archive(self, path: Path) -> Path:
        """Return the archive under a suffix that Spark accepts as an archive."""
        if path.suffix in {".zip", ".egg"}:
            return path
        archive = self.directory / ".uploads" / f"{path.name}.zip"
        archive.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, archive)
        return archive


def _content(artifact: Artifact, contents: Mapping[str, str]) -> Path:
    content = contents.get(artifact.name)
    if content is None or not Path(content).exists():
        raise TaskError(
            FailureKind.MISSING_ARTIFACT, f"the artifact {artifact.name!r} ({artifact.blob}) could not be fetched"
        )
    return Path(content)


def _relative(name: str) -> PurePosixPath:
    """Return an artifact's name as a path that stays inside the directory it is joined to."""
    path = PurePosixPath(name)
    inside = [part for part in path.parts if part not in {"..", ".", "/"}]
    if not inside:
        raise TaskError(FailureKind.MISSING_ARTIFACT, f"{name!r} is not a name for a file")
    return PurePosixPath(*inside)


def _imported(reference: str) -> object:
    """Return what a `package.module:name` names. Raises TaskError if the module does not have it."""
    module_name, _, attribute = reference.partition(":")
    found: object = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise TaskError(FailureKind.USER_CODE, f"{reference!r}: there is no {part!r} in {_name(found)}")
        found = getattr(found, part)
    return found


def _callable(found: object, where: str) -> StepFunction:
    if not callable(found):
        raise TaskError(FailureKind.USER_CODE, f"{where} is {_name(found)}, not a function")
    return cast("StepFunction", found)


def _name(found: object) -> str:
    name: object = getattr(found, "__name__", None)
    return f"{type(found).__name__} {name!r}" if isinstance(name, str) else f"a {type(found).__name__}"

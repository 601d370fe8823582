"""Python environments of jobs: one directory for each content, built once, whole or absent, and removed when unused.

An environment is a venv of the cluster's own Python. What the job requires is installed into it (or unpacked beside
it), and the packages of the cluster follow on its path: a job may bring another pandas, and uses the cluster's where it
brings none. PySpark and Flintlock are always the cluster's, since both sides of a connection have to agree.

`key.lock` is held shared by those who use an environment and exclusively by the one that builds or removes it, so a
process that dies releases it. An environment counts only with its marker, which is written last and removed first.

Rejected: building beside and renaming, since scripts in a venv have its path in them; pip's `--target`, which cannot
see what is installed already.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from msgspec import Struct

from flintlock.host.files.whole_files import write_whole
from flintlock.model.jobgraph import ArtifactKind, JobGraph

#: Environments that are kept although nothing uses them; of more, those that were used least recently are removed.
KEPT: Final = 10
_MARKER: Final = ".complete"
#: Packages that are the cluster's own in every environment.
_OWN: Final = ("pyspark", "py4j", "flintlock")
_LAST_LINES: Final = 12
_FORMAT: Final = "1"  # of environments: part of every key
_CHECK: Final = "import flintlock.spark.runner.process, pyspark.sql.connect.session"


class EnvironmentFailed(Exception):
    """An environment cannot be built; the message says why, with the last lines of what failed."""


class EnvironmentPlaces(Struct, frozen=True, kw_only=True):
    """Where environments are built, for those of a machine and for those that executors elsewhere use, too."""

    own: str  # in the cache of this machine's user
    shared: str = ""  # in the work directory, which all machines share, at the same path
    not_shared: str = ""  # why there is no such place, with the remedy

    def of(self, *, has_executors: bool) -> Path:
        """Return where an environment is built. Raises EnvironmentFailed where executors would not find it."""
        if has_executors and not self.shared:
            raise EnvironmentFailed(self.not_shared)
        return Path(self.shared if has_executors else self.own)


def environment_places(caches: Path, work_dir: str, *, python_is_shipped: bool = False) -> EnvironmentPlaces:
    """Return where environments are built. `python_is_shipped`: other machines do not have the one of this process."""
    place, own = work_dir.removeprefix("file://"), str(caches / "environments")
    if python_is_shipped:
        reason = "they do not have the Python on which it is based: it came with this application of YARN (yarn.python)"
    elif place.startswith("/"):
        return EnvironmentPlaces(own=own, shared=str(Path(place) / "environments"))
    else:
        reason = f"it needs an execution.work-dir that is mounted on all machines, and that is {work_dir}"
    return EnvironmentPlaces(own=own, not_shared=f"executors on other machines would not find it: {reason}")


class EnvironmentSource(Struct, frozen=True, kw_only=True):
    """What an environment is made of: requirements with the files that they name, or a packed environment."""

    content: tuple[str, ...]  # identifies the content of all files
    requirements: str = ""  # a file
    files: dict[str, str] = {}  # by the names that the requirements have for them
    archive: str = ""  # a file
    in_place: bool = False  # the requirements are read where they are: what they name is relative to that


class PythonEnvironment:
    """A whole environment, which is not removed until `close`, or until this process ends."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.python: Final = str(directory / "bin" / "python")
        self._lock: Final = lock

    def close(self) -> None:
        """Use it no longer."""
        os.close(self._lock)


def source_of(graph: JobGraph, contents: Mapping[str, str]) -> EnvironmentSource:
    """Return what the environment of a job is made of. `contents`: the local path of each artifact."""
    of_kind = {
        kind: {artifact.name: contents[artifact.name] for artifact in graph.artifacts if artifact.kind is kind}
        for kind in (ArtifactKind.REQUIREMENTS, ArtifactKind.REQUIREMENT_FILE, ArtifactKind.ENVIRONMENT)
    }
    return EnvironmentSource(
        content=tuple(
            f"{artifact.kind}:{artifact.name if artifact.kind is ArtifactKind.REQUIREMENT_FILE else ''}:{artifact.blob}"
            for artifact in graph.artifacts
            if artifact.kind in of_kind
        ),
        requirements=next(iter(of_kind[ArtifactKind.REQUIREMENTS].values()), ""),
        files=of_kind[ArtifactKind.REQUIREMENT_FILE],
        archive=next(iter(of_kind[ArtifactKind.ENVIRONMENT].values()), ""),
    )


def environment_key(source: EnvironmentSource, parents: Sequence[str]) -> str:
    """Return the name of an environment: equal for equal content, Python, platform and packages below."""
    parts = (_FORMAT, platform.python_version(), sysconfig.get_platform(), *parents, *sorted(source.content))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def parent_sites() -> tuple[str, ...]:
    """Return where the packages of this process are."""
    return tuple(path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"})


def open_environment(cache: Path, key: str, build: Callable[[Path], None]) -> PythonEnvironment:
    """Return the environment of this key; `build` makes it if there is none, while all others wait.

    Raises what `build` raises; nothing is left of the environment then.
    """
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / key
    while True:
        lock = _locked(cache, key, fcntl.LOCK_SH)
        if lock is not None and (directory / _MARKER).is_file():
            os.utime(directory / _MARKER)
            return PythonEnvironment(directory, lock)
        if lock is not None:
            os.close(lock)
        lock = _locked(cache, key, fcntl.LOCK_EX)
        if lock is None:
            continue
        try:
            if not (directory / _MARKER).is_file():
                _build(directory, build)
        finally:
            os.close(lock)
        remove_unused(cache, kept=KEPT, except_key=key)


def remove_unused(cache: Path, *, kept: int, except_key: str = "") -> None:
    """Remove environments that nothing uses: parts of some, and all but those that were used most recently."""
    ages: dict[str, float] = {}
    for directory in [path for path in cache.iterdir() if path.is_dir() and path.name != except_key]:
        with suppress(FileNotFoundError):
            ages[directory.name] = 0.0
            ages[directory.name] = (directory / _MARKER).stat().st_mtime
    newest_first = sorted(ages, key=lambda name: ages[name], reverse=True)
    for position, key in enumerate(newest_first):
        if ages[key] == 0.0 or position + bool(except_key) >= kept:
            _remove(cache, key)


def build_environment(source: EnvironmentSource, directory: Path, parents: Sequence[str]) -> None:
    """Build an environment; what is run prints to this process's output. Raises EnvironmentFailed."""
    venv.create(directory, symlinks=True, with_pip=False)
    python = str(directory / "bin" / "python")
    sites = _unpacked(Path(source.archive), directory / "packed") if source.archive else []
    _add_sites(directory, [*sites, *parents])
    if source.requirements:
        work = directory / "requirements"
        _install(source, python, work)
        shutil.rmtree(work, ignore_errors=True)
    _run([python, "-P", "-c", _CHECK], directory, "no task can run in this Python environment")


def _install(source: EnvironmentSource, python: str, work: Path) -> None:
    work.mkdir()
    requirements = Path(source.requirements)
    if not source.in_place:
        requirements = Path(shutil.copyfile(requirements, work / "requirements.txt"))
        for name, content in source.files.items():
            shutil.copyfile(content, work / Path(name).name)
    constraints = work / "constraints-of-the-cluster.txt"
    constraints.write_text("\n".join(_constraints()))
    if subprocess.run([python, "-P", "-c", "import pip"], capture_output=True, check=False).returncode != 0:
        _run([python, "-P", "-m", "ensurepip"], work, "pip cannot be installed")
    pip = [python, "-P", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    _run(
        [*pip, "-c", str(constraints), "-r", str(requirements)],
        requirements.parent,
        "the requirements cannot be installed",
    )


def _build(directory: Path, build: Callable[[Path], None]) -> None:
    shutil.rmtree(directory, ignore_errors=True)  # a part, of a process that died
    try:
        build(directory)
        write_whole(directory / _MARKER, b"")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _locked(cache: Path, key: str, kind: int) -> int | None:
    """Return a locked descriptor; None if the lock was removed meanwhile, or (LOCK_NB) if another process has it."""
    path = cache / f"{key}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, kind)
        if os.fstat(lock).st_ino == path.stat().st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove(cache: Path, key: str) -> None:
    lock = _locked(cache, key, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if lock is None:
        return
    try:
        (cache / key / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(cache / key, ignore_errors=True)
        (cache / f"{key}.lock").unlink(missing_ok=True)
    finally:
        os.close(lock)


def _add_sites(directory: Path, sites: Iterable[str]) -> None:
    """Have an environment find these packages after its own."""
    own = next(directory.glob("lib/python3.*/site-packages"))
    (own / "flintlock-cluster.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in sites))


def _constraints() -> list[str]:
    found: list[str] = []
    for name in _OWN:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name}=={metadata.version(name)}")
    return found


def _unpacked(archive: Path, directory: Path) -> list[str]:
    """Unpack an environment of venv-pack or conda-pack; return where its packages are."""
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter=_kept_member)  # noqa: S202 - the filter lets nothing out
    except (tarfile.TarError, OSError, EOFError) as error:
        raise EnvironmentFailed(f"the packed Python environment cannot be unpacked: {error}") from error
    found = sorted(path for path in directory.glob("lib/python3.*/site-packages") if path.is_dir())
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sites = [path for path in found if path.parent.name == own]
    if not sites:
        has = ", ".join(path.parent.name for path in found) or "no lib/python3.*/site-packages"
        raise EnvironmentFailed(f"the packed Python environment has {has}; the cluster needs {own}")
    for name in _OWN:
        shutil.rmtree(sites[0] / name, ignore_errors=True)
    return [str(path) for path in sites]


def _kept_member(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """Leave out what points outside: the interpreter of a venv, which is not used."""
    try:
        return tarfile.data_filter(member, path)
    except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
        return None


def _run(command: Sequence[str], directory: Path, problem: str) -> None:
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    ) as process:  # fmt: skip
        try:
            for line in process.stdout or ():
                sys.stdout.write(line)
                last.append(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise EnvironmentFailed(f"{problem}:\n" + "\n".join(line for line in last if line))

"""Files of blobs: written under a temporary name, hashed while written, and renamed only when complete.

A file that is being written is in `incoming/` under a lock that ends with its writer, so that a process that starts
later can distinguish what a crash left behind from what another process is writing.

A file that cannot be read is that blob's matter (Corrupt), if a file beside it can be written and read; else the whole
directory is out of order, which is no job's fault (Unavailable).
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

from flintlock.host.files.file_errors import concerns_one_file
from flintlock.model.errors import Corrupt, NotFound, Unavailable
from flintlock.model.ids import BlobKey, is_blob_key

P = ParamSpec("P")
T = TypeVar("T")

INCOMING: Final = "incoming"
_PREFIX: Final = "sha256-"
_PIECE: Final = 1 << 20


class Offload(Protocol):
    """Runs file I/O away from the event loop, as `asyncio.to_thread` does; a test on virtual time runs it in place."""

    def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Return what `work` returns."""
        ...


async def on_disk(offload: Offload, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do file I/O away from the event loop. Raises Unavailable where the disk is full or broken; Corrupt."""
    try:
        return await offload(work, *args, **kwargs)
    except OSError as error:
        raise unavailable(error) from error


def unavailable(error: OSError) -> Unavailable:
    """Return the error for a directory of blobs that cannot be used now."""
    return Unavailable(f"the files of blobs cannot be written or read now: {error}")


def missing(key: BlobKey) -> NotFound:
    """Return the error for a blob that does not exist."""
    return NotFound(f"no blob {key} is stored here")


def digest_of(key: BlobKey) -> str:
    """Return the hash in a key. Raises NotFound for what is no key, so that no key can name a path."""
    if not is_blob_key(key):
        raise NotFound(f"{key!r} is not a blob's key")
    return key.removeprefix(_PREFIX)


def key_of(digest: str) -> BlobKey:
    """Return the key for a hash."""
    return BlobKey(_PREFIX + digest)


def file_digest(path: Path) -> str:
    """Return the hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class IncomingFile:
    """A file that is being written. Its methods block; they may be called from several threads, one after another."""

    def __init__(self, directory: Path, name: str, sync: Callable[[int], None] = os.fsync) -> None:
        self._path: Final = directory / INCOMING / name
        self._sync: Final = sync
        self._lock: Final = threading.Lock()  # a cancelled caller may discard while a thread writes
        self._hash: Final = hashlib.sha256()
        self._descriptor: int | None = None  # open from the first write on, until moved or discarded
        self._moved_to: Path | None = None
        self._discarded = False
        self.size = 0

    @property
    def path(self) -> Path:
        """Where it is being written, until it is moved."""
        return self._path

    @property
    def digest(self) -> str:
        """The hash of what has been written."""
        return self._hash.hexdigest()

    def write(self, data: bytes | bytearray) -> None:
        """Append."""
        with self._lock:
            descriptor = self._opened()
            self._hash.update(data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self.size += len(data)

    def move(self, target: Path, *, durable: bool = True) -> None:
        """Rename the file to `target`, which must be new; `durable`: it survives a loss of power as a whole."""
        with self._lock:
            descriptor = self._opened()
            if durable:
                self._sync(descriptor)
            made = _move_into(self._path, target)
            self._moved_to = target
            self._close()
            if durable:
                self._sync_directory(target.parent)
                if made:
                    self._sync_directory(target.parent.parent)

    def discard(self) -> None:
        """Remove the file, whether it was moved or not. Idempotent."""
        with self._lock:
            if not self._discarded:
                self._discarded = True
                self._path.unlink(missing_ok=True)
                if self._moved_to is not None:
                    remove_file(self._moved_to)
                self._close()

    def _opened(self) -> int:
        if self._discarded:
            raise FileNotFoundError(f"{self._path} was discarded")
        while self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                swept = os.fstat(descriptor).st_nlink == 0
            except BlockingIOError:
                swept = True
            if swept:  # another process took it for a leftover before it was locked
                os.close(descriptor)
            else:
                self._descriptor = descriptor
        return self._descriptor

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)


def _move_into(source: Path, target: Path) -> bool:
    """Rename, creating the target's directory; return whether it was created."""
    made = False
    while True:
        with suppress(FileExistsError):
            target.parent.mkdir(parents=True)
            made = True
        try:
            source.rename(target)
        except FileNotFoundError:
            if not source.exists():
                raise
            continue  # the directory was empty, and another process removed it
        return made


def remove_file(path: Path) -> None:
    """Remove a blob's file, and its directory when that is empty. Idempotent."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


def remove_files(paths: Iterable[Path]) -> None:
    """Remove several files."""
    for path in paths:
        remove_file(path)


def link_file(source: Path, target: Path) -> bool:
    """Give a file another name; False if it does not exist, or the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def read_range(path: Path, key: BlobKey, offset: int, limit: int) -> tuple[bytes, int]:
    """Return bytes from `offset` on, and the file's size. Raises Corrupt for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(limit), size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path.parent.parent, key, error) from error


def _unreadable(directory: Path, key: BlobKey, error: OSError) -> Exception:
    """Return the error to raise for a blob's file that could not be read: its own, or that of the whole directory."""
    if not concerns_one_file(error):
        return error
    try:
        _check_directory(directory)
    except OSError as general:
        return general
    return Corrupt(f"blob {key} cannot be read: {error}")


def _check_directory(directory: Path) -> None:
    """Write a file there and read it. Raises OSError."""
    path = directory / INCOMING / f"check-{uuid.uuid4().hex}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_bytes(b"x")
        path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """Remove what crashes left behind: incomplete files that no process writes any more, and empty directories.

    What cannot be removed stays.
    """
    for path in _entries(directory / INCOMING):
        with suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)
    for path in _entries(directory):
        if path.name != INCOMING and path.is_dir():
            with suppress(OSError):
                path.rmdir()


def names_of(directory: Path, key: BlobKey) -> list[Path]:
    """Return the files of a blob."""
    return sorted(_entries(directory / digest_of(key)))


def all_names(directory: Path, before_s: float = math.inf) -> dict[BlobKey, list[Path]]:
    """Return the files of all blobs; with `before_s`, of those all of whose files are older.

    Blobs whose files cannot be listed are left out.
    """
    found: dict[BlobKey, list[Path]] = {}
    for key in [key_of(entry.name) for entry in _entries(directory)]:
        try:
            found |= {key: names_of(directory, key)} if is_blob_key(key) else {}
        except OSError as error:
            if not concerns_one_file(error):
                raise
    return {key: names for key, names in found.items() if names and all(_older(name, before_s) for name in names)}


def all_names_by_age(directory: Path) -> tuple[dict[BlobKey, list[Path]], dict[BlobKey, int]]:
    """Return the files of all blobs, and the size of each; the blob that was stored first comes first."""
    found = all_names(directory)
    stored_s: dict[BlobKey, float] = {}
    sizes: dict[BlobKey, int] = {}
    for key, names in found.items():
        try:
            status = max((name.stat() for name in names), key=lambda one: one.st_mtime)
        except OSError:  # removed meanwhile
            stored_s[key], sizes[key] = 0.0, 0
        else:
            stored_s[key], sizes[key] = status.st_mtime, status.st_size
    in_order = sorted(found, key=lambda key: stored_s[key])
    return found, {key: sizes[key] for key in in_order}


def first_intact(directory: Path, key: BlobKey) -> Path | None:
    """Return a file whose content has the key's hash; damaged ones are removed. None if there is none.

    Raises Corrupt if there are files, and none can be read.
    """
    unreadable: OSError | None = None
    try:
        names = names_of(directory, key)
    except OSError as error:
        names, unreadable = [], error
    for path in names:
        try:
            if file_digest(path) == digest_of(key):
                return path
            remove_file(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable = error
    if unreadable is not None:
        raise _unreadable(directory, key, unreadable) from unreadable
    return None


def _older(path: Path, before_s: float) -> bool:
    try:
        return path.stat().st_mtime < before_s
    except FileNotFoundError:
        return True


def _entries(directory: Path) -> Iterator[Path]:
    try:
        yield from directory.iterdir()
    except FileNotFoundError:
        return

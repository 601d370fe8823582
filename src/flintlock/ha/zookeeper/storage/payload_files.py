"""Payloads under `high-availability.storageDir`: files that are written once, under names that are never used again.

A pointer in ZooKeeper names its file. The file is durable before the pointer is written, and is unlinked only after
the pointer to that very file was removed in a fenced transaction. So a leader that was frozen and wakes up can neither
overwrite nor remove anything that is in use: it may finish writing a file that no pointer will ever name.

A name contains the epoch that it was written in. Files of an older epoch without a pointer can never get one any more,
as no write of that epoch succeeds once a newer one has begun; `sweep` removes those, and no others.

Any file system that fsspec supports. A local one is flushed to the disk, file and directory; another one is trusted
when it reports that a file is written. Many files are read and written at once, in threads: the kernel combines their
flushes, and recovery reads many at a time.

A storage directory that hangs (a network file system whose server is gone) is not waited for: each call has a time
limit, and so has closing. A file that cannot be read although the directory's marker can is that record's matter
(`PayloadUnreadable`); everything else is the directory's, and Unavailable.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import fsspec.core as fsspec_core
import structlog
from fsspec.implementations.local import LocalFileSystem

from flintlock.host.files.file_errors import concerns_one_file
from flintlock.host.processes.daemon_threads import DaemonThreads
from flintlock.model import log_events
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import Epoch

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: How many files are read or written at once.
THREADS: Final = 16

#: How many of these may be large: copies of whole files, which must not delay a submission.
COPIES: Final = 4

#: How long one payload may take to be read or written, and a copy of a whole file.
LIMIT_S: Final = 30.0
COPY_LIMIT_S: Final = 900.0

#: How long closing waits for what is under way.
_CLOSE_S: Final = 2.0

#: One folder for each kind of record.
KINDS: Final = ("graphs", "results", "progress", "ended", "blobs")

_NAME: Final = re.compile(r"[a-z]+/([0-9a-f]+)-(\d+)-[0-9a-f]{32}")  # kind, owner, epoch, and what makes it unique

_PIECE: Final = 1 << 20

PROBE_OWNER: Final = "0"
"""The owner, no job, of the files that are written to find out whether that is possible."""

#: What they have: so much that it takes room.
_PROBE: Final = bytes(4096)


class PayloadGone(Exception):
    """The file that a pointer names does not exist."""


class PayloadUnreadable(Exception):
    """The file that a pointer names exists, and cannot be read, though the storage directory can."""


class PayloadFiles:
    """The payloads of one cluster. Built by `payload_files`."""

    def __init__(self, fs: Any, root: str, limit_s: float = LIMIT_S) -> None:
        self._fs: Final = fs
        self._root: Final = root
        self._local: Final = isinstance(fs, LocalFileSystem)
        self.marker = (
            ""  # the file that distinguishes this directory from an empty one; set by `claim`, and named in ZooKeeper
        )
        self._copying: Final = asyncio.Semaphore(COPIES)
        self._limit_s: Final = limit_s
        self._threads: Final = DaemonThreads(THREADS, "payloads")
        self._checking: Final = DaemonThreads(1, "storage-read-check")  # checks that hang take no thread from payloads
        self._checking_writes: Final = DaemonThreads(1, "storage-write-check")

    async def write(self, kind: str, owner: str, epoch: Epoch, payload: bytes) -> str:
        """Store a payload under a new name and return the name, once it is durable. Raises Unavailable.

        `owner` is hexadecimal: the job, or the content, that the payload belongs to.
        """
        name = _new_name(kind, owner, epoch)
        await self._do("written", name, lambda: self._write(name, payload), undo=lambda: self._remove_quietly(name))
        return name

    async def copy(self, kind: str, owner: str, epoch: Epoch, source: Path) -> str:
        """Store the content of a local file, as `write` does. Raises Unavailable."""
        name = _new_name(kind, owner, epoch)
        async with self._copying:
            await self._do(
                "written",
                name,
                lambda: self._copy(name, source),
                undo=lambda: self._remove_quietly(name),
                limit_s=COPY_LIMIT_S,
            )
        return name

    async def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return a payload, or a piece of it.

        Raises PayloadGone, PayloadUnreadable; Unavailable, also where the whole directory is missing or unreadable.
        """

        def work() -> bytes:
            return cast("bytes", self._fs.cat_file(self._path(name), start=start, end=end))

        try:
            return await self._do("read", name, work)
        except (PayloadGone, PayloadUnreadable):
            await self.check_directory()
            raise

    async def check_directory(self) -> None:
        """Raise Unavailable if this is not the cluster's storage directory: a disk that is not mounted, an empty one.

        Neither may it be one of which this process can read nothing, as another user's. Otherwise every job would be
        mistaken for an unreadable one.
        """
        await self._check_marker(None)

    async def check_readable(self) -> None:
        """Raise Unavailable as `check_directory`, however long it takes, in a thread of its own."""
        await self._check_marker(self._checking)

    async def _check_marker(self, checking: DaemonThreads | None) -> None:
        path = self._path(self.marker)
        try:
            await self._do("read", self.marker, lambda: cast("bytes", self._fs.cat_file(path)), checking=checking)
        except PayloadUnreadable as error:
            raise Unavailable(f"high-availability.storageDir cannot be read: {error}") from error
        except PayloadGone:
            raise Unavailable(
                f"{self._path(self.marker)} does not exist: high-availability.storageDir is not mounted, or not the one"
                " that this cluster has used so far"
            ) from None

    async def check_writable(self) -> None:
        """Raise Unavailable if nothing can be written to the storage directory. What a check leaves behind is swept.

        It is waited for however long it takes, and has a thread of its own.
        """
        name = _new_name("progress", PROBE_OWNER, Epoch(0))

        def work() -> None:
            self._write(name, _PROBE)
            self._remove_quietly(name)

        await self._do("written", name, work, checking=self._checking_writes)

    async def discard(self, names: Collection[str]) -> None:
        """Remove files without a pointer. One that cannot be removed is left behind, and logged."""
        for outcome in await asyncio.gather(*map(self._unlink, names), return_exceptions=True):
            if isinstance(outcome, Unavailable):
                log.warning(log_events.PAYLOAD_NOT_REMOVED, reason=outcome.public)

    async def sweep(self, before: Epoch, used: Collection[str], excluded: Collection[str] = ()) -> int:
        """Remove what older epochs left behind: their files that are not `used`, except those of `excluded` owners.

        `used` is read after an epoch not lower than `before` has begun. Then it is safe whenever it runs, however late.
        Returns how many. Raises Unavailable.
        """
        leftover: list[str] = []
        for name in await self._do("listed", "payloads", self._list):
            parts = _NAME.fullmatch(name)  # files with other names stay
            if parts and int(parts[2]) < before and name not in used and parts[1] not in excluded:
                leftover.append(name)
        await self.discard(leftover)
        return len(leftover)

    async def close(self) -> None:
        """End the threads. Work that hangs is given up after a while; what it leaves behind is swept."""
        pools = (self._threads, self._checking, self._checking_writes)
        await asyncio.gather(*(asyncio.to_thread(pool.close, _CLOSE_S) for pool in pools))

    async def claim(self) -> None:
        """Initialise the storage directory: folders and a marker, durably. Raises Unavailable."""
        self.marker = f"cluster-{uuid.uuid4().hex}"
        await self.prepare()
        await self._do("written", self.marker, lambda: self._write(self.marker, b""))

    async def prepare(self) -> None:
        """Create missing folders: an older version had fewer kinds. Raises Unavailable."""
        await self._do("made", "the folders for payloads", self._prepare)

    def _prepare(self) -> None:
        for kind in KINDS:
            self._fs.makedirs(f"{self._root}/{kind}", exist_ok=True)
        if self._local:
            root = Path(self._root)
            for folder in (root, root.parent, root.parent.parent):  # any of them may have been created just now
                _sync_folder(folder)

    async def _unlink(self, name: str) -> None:
        try:
            await self._do("removed", name, lambda: cast("None", self._fs.rm_file(self._path(name))))
        except PayloadGone:
            return

    async def _do(
        self,
        what: str,
        name: str,
        work: Callable[[], T],
        *,
        undo: Callable[[], None] | None = None,
        limit_s: float | None = None,
        checking: DaemonThreads | None = None,
    ) -> T:
        """Have work done in a thread, or, however long it takes, by the thread of a check."""
        limit_s = limit_s or self._limit_s
        try:
            done = (checking or self._threads).submit(work)
            limit = asyncio.timeout(None if checking else limit_s)
            try:
                async with limit:
                    return await asyncio.wrap_future(done)
            except (asyncio.CancelledError, TimeoutError) as error:
                if undo is not None and (isinstance(error, asyncio.CancelledError) or limit.expired()):
                    self._undo(done, undo)
                if limit.expired():
                    raise Unavailable(
                        f"{name} was not {what} within {limit_s:g} s: high-availability.storageDir does not answer"
                    ) from error
                raise
        except Unavailable:
            raise
        except FileNotFoundError as error:
            if what in ("read", "removed"):
                raise PayloadGone(name) from error
            raise Unavailable(f"{name} cannot be {what} (high-availability.storageDir): {error}") from error
        except RuntimeError as error:  # what an executor raises after its shutdown
            raise Unavailable(f"{name} cannot be {what}: the store is closed") from error
        except Exception as error:  # file systems of fsspec raise exceptions of any kind
            if what == "read" and isinstance(error, OSError) and concerns_one_file(error):
                raise PayloadUnreadable(f"{name}: {error}") from error
            raise Unavailable(f"{name} cannot be {what} (high-availability.storageDir): {error}") from error

    def _undo(self, work: Future[Any], undo: Callable[[], None]) -> None:
        """Undo work whose caller was cancelled. A thread runs to its end, so that comes first."""
        if not work.done():
            work.add_done_callback(lambda _: undo())
        else:
            with suppress(RuntimeError):  # closed: what is left is swept
                self._threads.submit(undo)

    def _write(self, name: str, payload: bytes) -> None:
        with self._whole(name) as path:
            if self._local:
                _write_flushed(path, [payload])
            else:
                self._fs.pipe_file(path, payload)

    def _copy(self, name: str, source: Path) -> None:
        with self._whole(name) as path:
            if self._local:
                with source.open("rb") as file:
                    _write_flushed(path, iter(lambda: file.read(_PIECE), b""))
            else:
                self._fs.put_file(str(source), path)

    @contextmanager
    def _whole(self, name: str) -> Generator[str]:
        """Yield the path of a new file; one that could not be written as a whole is removed."""
        try:
            yield self._path(name)
        except BaseException:
            self._remove_quietly(name)
            raise

    def _remove_quietly(self, name: str) -> None:
        with suppress(Exception):  # of any kind; what cannot be removed is left to the sweep
            self._fs.rm_file(self._path(name))

    def _list(self) -> list[str]:
        found: list[str] = []
        for kind in KINDS:
            paths = cast("list[str]", self._fs.ls(f"{self._root}/{kind}", detail=False))
            found += [f"{kind}/{path.rsplit('/', 1)[-1]}" for path in paths]
        return found

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def payload_files(url: str, cluster_id: str) -> PayloadFiles:
    """Return the payloads of a cluster under any fsspec URL. Raises Refused if no file system supports it."""
    try:
        fs, path = cast("tuple[Any, str]", cast("Any", fsspec_core).url_to_fs(url))
    except (ValueError, ImportError) as error:
        raise Refused(f"high-availability.storageDir {url!r} names no usable file system: {error}") from error
    return PayloadFiles(fs, f"{path.rstrip('/')}/{cluster_id}")


def _new_name(kind: str, owner: str, epoch: Epoch) -> str:
    return f"{kind}/{owner}-{epoch}-{uuid.uuid4().hex}"


def _write_flushed(path: str, pieces: Iterable[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(descriptor)
    _sync_folder(Path(path).parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

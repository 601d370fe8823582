"""Payloads under `high-availability.storageDir`: files that are written once, under names that are never used again.

A pointer in ZooKeeper names its file. The file is durable before the pointer is written, and is unlinked only after
the pointer to that very file was removed in a fenced transaction. So a leader that was paused and wakes up can neither
overwrite nor remove anything that is in use: it may finish writing a file that nobody will ever point to.

A name tells the epoch that it was written in. Files of an older epoch that nothing points to can never be pointed to
any more, as no write of that epoch succeeds once a newer one has begun; `sweep` removes those, and no others.

Any file system that fsspec knows. One on this machine is flushed to the disk, file and directory; another one is
taken at its word when it says that a file is written. Many files are under way at once, in threads: the kernel puts
their flushes together, and recovery reads many at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import fsspec.core as fsspec_core
import structlog
from fsspec.implementations.local import LocalFileSystem

from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import Epoch, JobId

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: How many files are read or written at once.
WIDTH: Final = 16

#: One folder for each kind of record.
KINDS: Final = ("graphs", "results", "progress", "ended")

_NAME: Final = re.compile(r"[a-z]+/([0-9a-f]+)-(\d+)-[0-9a-f]{32}")  # kind, job, epoch, and what makes it unique


class PayloadGone(Exception):
    """The file that a pointer names is not there."""


class PayloadFiles:
    """The payloads of one cluster. Built by `payload_files`."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs: Final = fs
        self._root: Final = root
        self._local: Final = isinstance(fs, LocalFileSystem)
        self.marker = ""  # the file that tells this place from an empty one; set by `claim`, and known to ZooKeeper
        self._threads: Final = ThreadPoolExecutor(WIDTH, thread_name_prefix="payloads")

    async def write(self, kind: str, job_id: JobId, epoch: Epoch, payload: bytes) -> str:
        """Store a payload under a new name and return the name, once it is durable. Raises Unavailable."""
        name = f"{kind}/{job_id}-{epoch}-{uuid.uuid4().hex}"
        await self._do("written", name, lambda: self._write(name, payload))
        return name

    async def read(self, name: str) -> bytes:
        """Return a payload. Raises PayloadGone; Unavailable, also where not the file is gone but the whole place."""
        try:
            return await self._do("read", name, lambda: cast("bytes", self._fs.cat_file(self._path(name))))
        except PayloadGone:
            await self.check_place()
            raise

    async def check_place(self) -> None:
        """Raise Unavailable if this is not where the cluster's payloads are: a disk that is not mounted, an empty one.

        Else one would take every job for unreadable.
        """
        there = await self._do("found", self.marker, lambda: cast("bool", self._fs.exists(self._path(self.marker))))
        if not there:
            raise Unavailable(
                f"{self._path(self.marker)} is not there: high-availability.storageDir is not mounted, or not the one"
                " that this cluster has used so far"
            )

    async def discard(self, names: Collection[str]) -> None:
        """Remove files that nothing points to. One that cannot be removed is left behind, and logged."""
        for outcome in await asyncio.gather(*map(self._unlink, names), return_exceptions=True):
            if isinstance(outcome, Unavailable):
                log.warning("payload-left-behind", reason=outcome.public)

    async def sweep(self, before: Epoch, used: Collection[str], spared: Collection[JobId] = ()) -> int:
        """Remove what older epochs left behind: their files that no pointer names, but none of the jobs to be spared.

        `used` is read after an epoch not lower than `before` has begun. Then it is safe whenever it runs, however late.
        Returns how many. Raises Unavailable.
        """
        left: list[str] = []
        for name in await self._do("listed", "payloads", self._list):
            parts = _NAME.fullmatch(name)  # what is not named as ours stays
            if parts and int(parts[2]) < before and name not in used and parts[1] not in spared:
                left.append(name)
        await self.discard(left)
        return len(left)

    def close(self) -> None:
        """End the threads; what is under way is finished."""
        self._threads.shutdown(wait=True)

    async def claim(self) -> None:
        """Make this a place for payloads: folders and a marker, durably. Raises Unavailable."""
        self.marker = f"cluster-{uuid.uuid4().hex}"
        await self._do("made", "the folders for payloads", self._prepare)
        await self._do("written", self.marker, lambda: self._write(self.marker, b""))

    def _prepare(self) -> None:
        for kind in KINDS:
            self._fs.makedirs(f"{self._root}/{kind}", exist_ok=True)
        if self._local:
            root = Path(self._root)
            for folder in (root, root.parent, root.parent.parent):  # whichever of them were made just now
                _sync_folder(folder)

    async def _unlink(self, name: str) -> None:
        try:
            await self._do("removed", name, lambda: cast("None", self._fs.rm_file(self._path(name))))
        except PayloadGone:
            return

    async def _do(self, what: str, name: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except FileNotFoundError as error:
            if what in ("read", "removed"):
                raise PayloadGone(name) from error
            raise Unavailable(f"{name} cannot be {what} (high-availability.storageDir): {error}") from error
        except RuntimeError as error:  # what an executor says after its end
            raise Unavailable(f"{name} cannot be {what}: the store is closed") from error
        except Exception as error:  # file systems of fsspec raise what they please
            raise Unavailable(f"{name} cannot be {what} (high-availability.storageDir): {error}") from error

    def _write(self, name: str, payload: bytes) -> None:
        path = self._path(name)
        if not self._local:
            self._fs.pipe_file(path, payload)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(descriptor)
        _sync_folder(Path(path).parent)

    def _list(self) -> list[str]:
        found: list[str] = []
        for kind in KINDS:
            paths = cast("list[str]", self._fs.ls(f"{self._root}/{kind}", detail=False))
            found += [f"{kind}/{path.rsplit('/', 1)[-1]}" for path in paths]
        return found

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def payload_files(url: str, cluster_id: str) -> PayloadFiles:
    """Return the payloads of a cluster under any fsspec URL. Raises Refused if no file system is known for it."""
    try:
        fs, path = cast("tuple[Any, str]", cast("Any", fsspec_core).url_to_fs(url))
    except (ValueError, ImportError) as error:
        raise Refused(f"high-availability.storageDir {url!r} names no usable file system: {error}") from error
    return PayloadFiles(fs, f"{path.rstrip('/')}/{cluster_id}")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

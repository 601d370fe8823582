"""Disks that can be filled and stalled, each mounted while a context lasts.

A full disk: a file takes all the room that is left. A stalled disk: the kernel freezes the file system, and every write
waits, uninterruptibly, until the disk is resumed; not even SIGKILL ends such a process before. So a process of its own
freezes the file system and resumes it when its standard input is closed, that is, also when the harness was killed.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.chaos.tools import run

SIZE_MB: Final = 512
_STALL: Final = 'fsfreeze --freeze "$1" && echo stalled && cat; fsfreeze --unfreeze "$1"'


class Disk:
    """A mounted file system."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._filling: Final = path / "filling"
        self._stall: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        """Leave no room."""
        descriptor = os.open(self._filling, os.O_CREAT | os.O_WRONLY)
        try:
            end, part = 0, SIZE_MB << 20
            while part >= 512:
                try:
                    os.posix_fallocate(descriptor, end, part)
                    end += part
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    end = os.fstat(descriptor).st_size
                    part //= 2
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        """Make room again. Idempotent."""
        self._filling.unlink(missing_ok=True)

    def stall(self) -> None:
        """Let every write wait. Raises OSError if the file system cannot do that."""
        command = ["sh", "-c", _STALL, "sh", str(self.path)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"stalled\n":
            raise OSError(f"{self.path} cannot be stalled: {process.communicate()[1].decode().strip()}")
        self._stall = process

    def resume(self) -> None:
        """Let the writes continue. Idempotent."""
        if self._stall is not None:
            self._stall.communicate()
            self._stall = None


@contextmanager
def tmpfs_disk(path: Path) -> Generator[Disk]:
    """Mount a tmpfs, which cannot be stalled. Raises OSError."""
    path.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(path))
    with _mounted(path) as disk:
        yield disk


@contextmanager
def ext4_disk(path: Path) -> Generator[Disk]:
    """Mount an ext4 file system in a file that ends with the mount. Raises OSError."""
    path.mkdir(parents=True)
    image = path.with_name(f"{path.name}.img")
    image.touch()
    os.truncate(image, SIZE_MB << 20)
    try:
        run("mkfs.ext4", "-q", "-m", "0", str(image))
        run("mount", "-o", "loop", str(image), str(path))
    finally:
        image.unlink()
    with _mounted(path) as disk:
        yield disk


@contextmanager
def _mounted(path: Path) -> Generator[Disk]:
    disk = Disk(path)
    try:
        yield disk
    finally:
        disk.resume()
        try:
            run("umount", str(path))
        except OSError:
            with suppress(OSError):
                run("umount", "--lazy", str(path))
            raise

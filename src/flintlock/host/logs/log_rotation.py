"""Log files that do not grow for ever: a full one becomes `<name>.1`, that one `<name>.2`, and the oldest is removed.

A process renames its own log and continues in a new file; nothing that it writes is lost. The log of another process,
which has the file open (the JVM of an engine), is copied and then emptied: what is written between the two is lost.
Both need a file that is opened for appending. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final


def log_of(directory: Path, descriptor: int) -> Path | None:
    """Return the file of the directory that a descriptor writes to; None if it writes elsewhere."""
    try:
        own = os.fstat(descriptor)
        if not stat.S_ISREG(own.st_mode):
            return None
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and os.path.samestat(entry.stat(follow_symlinks=False), own):
                    return directory / entry.name
    except OSError:
        return None
    return None


class RotationTime:
    """When a log file is due to be replaced because of its age. The clock is the caller's; 0 as interval: never."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s: Final = interval_s
        self._since_s = now_s  # when the current file was begun, or this process

    def limit(self, max_bytes: int, now_s: float) -> int:
        """Return the size at which the file is full now: one byte if it is old."""
        return 1 if self._interval_s and now_s - self._since_s >= self._interval_s else max_bytes

    def rotated(self, now_s: float) -> None:
        """Record that a new file was begun."""
        self._since_s = now_s


def rotate_own(path: Path, descriptors: Iterable[int], *, max_bytes: int, keep: int) -> bool:
    """Rotate this process's own log if it is full: continue these descriptors in a new file. Return whether it was.

    Raises OSError, with the descriptors as they were.
    """
    if not _is_full(path, max_bytes):
        return False
    _make_room(path, keep)
    if keep:
        path.rename(_numbered(path, 1))
    else:
        path.unlink()
    fresh = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for descriptor in descriptors:
            os.dup2(fresh, descriptor)
    finally:
        os.close(fresh)
    return True


def rotate_copied(path: Path, *, max_bytes: int, keep: int) -> bool:
    """Rotate a log that another process writes, if it is full. Return whether it was. Raises OSError."""
    if not _is_full(path, max_bytes):
        return False
    _make_room(path, keep)
    if keep:
        copy = _numbered(path, 1)
        try:
            shutil.copyfile(path, copy)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
        copy.chmod(0o600)
    os.truncate(path, 0)
    return True


def _is_full(path: Path, max_bytes: int) -> bool:
    try:
        return path.stat().st_size >= max_bytes
    except FileNotFoundError:
        return False


def _make_room(path: Path, keep: int) -> None:
    """Move each former file one number up; the last one is replaced, and those beyond it are removed."""
    number = max(keep, 1)
    while (beyond := _numbered(path, number)).exists():  # also those that a larger `keep` left
        beyond.unlink()
        number += 1
    for number in range(keep - 1, 0, -1):
        with suppress(FileNotFoundError):
            _numbered(path, number).rename(_numbered(path, number + 1))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")

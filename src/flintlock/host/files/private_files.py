"""Directories and files that only the user of this process can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from flintlock.model.errors import Refused, Unavailable

OTHERS: Final = 0o077  # the bits of all users but the owner


def make_private_directory(directory: Path) -> None:
    """Make the directory if it does not exist, and close it to other users if it is open to them. Idempotent.

    Raises Refused if it belongs to another user who leaves it open, Unavailable if it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if stat.S_IMODE(directory.stat().st_mode) & OTHERS:
            directory.chmod(0o700)
    except PermissionError as error:
        if not directory.is_dir():
            raise Unavailable(f"the directory {directory} cannot be created: {error.strerror}") from error
        raise Refused(
            f"the directory {directory} is open to other users and belongs to user {directory.stat().st_uid}, not"
            f" to user {os.geteuid()} of this process: run `chmod 700 {directory}` as its owner, or use another one"
        ) from error
    except OSError as error:
        raise Unavailable(f"the directory {directory} cannot be created: {error.strerror}") from error


def read_private_file(path: Path, most: int) -> bytes:
    """Return the content of a file that only its owner can use; at most `most` bytes of it.

    Raises FileNotFoundError if there is none, Refused with the path and the reason if it must not be used.
    """
    try:
        # Opening a pipe waits for a writer otherwise.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Refused(f"{path} is not a file")
        if stat.S_IMODE(mode) & OTHERS:
            raise Refused(f"other users can read {path}: run `chmod 600 {path}`")
        content = os.read(descriptor, most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise Refused(f"{path} has more than {most} bytes")
    return content


def make_private_file(path: Path) -> None:
    """Make an empty file if there is none, and close it to other users. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & OTHERS:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)

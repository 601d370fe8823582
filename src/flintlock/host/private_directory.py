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
            raise Unavailable(f"the state directory {directory} cannot be made: {error.strerror}") from error
        raise Refused(
            f"the state directory {directory} is open to other users and belongs to user {directory.stat().st_uid}, not"
            f" to user {os.geteuid()} of this process: run `chmod 700 {directory}` as its owner, or use another one"
        ) from error
    except OSError as error:
        raise Unavailable(f"the state directory {directory} cannot be made: {error.strerror}") from error


def make_private_file(path: Path) -> None:
    """Make an empty file if there is none, and close it to other users. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & OTHERS:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)

"""Removes a savepoint: what its manifest lists, and nothing else.

The first step renames it: from then on there is no savepoint, never a part of one. A process that dies later leaves a
hidden directory, which a repeated removal finds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flintlock.model.errors import Corrupt, Incompatible, Invalid, Unavailable
from flintlock.model.streaming.savepoints import MANIFEST, SavepointManifest, decode_manifest
from flintlock.savepoints.writing import sync_directory


def check_removal(path: Path) -> None:
    """Return if there is a savepoint, or what is left of one. Raises Invalid, OSError."""
    if path.exists() or not _hidden(path).exists():
        _read(path)


def remove_savepoint(path: Path) -> None:
    """Remove a savepoint, or what is left of one. Raises Invalid if it is none, Unavailable if it cannot be removed.

    Several may do so at once, as a leader that was replaced and its successor: what one of them has removed is removed.
    """
    hidden = _hidden(path)
    try:
        if path.exists():
            _read(path)
            _rename(path, hidden)
        if (hidden / MANIFEST).exists():  # it is the last file to be removed
            _remove_files(path, hidden)
    except Invalid:
        if path.exists() or (hidden / MANIFEST).exists():
            raise
    with suppress(OSError):  # it has files that are not of the savepoint, or another removal comes first
        hidden.rmdir()


def _rename(path: Path, hidden: Path) -> None:
    try:
        with suppress(FileNotFoundError):  # another removal has renamed it
            path.rename(hidden)
        sync_directory(hidden.parent)
    except OSError as error:
        raise Unavailable(f"the savepoint {path} cannot be removed: {error.strerror}") from error


def _remove_files(path: Path, hidden: Path) -> None:
    try:
        for file in _read(hidden).files:
            (hidden / file.path).unlink(missing_ok=True)
        for parent, _, _ in sorted(os.walk(hidden), reverse=True):
            if parent != str(hidden):
                with suppress(OSError):  # it has files that are not of the savepoint
                    Path(parent).rmdir()
        (hidden / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(
            f"the savepoint {path} is removed in part, the rest is in {hidden}: {error.strerror}: {error.filename}"
        ) from error


def _hidden(path: Path) -> Path:
    return path.parent / f".{path.name}.disposed"


def _read(path: Path) -> SavepointManifest:
    try:
        return decode_manifest((path / MANIFEST).read_bytes())
    except OSError as error:
        raise Invalid(f"{path} is not a savepoint that the JobManager can read: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise Invalid(f"{str(path)!r} is not a path") from error
    except (Corrupt, Incompatible) as error:
        raise Invalid(f"{path}: {error.public}") from error

"""Removes a savepoint: what its manifest lists, and nothing else.

The first step renames it: from then on there is no savepoint, never a part of one. A process that dies later leaves a
hidden directory, which a repeated removal finds. Each removal has a name of its own for it: files that are not of the
savepoint stay in it, and must not be in the way of what is removed from the same place later.

A removal may be repeated after its savepoint is gone, and another one may have its place by then. So the savepoint
that is meant is identified by its manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.host.files.file_errors import concerns_one_file
from flintlock.model.errors import Corrupt, Incompatible, Invalid, Unavailable
from flintlock.model.streaming.savepoints import MANIFEST, SavepointManifest, decode_manifest
from flintlock.savepoints.writing import sync_directory

#: Identifies what is left of a savepoint that has no manifest any more: no savepoint is meant by it.
_NO_MANIFEST: Final = "none"
_UNIQUE: Final = "[0-9a-f]{12}"


def check_removal(path: Path) -> str:
    """Return what identifies the savepoint at this path, or what is left of it. Raises Invalid, OSError."""
    try:
        return _read(path)[0]
    except Invalid:
        left = _hidden(path)
        if not left or path.exists():
            raise
    return next((found[0] for each in left if (found := _left(each)) is not None), _NO_MANIFEST)


def remove_savepoint(path: Path, identity: str = "") -> None:
    """Remove a savepoint, or what is left of one. Raises Invalid if it is none, Unavailable if it cannot be removed.

    One that is not identified so is left alone: the one that was meant is gone. "": whichever is there.
    Several may do so at once, as a leader that was replaced and its successor: what one of them has removed is removed.
    """
    if path.exists():
        _hide(path, identity)
    for hidden in _hidden(path):
        _remove_files(path, hidden, identity)
        with suppress(OSError):  # it has files that are not of the savepoint, or another removal comes first
            hidden.rmdir()


def _hide(path: Path, identity: str) -> None:
    """Rename a savepoint, if it is the one that is meant."""
    try:
        found, _ = _read(path)
    except Invalid:
        if path.exists():
            raise
        return  # another removal has renamed it
    if identity not in ("", found):
        return
    hidden = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}.disposed"
    try:
        with suppress(FileNotFoundError):  # as above
            path.rename(hidden)
            taken = _left(hidden)
            if taken is not None and taken[0] != found:  # another one has got its place since it was read
                hidden.rename(path)
        sync_directory(hidden.parent)
    except OSError as error:
        raise Unavailable(f"the savepoint {path} cannot be removed: {error.strerror}") from error


def _remove_files(path: Path, hidden: Path, identity: str) -> None:
    left = _left(hidden)
    if left is None or identity not in ("", left[0]):
        return
    try:
        for file in left[1].files:
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


def _hidden(path: Path) -> tuple[Path, ...]:
    """Return what removals have left of savepoints at this path, of earlier versions of Flintlock, too."""
    name = re.compile(rf"\.{re.escape(path.name)}\.({_UNIQUE}\.)?disposed")
    try:
        return tuple(path.parent / each for each in sorted(os.listdir(path.parent)) if name.fullmatch(each))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _left(hidden: Path) -> tuple[str, SavepointManifest] | None:
    """Read what is left of a savepoint; None if its manifest is gone, which is the last file to be removed."""
    try:
        return _read(hidden)
    except Invalid:
        if (hidden / MANIFEST).exists():
            raise
        return None


def _read(path: Path) -> tuple[str, SavepointManifest]:
    """Return what identifies a savepoint, and its manifest. Raises Invalid if it is none, Unavailable."""
    try:
        content = (path / MANIFEST).read_bytes()
        return hashlib.sha256(content).hexdigest(), decode_manifest(content)
    except OSError as error:
        text = f"{path} is not a savepoint that the JobManager can read: {error.strerror}"
        if isinstance(error, FileNotFoundError) or concerns_one_file(error):
            raise Invalid(text) from error
        raise Unavailable(text) from error  # it may be there all the same
    except ValueError as error:  # a null character
        raise Invalid(f"{str(path)!r} is not a path") from error
    except (Corrupt, Incompatible) as error:
        raise Invalid(f"{path}: {error.public}") from error

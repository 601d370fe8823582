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


def remove_savepoint(path: Path) -> None:
    """Remove a savepoint. Raises Invalid if there is none, Unavailable if it cannot be removed."""
    hidden = path.parent / f".{path.name}.disposed"
    if hidden.exists() and not path.exists():
        if not (hidden / MANIFEST).exists():  # it was the last file to be removed
            with suppress(OSError):
                hidden.rmdir()
            return
        manifest = _read(hidden)
    else:
        manifest = _read(path)
        try:
            path.rename(hidden)
            sync_directory(hidden.parent)
        except OSError as error:
            raise Unavailable(f"the savepoint {path} cannot be removed: {error.strerror}") from error
    try:
        for file in manifest.files:
            (hidden / file.path).unlink(missing_ok=True)
        for parent, _, _ in sorted(os.walk(hidden), reverse=True):
            if parent != str(hidden):
                with suppress(OSError):  # it has files that are not of the savepoint
                    Path(parent).rmdir()
        (hidden / MANIFEST).unlink()
        with suppress(OSError):
            hidden.rmdir()
    except OSError as error:
        raise Unavailable(
            f"the savepoint {path} is removed in part, the rest is in {hidden}: {error.strerror}: {error.filename}"
        ) from error


def _read(path: Path) -> SavepointManifest:
    try:
        return decode_manifest((path / MANIFEST).read_bytes())
    except OSError as error:
        raise Invalid(f"{path} is not a savepoint that the JobManager can read: {error.strerror}") from error
    except (Corrupt, Incompatible) as error:
        raise Invalid(f"{path}: {error.public}") from error

"""Makes the metadata of a state name the files of its own checkpoint, before a query is started there.

For some stateful operators (`transformWithState`) Spark keeps the schemas of the state in files, and their absolute
paths in the metadata of the operator:

    state/<operator>/_metadata/v2/<batch>           {"stateStoreInfo": [{"stateSchemaFilePaths": ["file:/…"], …}], …}
    state/<operator>/_stateSchema/<store>/<batch>_<uuid>

A checkpoint that was restored from a savepoint, or exchanged for a repartitioned copy, was in another directory when
that was written. Spark would read the schemas there, and fail once it is gone; while it is there, two jobs would share
files that Spark removes when it does not need them any more.

The metadata may be a link to that of a savepoint: it is replaced, never written through the link.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, Final

from flintlock.savepoints.writing import sync_directory, write_durably

_PATHS: Final = "stateSchemaFilePaths"
_FILE: Final = "file:"


def adopt_schemas(checkpoint: Path) -> None:
    """Have all metadata of the states in a checkpoint name the schemas that are in it. Idempotent. Raises OSError."""
    for file in sorted(checkpoint.glob("state/*/_metadata/v2/*")):
        if not file.name.isdecimal():
            continue
        try:
            metadata = file.read_text()
        except FileNotFoundError:
            continue  # purged meanwhile by an earlier query, which is still ending
        adopted = with_own_schemas(metadata, checkpoint)
        if adopted is not None:
            _replace(file, adopted)


def with_own_schemas(metadata: str, checkpoint: Path) -> str | None:
    """Return the metadata of an operator with the paths of schemas in this checkpoint; None: nothing is to be changed.

    What has another form than Spark writes, or names a file that the checkpoint does not have, is left as it is.
    """
    version, _, text = metadata.partition("\n")
    try:
        content: Any = json.loads(text)
        for store in content["stateStoreInfo"]:
            store[_PATHS] = [_own(str(path), checkpoint) for path in store[_PATHS]]
    except (ValueError, KeyError, TypeError):
        return None
    adopted = f"{version}\n{json.dumps(content, separators=(',', ':'))}"
    return adopted if json.loads(text) != content else None


def _own(path: str, checkpoint: Path) -> str:
    """Return the path of the file of the same place in this checkpoint, if it has one, in the form of the given one."""
    scheme = _FILE if path.startswith(_FILE) else ""
    _, found, place = path.rpartition("/state/")
    own = checkpoint / "state" / place
    return f"{scheme}{own}" if found and own.is_file() else path


def _replace(file: Path, text: str) -> None:
    hidden = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_durably(hidden, text.encode())
        # Of the former content; without one, Hadoop's file system compares nothing.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        hidden.replace(file)
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(file.parent)

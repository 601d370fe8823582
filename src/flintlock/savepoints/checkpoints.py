"""Reads the checkpoint directory of a query, and the log of its file sink, as Spark writes them."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from flintlock.model.errors import Refused
from flintlock.model.streaming.checkpoints import latest_batch

_SINK_LOG = "_spark_metadata"


def local_path(place: str, what: str) -> Path:
    """Return a directory of this machine. Raises Refused for another file system, and for what is no absolute path."""
    text = place
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if not text.startswith("/") or "\0" in text:  # the operating system's calls would raise ValueError
        raise Refused(
            f"{what} {place!r} is not a directory that the JobManager can reach: savepoints are made of files, on local"
            " or mounted file systems, and named by an absolute path"
        )
    return Path(text)


def compared_marker(checkpoint: Path) -> Path:
    """Return the file beside a restored checkpoint that says that its state fits the steps that use it."""
    return checkpoint.with_name(f".{checkpoint.name}.compared")


def is_local(place: str) -> bool:
    """Return whether a path is on a file system of this machine."""
    return place.startswith(("/", "file:"))


def committed_batch(checkpoint: Path) -> int | None:
    """Return the last batch that a query has committed; None if there is none."""
    return latest_batch(_names(checkpoint / "commits"))


def planned_batch(checkpoint: Path) -> int | None:
    """Return the last batch that a query has planned; None if there is none."""
    return latest_batch(_names(checkpoint / "offsets"))


def latest_sink_batch(target: str) -> int | None:
    """Return the last batch in the log of a file sink; None if it has none, or is not on a local file system."""
    try:
        return latest_batch(_names(local_path(target, "the sink") / _SINK_LOG))
    except Refused:
        return None


def commit_entry(checkpoint: Path, batch: int) -> str:
    """Return the entry of a batch in the log of commits; "" if there is none."""
    try:
        return (checkpoint / "commits" / str(batch)).read_text()
    except FileNotFoundError:
        return ""


def snapshot_metadata(file: Path) -> dict[str, Any]:
    """Return what RocksDB's snapshot says of itself. Raises ValueError if it cannot be read, OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _document(archive.read("metadata").partition(b"\n")[2])
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file.name} is not a snapshot of RocksDB: {error}") from error


def files_of_snapshot(metadata: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Yield the files that RocksDB's snapshot names, relative to the directory of the snapshot, with their sizes.

    None for a size that it does not name.
    """
    for key, name, directory in (("sstFiles", "dfsSstFileName", "SSTs"), ("logFiles", "dfsLogFileName", "logs")):
        files: object = metadata.get(key)
        for file in cast("list[object]", files) if isinstance(files, list) else []:
            named = cast("dict[str, object]", file) if isinstance(file, dict) else {}
            found, size = named.get(name), named.get("sizeBytes")
            if isinstance(found, str):
                yield f"{directory}/{found}", size if isinstance(size, int) else None


def files_below(directory: Path) -> list[str]:
    """Return the paths of all files below a directory, relative to it. Raises OSError if one cannot be listed.

    A directory that is not there, or is removed meanwhile, has no files.
    """
    found: list[str] = []
    for parent, _, names in os.walk(directory, onerror=_raise_unless_missing):
        found.extend(os.path.relpath(os.path.join(parent, name), directory) for name in names)  # noqa: PTH118
    return found


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def query_id(metadata: bytes) -> str:
    """Return the id in a query's file `metadata`; "" if it has none."""
    found = _document(metadata).get("id")
    return found if isinstance(found, str) else ""


def offsets_of(log_entry: str) -> tuple[str, ...]:
    """Return the offset of each source in a file of the offset log: after its version and its metadata."""
    return tuple(log_entry.splitlines()[2:])


def state_partitions(log_entry: str) -> int:
    """Return the number of state partitions that a file of the offset log names; 0 if it names none."""
    lines = log_entry.splitlines()
    conf = _document(lines[1].encode()).get("conf") if len(lines) > 1 else None
    value = cast("dict[str, object]", conf).get("spark.sql.shuffle.partitions") if isinstance(conf, dict) else None
    return int(value) if isinstance(value, str) and value.isdecimal() else 0


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return []


def _document(text: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

"""Finds out whether the files of a checkpoint are as Spark has written them, before anything relies on them.

Spark itself notices it only when it reads them: when a job is restored, and its checkpoints may be gone. What is there
to compare with: RocksDB's snapshots name their files with sizes, and Hadoop's local file system keeps a CRC-32 for each
512 bytes of a file in a hidden file beside it.

Rejected: to compare the checksums of large files, too. They are many short ones, which takes longer in Python than it
takes to copy the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final

from flintlock.model.streaming.savepoints import FileDamaged, FileGone
from flintlock.savepoints.checkpoints import files_of_snapshot, snapshot_metadata

_MAGIC: Final = b"crc\0"
_HEADER: Final = len(_MAGIC) + 4  # with the number of bytes that each checksum is of
_COMPARED: Final = 1 << 20  # the content of files up to this size, of larger ones their size


def check_snapshots(saved: Path, names: Collection[str]) -> None:
    """Raise FileGone or FileDamaged if RocksDB could not load a snapshot.

    Spark removes files that it needs no longer while they are listed: one that was gone by then is only missed here.
    Where a version has several, one counts, and which it is is not known: the files of the others may be gone.
    """
    there, problems = frozenset(names), dict[str, list[FileGone | None]]()
    for name in names:
        at, _, last = name.rpartition("/")
        if name.startswith("state/") and last.endswith(".zip"):
            version = f"{at}/{last.removesuffix('.zip').partition('_')[0]}"  # without the id of a try of its batch
            problems.setdefault(version, []).append(_problem_of_snapshot(saved, name, there))
    for found in problems.values():
        if all(found) and found[0] is not None:
            raise found[0]


def _problem_of_snapshot(saved: Path, name: str, there: Collection[str]) -> FileGone | None:
    """Return why Spark could not load a snapshot of RocksDB; None if it can."""
    at = name.rpartition("/")[0]
    try:
        needed = list(files_of_snapshot(snapshot_metadata(saved / name)))
    except ValueError as error:
        return FileDamaged(f"{name} cannot be read: {error}")
    for below, size in needed:
        file = f"{at}/{below}"
        if file not in there:
            return FileGone(f"{file}, which {name} names")
        found = (saved / file).stat().st_size
        if size is not None and found != size:
            return FileDamaged(f"{file} has {found:,} of the {size:,} bytes that {name} names")
    return None


def check_file(file: Path, checksums: Path, name: str) -> None:
    """Raise FileDamaged if a file is not as Hadoop's checksums say, as far as it has some. Raises OSError."""
    try:
        known = checksums.read_bytes()
    except FileNotFoundError:  # purged meanwhile: with the file, which has its content all the same
        return
    each = int.from_bytes(known[len(_MAGIC) : _HEADER], "big")
    if not known.startswith(_MAGIC) or not each:
        return  # Hadoop takes it for no file of checksums, either
    size = file.stat().st_size
    sums = known[_HEADER:]
    if len(sums) != 4 * -(-size // each):
        raise FileDamaged(f"{name} has {size:,} bytes, and was written with {len(sums) // 4:,} times {each:,} or less")
    if size > _COMPARED:
        return
    content = memoryview(file.read_bytes())
    found = b"".join(zlib.crc32(content[at : at + each]).to_bytes(4, "big") for at in range(0, size, each))
    if found != sums:
        raise FileDamaged(f"{name} has another content than was written: its checksums differ")

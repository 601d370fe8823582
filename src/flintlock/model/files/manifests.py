"""What a blocking result consists of: recorded when it is written, compared whenever it is read.

The record of a finished region is durable; the files that it refers to are in a directory that others can change (a
cleaner of temporary files, an operator, a loss of power). So the record has a manifest of the files, and a reader that
finds other files than those has a missing input, never fewer rows.

A manifest is bounded: the digest covers the name and the length of every file, and the files themselves are listed only
up to `MAX_LISTED`, for messages that name the file. Records are rewritten with each phase and are limited to about
1 MB in ZooKeeper mode; the list of a result with 100,000 files would be larger than that.

Rejected: checksums of the content. Computing them would read every result once more. Names and lengths detect what is
missing, truncated or replaced; Hadoop's own checksums detect changed bytes of local files while they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

#: A manifest lists so many files at most.
MAX_LISTED: Final = 100


class ManifestFile(Struct, frozen=True):
    """One file of a blocking result."""

    name: str  # relative to the result's directory
    bytes: int


class Manifest(Struct, frozen=True, kw_only=True):
    """The files of one blocking result."""

    count: int  # of files
    bytes: int  # of all files
    rows: int  # as Spark counted them when it wrote them
    digest: str  # of the name and the length of each file
    files: tuple[ManifestFile, ...] = ()  # in order; empty if there are more than `MAX_LISTED`


def manifest_of(files: Mapping[str, int], rows: int) -> Manifest:
    """Return the manifest of these files, given by their names and lengths."""
    listed = tuple(ManifestFile(name, files[name]) for name in sorted(files)) if len(files) <= MAX_LISTED else ()
    return Manifest(count=len(files), bytes=sum(files.values()), rows=rows, digest=_digest(files), files=listed)


def difference(manifest: Manifest, files: Mapping[str, int]) -> str | None:
    """Return how these files differ from the manifest, as a clause about the result; None if they do not."""
    if _digest(files) == manifest.digest:
        return None
    for expected in manifest.files:
        length = files.get(expected.name)
        if length is None:
            return f"its file {expected.name} is missing ({len(files)} of {manifest.count} files are there)"
        if length != expected.bytes:
            return f"its file {expected.name} has {length} of {expected.bytes} bytes"
    return (
        f"{manifest.count} files of {manifest.bytes} bytes were written, "
        f"and {len(files)} files of {sum(files.values())} bytes are there"
    )


def _digest(files: Mapping[str, int]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(files):
        digest.update(f"{name}\0{files[name]}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()

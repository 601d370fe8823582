"""The order in which a publication changes files, one step at a time: a crash may fall between any two of them.

A success marker says that what is beside it is the complete output of one run, or of several whole appends. So the
marker of an earlier run is removed before anything else changes, and the new one is made after everything else has:

    remove old markers -> move every file -> remove every replaced file -> make new markers -> remove empty directories

Local files are durable in the same order: the content of staged files is made durable when they are listed, before the
publication is decided; here, directories are.

Every step can be repeated. A publication that is repeated when it was complete changes nothing: it finds none of its
files where they were staged, and leaves the marker alone, which may be a later run's by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from flintlock.spark.engine.messages import Publish


class PublishedFiles(Protocol):
    """The file operations of a publication. Each is idempotent, and raises if it fails."""

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""
        ...

    def move(self, source: str, target: str) -> None:
        """Move a file; one that was moved already stays as it is."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def mark(self, path: str) -> None:
        """Make an empty file."""
        ...

    def sync(self, directories: Iterable[str], files: Iterable[str] = ()) -> None:
        """Make the names in these directories and the content of these files durable, where that is required."""
        ...

    def remove_staging(self, path: str) -> None:
        """Remove a staging directory, unless a file is in it."""
        ...

    def remove_empty(self, path: str) -> None:
        """Remove a directory if it is empty."""
        ...


def step_count(order: Publish) -> int:
    """Return how often `publish_steps` yields."""
    return len(order.moves) + len(order.removes) + 2 * len(order.success_markers)


def publish_steps(order: Publish, files: PublishedFiles) -> Iterator[str]:
    """Publish; yield the path after each file that is in its final state."""
    unfinished = any(files.exists(path) for path in (*(move.source for move in order.moves), *order.removes))
    for path in order.success_markers:
        if unfinished:
            files.remove(path)
        yield path
    marked = dict.fromkeys(map(_directory, order.success_markers))
    if unfinished:
        files.sync(marked)  # else the old marker could be back after a loss of power, beside new files
    for move in order.moves:
        files.move(move.source, move.target)
        yield move.target
    for path in order.removes:
        files.remove(path)
        yield path
    files.sync(dict.fromkeys(map(_directory, (*(move.target for move in order.moves), *order.removes))))
    for path in order.success_markers:
        files.mark(path)
        yield path
    files.sync(marked, order.success_markers)
    for path in order.staging_dirs:
        files.remove_staging(path)
    for path in order.left_dirs:
        files.remove_empty(path)


def _directory(path: str) -> str:
    return path.rpartition("/")[0]

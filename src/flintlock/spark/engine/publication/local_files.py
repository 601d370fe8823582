"""Makes local files durable: content, names, and the directories that lead to them.

A file that a process has written is in the page cache, and a loss of power can leave it empty, although a record that
was written later says that it is complete. So what Spark wrote under `file:` is synchronised before it is recorded.

Synchronising is waiting: it is done in threads, and the kernel writes what several of them wait for together. A parent
directory in which nothing was made or removed since it was synchronised last is left out, by its modification time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

_THREADS: Final = 32
_AT_ONCE: Final = 4096  # files that wait for a thread

#: The kernel's clock for modification times has ticks: within so long, two changes may have the same time.
_TICK_NS: Final = 100_000_000

_REMEMBERED: Final = 4096


class LocalFiles:
    """Synchronises files of this machine. Thread-safe."""

    def __init__(self) -> None:
        self._synced: Final[dict[str, int]] = {}  # parents: their modification time when they were synchronised last

    def sync_tree(self, root: Path) -> None:
        """Make all files below a directory durable, with its directories and their parents. Raises OSError.

        Files that others remove meanwhile are left out.
        """
        if not os.path.isdir(root):  # noqa: PTH112 - Path raises where its parent may not be read
            return
        within = ((_sync_one, path) for path in _below(root))
        self._run(chain(within, ((self._sync_parent, str(path)) for path in root.parents)))

    def sync(self, directories: Iterable[Path], files: Iterable[Path] = ()) -> None:
        """Make the names in directories, those of the directories, and the content of files durable. Raises OSError."""
        own = dict.fromkeys(directories)
        parents = dict.fromkeys(parent for path in own for parent in path.parents if parent not in own)
        within = ((_sync_one, str(path)) for path in chain(files, own))
        self._run(chain(within, ((self._sync_parent, str(path)) for path in parents)))

    def _run(self, work: Iterable[tuple[Callable[[str], None], str]]) -> None:
        """Do it in threads, a part at a time: the sink of a query that has run for months may have a million files."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sync") as pool:
            remaining = iter(work)
            while part := [pool.submit(act, path) for act, path in islice(remaining, _AT_ONCE)]:
                for done in part:
                    done.result()

    def _sync_parent(self, path: str) -> None:
        """Synchronise a parent, unless nothing has changed in it. One that may not be read was not made by us."""
        with suppress(PermissionError, FileNotFoundError):
            changed_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - see above
            if self._synced.get(path) == changed_ns:
                return
            _sync_one(path)
            if time.time_ns() - changed_ns > _TICK_NS:  # else a later change may have the same time
                if len(self._synced) >= _REMEMBERED:
                    self._synced.clear()
                self._synced[path] = changed_ns


def _below(root: Path) -> Iterator[str]:
    """Yield a directory, and all files and directories below it."""
    for directory, _, names in os.walk(root):
        yield directory
        for name in names:
            yield os.path.join(directory, name)  # noqa: PTH118 - Path takes ten times as long


def _sync_one(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

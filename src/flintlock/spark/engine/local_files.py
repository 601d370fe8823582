"""Makes local files durable: content, names, and the directories that lead to them.

A file that a process has written is in the page cache, and a loss of power can leave it empty, although a record that
was written later says that it is complete. So what Spark wrote under `file:` is synchronised before it is recorded.

Synchronising is waiting: it is done in threads, and the kernel writes what several of them wait for together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

_THREADS: Final = 32


def sync_tree(root: Path) -> None:
    """Make all files below a directory durable, with its directories and their parents. Raises OSError.

    Files that others remove meanwhile are left out.
    """
    files: list[str] = []
    directories: list[str] = []
    for directory, _, names in os.walk(root):
        directories.append(directory)
        files += [os.path.join(directory, name) for name in names]  # noqa: PTH118 - Path takes ten times as long
    _sync(files)
    sync_directories(map(Path, directories))


def sync_files(paths: Iterable[Path]) -> None:
    """Make the content of files durable. Raises OSError."""
    _sync([str(path) for path in paths])


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the names in directories durable, and those of the directories themselves. Raises OSError.

    A parent that this process may not read was not made by it, and is left out.
    """
    own = dict.fromkeys(paths)
    _sync([str(path) for path in own])
    parents = dict.fromkeys(parent for path in own for parent in path.parents if parent not in own)
    for parent in parents:
        with suppress(PermissionError):
            _sync_one(str(parent))


def _sync(paths: list[str]) -> None:
    if len(paths) < 2:  # most outputs are small: no thread is started for them
        for path in paths:
            _sync_one(path)
        return
    with ThreadPoolExecutor(min(_THREADS, len(paths)), thread_name_prefix="sync") as pool:
        list(pool.map(_sync_one, paths))


def _sync_one(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

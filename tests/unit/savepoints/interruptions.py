"""Interrupts code at the file operations that it makes below a directory, as the death of a process does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_OPERATIONS: Final = frozenset(
    {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.listdir", "os.scandir"}
)
_observers: Final[list[Callable[[str, str], None]]] = []  # of which the hook, that cannot be removed, calls the last
_installed: Final[list[bool]] = []


class Died(BaseException):
    """The process has died: no handler of it runs."""


@contextmanager
def observing(directory: Path, observer: Callable[[str, str], None]) -> Generator[None]:
    """Call `observer` with each operation, and its path, before it is made on a file below the directory."""

    def observe(event: str, path: str) -> None:
        if path.startswith(str(directory)):
            observer(event, path)

    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)
    _observers.append(observe)
    try:
        yield
    finally:
        _observers.remove(observe)


@contextmanager
def dying_at(directory: Path, number: int) -> Generator[None]:
    """Die before the operation of this number; all after it fail, too: a dead process does nothing."""
    count = 0

    def observe(event: str, path: str) -> None:
        nonlocal count
        count += 1
        if count >= number:
            raise Died(f"{event} {path}")

    with observing(directory, observe):
        yield


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _observers and event in _OPERATIONS and arguments:
        _observers[-1](event, str(arguments[0]))

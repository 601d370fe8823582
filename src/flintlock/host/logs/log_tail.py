"""The end of a log file, for messages about how its process ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 8 << 10


def read_tail(log: str | Path | int, max_bytes: int = TAIL_BYTES) -> str:
    """Return the end of a file, or of an open one, as text, at most so many bytes of it; empty if it cannot be read."""
    try:
        if isinstance(log, int):
            return os.pread(log, max_bytes, max(0, os.fstat(log).st_size - max_bytes)).decode(errors="replace")
        with Path(log).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def tail(log_path: str | Path, lines: int = TAIL_LINES, *, after: int = 0) -> str:
    """Return the last lines, of what was written after so many bytes; empty if there are none.

    A file that is shorter than that has been replaced since: all of it was written later.
    """
    size = size_of(log_path)
    text = read_tail(log_path, min(TAIL_BYTES, size - after if size >= after else size))
    return "\n".join(text.rstrip().split("\n")[-lines:])


def size_of(log_path: str | Path) -> int:
    """Return how long a log file is; 0 if there is none."""
    try:
        return Path(log_path).stat().st_size
    except OSError:
        return 0

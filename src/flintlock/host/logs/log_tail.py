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


def tail(log_path: str | Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines; empty if there are none."""
    return "\n".join(read_tail(log_path).rstrip().split("\n")[-lines:])

"""The end of a log file, for messages about how its process ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 8 << 10


def tail(log_path: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines; empty if there are none."""
    try:
        with Path(log_path).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().split("\n")[-lines:])

"""The log lines of a process, written to one descriptor. A line that cannot be written ends nothing.

A log often lies on the disk that fills up, or is a pipe whose reader is gone. A process that raised there would end for
a line that no one can read. So such a line is dropped and counted, and the first one that can be written again is
preceded by a line that says how many are missing and why.

Each line is one write to the descriptor. Rejected: Python's own streams, whose buffers keep what could not be written,
raise again for it at the next line, and at the exit of the process.

Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Final, TextIO

from flintlock.model import log_events

_STDERR: Final = 2
_NO_DESCRIPTOR: Final = -1  # writing there fails, and is counted


class LogOutput:
    """Writes lines. May be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor
        self._lock: Final = threading.Lock()
        self._unreported = 0  # lines dropped since the last one that was written
        self._reason = ""  # why the last of them was dropped
        self._cut = False  # the last write ended within a line
        self.dropped = 0  # lines that were dropped since the process started

    def write(self, line: str) -> None:
        """Write one line, or drop it if that is impossible now. Never raises."""
        with self._lock:
            if self._unreported and not self._write(_report(self._unreported, self._reason)):
                self._drop()
                return
            self._unreported = 0
            if not self._write(line):
                self._drop()

    def is_terminal(self) -> bool:
        """Return whether a person reads it."""
        return os.isatty(self._descriptor)

    def _drop(self) -> None:
        self._unreported += 1
        self.dropped += 1

    def _write(self, line: str) -> bool:
        """Write a line; False, with `_reason` set, if not all of it could be written."""
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._cut:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            self._reason = error.strerror or str(error)
            self._cut = self._cut if written == 0 else data[written - 1] != ord("\n")
            return False
        self._cut = False
        return True

    msg = debug = info = warning = warn = error = critical = fatal = exception = failure = log = write
    """The names by which structlog calls a logger, whatever the level: the line has it already."""


def stderr_output() -> LogOutput:
    """Return an output to stderr. Where a process was started without one, its number may be that of any file."""
    stream: TextIO | None = sys.stderr
    return LogOutput(_STDERR if stream is not None else _NO_DESCRIPTOR)


def note(text: str) -> None:
    """Write a line to stderr, from a process without a log of its own; dropped if that is impossible. Never raises."""
    stderr_output().write(text)


def _report(lines: int, reason: str) -> str:
    return json.dumps(
        {
            "event": log_events.LOG_LINES_DROPPED,
            "lines": lines,
            "reason": reason,
            "level": "warning",
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
    )

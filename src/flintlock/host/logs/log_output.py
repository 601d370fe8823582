"""The log lines of a process, written to one descriptor. A line that cannot be written ends nothing.

A log often lies on the disk that fills up, or is a pipe whose reader is gone. A process that raised there would end for
a line that no one can read. So such a line is dropped and counted, and the first one that can be written again is
preceded by a line that says how many are missing and why.

A write may also not return: the disk stalls, or no one reads the pipe. Then the caller would stand still, and a caller
is often the event loop: a leader would lose its term and a TaskManager its work, for a line in a log. So a process that
has a loop queues its lines (`QueuedLogOutput`): a thread writes them, and a line that finds the queue full is dropped.

Lines that wait together are one write to the descriptor. Rejected: Python's own streams, whose buffers keep what could
not be written, raise again for it at the next line, and at the exit of the process.

Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TextIO

from flintlock.model import log_events

_STDERR: Final = 2
_NO_DESCRIPTOR: Final = -1  # writing there fails, and is counted
_TOO_SLOW: Final = "the log takes lines too slowly"

#: How long a queued line waits for others: one write of many costs the loop far less than many writes.
_GATHER_S: Final = 0.01

#: Lines that wait for the disk, or for the reader of a pipe. At some hundred bytes each they are a few megabytes.
MAX_QUEUED_LINES: Final = 10_000


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
        self.write_lines((line,))

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines in one go, or drop those for which that is impossible now. Never raises."""
        with self._lock:
            if self._unreported and self._write((_report(self._unreported, self._reason),)):
                self._drop(len(lines))
                return
            self._unreported = 0
            self._drop(self._write(lines))

    def report_dropped(self, lines: int, reason: str) -> None:
        """Have the next line that can be written preceded by a report of lines that were dropped before they came."""
        with self._lock:
            self._reason = reason
            self._unreported += lines

    def is_terminal(self) -> bool:
        """Return whether a person reads it."""
        return os.isatty(self._descriptor)

    def _drop(self, lines: int) -> None:
        self._unreported += lines
        self.dropped += lines

    def _write(self, lines: Sequence[str]) -> int:
        """Write lines; return how many could not be written whole, with `_reason` set if there are any."""
        data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        if self._cut:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            self._reason = error.strerror or str(error)
            self._cut = self._cut if written == 0 else data[written - 1] != ord("\n")
            return min(len(lines), data[written:].count(b"\n"))
        self._cut = False
        return 0

    msg = debug = info = warning = warn = error = critical = fatal = exception = failure = log = write
    """The names by which structlog calls a logger, whatever the level: the line has it already."""


class QueuedLogOutput:
    """Writes lines to an output from a thread of its own, in their order. May be called from any thread; never waits.

    The thread is a daemon, which no exit waits for: `flush` before the process ends. What was queued when a process is
    killed is lost.
    """

    def __init__(self, output: LogOutput, max_lines: int = MAX_QUEUED_LINES) -> None:
        self._output: Final = output
        self._max_lines: Final = max_lines
        self._changed: Final = threading.Condition()  # of what follows
        self._lines: Final[deque[tuple[int, str]]] = (
            deque()
        )  # with how many are missing before it; the first is written
        self._missing = 0  # lines that were dropped since the last one that was queued
        self._refused = 0  # lines that found the queue full, since the process started
        self._flushing = 0  # callers that wait for the queue to be empty
        threading.Thread(target=self._run, name="log-output", daemon=True).start()

    @property
    def dropped(self) -> int:
        """How many lines were dropped since the process started."""
        return self._output.dropped + self._refused

    def write(self, line: str) -> None:
        """Queue one line, or drop it if too many wait. Never raises."""
        with self._changed:
            if len(self._lines) >= self._max_lines:
                self._missing += 1
                self._refused += 1
                return
            self._lines.append((self._missing, line))
            self._missing = 0
            if len(self._lines) == 1:
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every line is written or dropped, no longer than that; return whether it is so."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._lines, timeout_s)
            finally:
                self._flushing -= 1

    def is_terminal(self) -> bool:
        """Return whether a person reads it."""
        return self._output.is_terminal()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                self._changed.wait_for(lambda: self._flushing > 0, _GATHER_S)
                queued = list(self._lines)
            first = 0
            for number, (missing, _) in enumerate(queued):
                if missing:
                    self._output.write_lines([line for _, line in queued[first:number]])
                    self._output.report_dropped(missing, _TOO_SLOW)
                    first = number
            self._output.write_lines([line for _, line in queued[first:]])
            with self._changed:
                for _ in queued:
                    self._lines.popleft()
                if not self._lines:
                    self._changed.notify_all()

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
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "level": "warning",
            "event": log_events.LOG_LINES_DROPPED,
            "lines": lines,
            "reason": reason,
        }
    )

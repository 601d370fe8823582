"""A runner's output, from its pipe into the attempt's log: all of it up to a limit, and then only its end.

A runner prints into a pipe, which the template empties. So a program that prints without end fills no disk, and is
never blocked by it either: what exceeds the limit is read and dropped, except for its last few lines, which show how it
ended. When a runner has ended, the rest of the pipe is read before its end is reported.

Rejected: a limit on the size of files (it would apply to every file that user code writes); a log that is cut
periodically (a gigabyte can be written in between); closing the pipe (user code would die of printing).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

CHUNK: Final = 1 << 16

#: How much of the end of the dropped output is written.
LAST_BYTES: Final = 8 << 10

#: How much is read from the pipe of a dead runner: a pipe contains no more.
LEFT_BYTES: Final = 1 << 20


class CapturedOutput:
    """The output of one runner: its pipe from the beginning, and its log once it has a task."""

    def __init__(self, reader: int) -> None:
        os.set_blocking(reader, False)
        self.reader: Final = reader
        self._log: int | None = None  # set by open; None again when it cannot be written any more
        self._remaining = 0  # bytes until the limit
        self._dropped = 0  # bytes beyond the limit
        self._last = b""  # the end of the dropped bytes

    def open(self, path: str, limit: int) -> None:
        """Write to this file from now on, at most `limit` bytes and the end of the output.

        If the file cannot be opened or written, the output is lost; the task continues.
        """
        with suppress(OSError):
            self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._remaining = limit

    def pump(self) -> bool:
        """Copy some of the pipe's content to the log; False at the end of the pipe."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._add(data)
        return bool(data)

    def close(self) -> None:
        """Copy the rest of the pipe, note how much was dropped, and close pipe and log."""
        read = 0
        with suppress(OSError):  # BlockingIOError: empty, though another process has its other end open
            while read < LEFT_BYTES and (data := os.read(self.reader, CHUNK)):
                read += len(data)
                self._add(data)
        if self._dropped:
            tail = self._last[self._last.find(b"\n") + 1 :] if self._dropped > len(self._last) else self._last
            self._write(f"\n[flintlock: {self._dropped - len(tail)} bytes are left out here]\n".encode() + tail)
        os.close(self.reader)
        if self._log is not None:
            os.close(self._log)

    def _add(self, data: bytes) -> None:
        allowed, rest = data[: self._remaining], data[self._remaining :]
        if allowed:
            self._remaining -= len(allowed)
            self._write(allowed)
        if rest:
            self._dropped += len(rest)
            self._last = (self._last + rest)[-LAST_BYTES:]

    def _write(self, data: bytes) -> None:
        while data and self._log is not None:
            try:
                data = data[os.write(self._log, data) :]
            except OSError:  # a full disk, perhaps
                os.close(self._log)
                self._log = None

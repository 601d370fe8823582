"""What a runner prints, on its way into the attempt's log: all of it up to a limit, and then only its end.

A runner prints into a pipe, which the template empties. So a program that prints without end fills no disk, and is
never stopped by it either: what does not fit is read and dropped, except for its last few lines, which are the ones
that tell how it ended. When a runner is gone, what it left in the pipe is read before its end is told.

Rejected: a limit on the size of files (it would hold for every file that user code writes); a log that is cut from
time to time (a gigabyte can be written in between); closing the pipe (user code would die of printing).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

CHUNK: Final = 1 << 16

#: How much of the end of what did not fit is kept.
LAST_BYTES: Final = 8 << 10

#: How much of what a dead runner has left in its pipe is read: a pipe holds no more.
LEFT_BYTES: Final = 1 << 20


class Output:
    """What one runner prints. Knows its pipe from the beginning, and its log once there is a task."""

    def __init__(self, reader: int) -> None:
        os.set_blocking(reader, False)
        self.reader: Final = reader
        self._log: int | None = None  # set by open; None again when it cannot be written any more
        self._room = 0  # bytes that still fit
        self._dropped = 0  # bytes that did not
        self._last = b""  # the end of those

    def open(self, path: str, limit: int) -> None:
        """Write to this file from now on, at most `limit` bytes and what the end of the output takes.

        A file that cannot be opened or written costs the output, never the task.
        """
        with suppress(OSError):
            self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._room = limit

    def pump(self) -> bool:
        """Pass on some of what is in the pipe; False if there is nothing, and none can come."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._take(data)
        return bool(data)

    def close(self) -> None:
        """Pass on what is left in the pipe, tell what was left out, and let go of both ends."""
        read = 0
        with suppress(OSError):  # BlockingIOError: empty, though something else still holds its other end
            while read < LEFT_BYTES and (data := os.read(self.reader, CHUNK)):
                read += len(data)
                self._take(data)
        if self._dropped:
            kept = self._last[self._last.find(b"\n") + 1 :] if self._dropped > len(self._last) else self._last
            self._write(f"\n[flintlock: {self._dropped - len(kept)} bytes are left out here]\n".encode() + kept)
        os.close(self.reader)
        if self._log is not None:
            os.close(self._log)

    def _take(self, data: bytes) -> None:
        fits, rest = data[: self._room], data[self._room :]
        if fits:
            self._room -= len(fits)
            self._write(fits)
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

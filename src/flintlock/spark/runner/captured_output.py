"""A runner's output, from its pipe into the attempt's log: all of it up to a limit, and then only its end.

A runner prints into a pipe, which the template empties. So a program that prints without end fills no disk, and is
never blocked by it either: what exceeds the limit is read and dropped, except for its last few lines, which show how it
ended. When a runner has ended, the rest of the pipe is read before its end is reported. Output that cannot be written
(a full disk) is dropped, too; once writing works again, the log says how much is missing, and goes on.

Standard output and standard error have a pipe each, and one log, in the order in which they are read. Which parts of
the log are standard error is recorded beside it (`host.logs.stderr_spans`), before the part itself: who reads the log
first and the record afterwards knows all parts.

Rejected: a limit on the size of files (it would apply to every file that user code writes); a log that is cut
periodically (a gigabyte can be written in between); closing the pipe (user code would die of printing).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from flintlock.host.logs.stderr_spans import encoded_span, spans_path

CHUNK: Final = 1 << 16

#: How much of the end of the dropped output is written.
LAST_BYTES: Final = 8 << 10

#: How much is read from the pipe of a dead runner: a pipe contains no more.
LEFT_BYTES: Final = 1 << 20

#: How many parts of a log are recorded as standard error, of 16 bytes each: a program can write single bytes in turn.
MOST_SPANS: Final = 1 << 20


class CapturedOutput:
    """The output of one runner: its pipe from the beginning, and its log once it has a task."""

    def __init__(self, reader: int, errors: int | None = None) -> None:
        """`reader`: the end of the pipe of standard output, or of both; `errors`: that of standard error alone."""
        self.reader: Final = reader
        self.errors: Final = errors
        #: All of them, in the order in which they are read.
        self.readers: Final = (reader,) if errors is None else (reader, errors)
        for one in self.readers:
            os.set_blocking(one, False)
        self._spans: int | None = None  # the open record of what is standard error; None until there is some
        self._recorded = 0  # parts in it
        self._path: str | None = None  # of the log; set by `open`
        self._log: int | None = None  # the open log; None until it could be opened
        self._remaining = 0  # bytes until the limit
        self._dropped = 0  # bytes beyond the limit
        self._last = b""  # the end of the dropped bytes
        self._unwritten = 0  # bytes that the disk did not take since the last that it took

    def open(self, path: str, limit: int, log: int | None = None, spans: int | None = None) -> None:
        """Write to this file from now on, at most `limit` bytes and the end of the output.

        What cannot be written is lost; the task continues, and so does the log when it can be written again. `log` is
        a descriptor of the file where this process may not open it, and `spans` one of the record of what is standard
        error; they are closed with this object.
        """
        self._path, self._remaining, self._log, self._spans = path, limit, log, spans
        self._write(b"")  # a task that prints nothing has a log, too

    def pump(self, reader: int | None = None) -> bool:
        """Copy some of the content of a pipe, by default the first one, to the log; False at the end of the pipe."""
        reader = self.reader if reader is None else reader
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._add(data, error=reader == self.errors)
        return bool(data)

    def close(self) -> None:
        """Copy the rest of the pipes, note how much was dropped, and close pipes and log."""
        for reader in self.readers:
            read = 0
            with suppress(OSError):  # BlockingIOError: empty, though another process has its other end open
                while read < LEFT_BYTES and (data := os.read(reader, CHUNK)):
                    read += len(data)
                    self._add(data, error=reader == self.errors)
        if self._dropped:
            tail = self._last[self._last.find(b"\n") + 1 :] if self._dropped > len(self._last) else self._last
            note = f"\n[flintlock: {self._dropped - len(tail)} bytes are left out here]\n"
            self._write(note.encode(), error=self.errors is not None)
            self._write(tail)
        elif self._unwritten:
            self._write(b"")
        self.forget()

    def forget(self) -> None:
        """Close pipes and log and write nothing: for a forked process, which must not have what is another runner's."""
        for one in (*self.readers, self._log, self._spans):
            if one is not None:
                os.close(one)

    def _add(self, data: bytes, *, error: bool = False) -> None:
        allowed, rest = data[: self._remaining], data[self._remaining :]
        if allowed:
            self._remaining -= len(allowed)
            self._write(allowed, error=error)
        if rest:
            self._dropped += len(rest)
            self._last = (self._last + rest)[-LAST_BYTES:]

    def _write(self, data: bytes, *, error: bool = False) -> None:
        """Write to the log, after a note of what is missing before it; what cannot be written is counted."""
        if self._path is None:
            return
        try:
            if self._log is None:
                self._log = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if self._unwritten:
                note = f"\n[flintlock: {self._unwritten} bytes could not be written here]\n".encode()
                while note:
                    note = note[os.write(self._log, note) :]
                self._unwritten = 0
            if error and data:
                self._record(self._path, os.fstat(self._log).st_size, len(data))
            while data:
                data = data[os.write(self._log, data) :]
        except OSError:  # a full disk, perhaps
            self._unwritten += len(data)

    def _record(self, path: str, offset: int, length: int) -> None:
        """Record that this part of the log is standard error. Without a record it counts as standard output."""
        if self._recorded == MOST_SPANS:
            return
        self._recorded += 1
        with suppress(OSError):
            if self._spans is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._spans = os.open(spans_path(path), flags, 0o600)
            os.write(self._spans, encoded_span(offset, length))

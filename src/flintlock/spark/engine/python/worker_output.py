"""The output of Python functions, from the workers of a shared engine to the log of the attempt that they work for.

Each runner prints into a named pipe, which the template of runners reads (`runner.output_pipe`). A worker finds the
pipe of its attempt by the user id in the tag that Spark Connect gives to each operation: every attempt has a user id of
its own. So what functions print arrives where the attempt's own output does, under the same limit on its size, and
output that was printed before a Spark task has ended is in the pipe before the runner knows of that end. The process
that runs a function of foreachBatch has no Spark task: the function itself brings the user id (`printing_for`).

Nothing here blocks or fails a task: a worker waits a moment for room in a full pipe, then drops what it prints until
there is room again, and says how much is missing. What cannot be attributed (no Spark task, or its attempt has ended)
goes to the engine's log.

Rejected: `spark.sql.pyspark.worker.logging.enabled`, whose lines are rows that a query has to read from the engine
after the work, and that are lost with it. Redirecting the descriptors 1 and 2: a full pipe would block native code, and
one that returns an error would fail it. What native code and child processes print goes to the engine's log.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import select
import stat
import sys
import threading
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from _typeshed import ReadableBuffer

#: The variable with the directory of the named pipes.
PIPES_VARIABLE: Final = "FLINTLOCK_WORKER_OUTPUT"

#: The property of a Spark task that has the tags of its operation.
TAGS_PROPERTY: Final = "spark.job.tags"

#: How long a worker waits for room in a pipe before it drops what it prints.
WAIT_S: Final = 1.0

#: What the kernel writes to a pipe as a whole: lines of several workers are not mixed.
WHOLE_BYTES: Final = select.PIPE_BUF

#: At most so much of a line is held back until the line is complete.
LINE_BYTES: Final = 1 << 16

_OPERATION: Final = re.compile(r"SparkConnect_OperationTag_User_(flintlock-[0-9a-f-]{36})_Session_")


def pipe_name(user: str) -> str:
    """Return the name of a user's pipe. It does not show the user id, with which one could join the user's session."""
    return hashlib.sha256(user.encode()).hexdigest()


def user_of_tags(tags: str | None) -> str | None:
    """Return the Spark Connect user whose operation has these tags; None if none of them is an operation's."""
    for tag in (tags or "").split(","):
        found = _OPERATION.match(tag)
        if found is not None:
            return found.group(1)
    return None


def current_user() -> str | None:
    """Return the Spark Connect user that this worker's current task belongs to."""
    try:
        from pyspark import TaskContext

        context = TaskContext.get()
        return user_of_tags(context.getLocalProperty(TAGS_PROPERTY)) if context is not None else None
    except Exception:  # noqa: BLE001 - a task whose properties are not known yet; printing never fails it
        return None


class AttemptPipes:
    """The named pipe of the current attempt, opened once for all streams of a worker."""

    def __init__(self, directory: str, wait_s: float = WAIT_S) -> None:
        self.lock: Final = threading.Lock()  # for the streams: functions may print in several threads
        self._directory: Final = Path(directory)
        self._wait_s: Final = wait_s
        self._user: str | None = None  # whom the open pipe belongs to
        self._pipe: int | None = None  # None while there is none to write to
        self._dropped = 0  # bytes since the last that were written
        self._full = False  # whether the last write found no room: the next one does not wait

    def write(self, user: str, data: bytes) -> bool:
        """Write to the pipe of this user, or drop what has no room there; False if there is no pipe."""
        if user != self._user:
            self._open(user)
        if self._pipe is None:
            return False
        note = f"\n[flintlock: {self._dropped} bytes of a Python function's output are left out here]\n"
        whole = note.encode() + data if self._dropped else data
        unwritten = self._pieces(whole)
        self._dropped = self._dropped + len(data) if unwritten == len(whole) else min(unwritten, len(data))
        return True

    def _open(self, user: str) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._user, self._pipe, self._dropped, self._full = user, None, 0, False
        with suppress(OSError):  # it has no reader: the attempt has ended
            pipe = os.open(self._directory / pipe_name(user), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                self._pipe = pipe
            else:
                os.close(pipe)

    def _pieces(self, data: bytes) -> int:
        """Write in pieces that the kernel does not split; return how many bytes could not be written."""
        view = memoryview(data)
        while view:
            piece = _piece(view)
            if self._pipe is None or not self._one(self._pipe, piece):
                return len(view)
            view = view[len(piece) :]
        return 0

    def _one(self, pipe: int, piece: memoryview) -> bool:
        try:
            os.write(pipe, piece)
        except BlockingIOError:
            pass
        except OSError:  # the attempt has ended
            os.close(pipe)
            self._pipe = None
            return False
        else:
            self._full = False
            return True
        if self._full:
            return False
        self._full = True
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        return bool(room.poll(self._wait_s * 1000)) and self._one(pipe, piece)


class WorkerStream(io.RawIOBase):
    """What `sys.stdout` or `sys.stderr` of a worker writes to: the attempt's pipe, by lines, or the engine's log."""

    def __init__(self, pipes: AttemptPipes, descriptor: int, current: Callable[[], str | None] = current_user) -> None:
        super().__init__()
        self._current: Final = current
        self._pipes: Final = pipes
        self._descriptor: Final = descriptor  # the engine's log
        self._line = b""  # the beginning of an incomplete line
        self._user: str | None = None  # whose line it is

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor for native code and child processes: the engine's log."""
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of it, without an error, whatever becomes of it."""
        taken = bytes(data)
        user = self._current()
        if user != self._user:
            self.end_line()
        self._add(user, taken)
        return len(taken)

    def end_line(self) -> None:
        """Complete a line that is begun: the task has ended, and what follows in the pipe may be another worker's."""
        self._add(self._user, b"\n" if self._line else b"")

    def _add(self, user: str | None, data: bytes) -> None:
        locked = self._pipes.lock.acquire(
            timeout=WAIT_S
        )  # a forked process may have inherited a lock that is never released
        try:
            line = self._line + data
            end = line.rfind(b"\n") + 1 if len(line) <= LINE_BYTES else len(line)
            self._line, self._user = line[end:], user
            if end:
                self._send(user, line[:end])
        finally:
            if locked:
                self._pipes.lock.release()

    def _send(self, user: str | None, data: bytes) -> None:
        with suppress(OSError):  # printing never fails a task
            if user is None or not self._pipes.write(user, data):
                os.write(self._descriptor, data)


def install(directory: str) -> tuple[WorkerStream, ...]:
    """Replace the standard streams of this process; return what they write to. Called after a worker was forked."""
    pipes = AttemptPipes(directory)
    streams = (WorkerStream(pipes, 1), WorkerStream(pipes, 2))
    sys.stdout, sys.stderr = map(_text, streams)
    return streams


@contextmanager
def printing_for(user: str) -> Generator[None]:
    """Have this process print for a user's attempt meanwhile. For the process that runs a function of foreachBatch.

    What Spark prints there between two batches names sessions and the address of the engine: it stays in its log.
    """
    directory = os.environ.get(PIPES_VARIABLE, "")
    if not directory:
        yield
        return
    streams, (out, err) = _streams_for(directory, user)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        for stream in streams:
            stream.end_line()


@cache  # what a function keeps, such as a handler of its log, is good for the next batch, too
def _streams_for(directory: str, user: str) -> tuple[tuple[WorkerStream, ...], tuple[TextIO, ...]]:
    pipes = AttemptPipes(directory)
    streams = tuple(WorkerStream(pipes, descriptor, lambda: user) for descriptor in (1, 2))
    return streams, tuple(map(_text, streams))


def _text(stream: WorkerStream) -> TextIO:
    """Return a stream for text. As with `python -u`: what is written to it is not buffered once more."""
    return io.TextIOWrapper(cast("io.BufferedWriter", stream), "utf-8", "backslashreplace", write_through=True)


def _piece(data: memoryview) -> memoryview:
    """Return what is written next: as many whole lines as the kernel takes at once, else a part of a line."""
    if len(data) <= WHOLE_BYTES:
        return data
    end = bytes(data[:WHOLE_BYTES]).rfind(b"\n") + 1
    return data[: end or WHOLE_BYTES]

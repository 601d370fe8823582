"""The pipe of a runner's standard error: a named one, so that the Python workers of its Spark session can use it, too.

What Python functions print is standard error of their job, as it is with spark-submit.

The template makes it before it forks a runner, and removes it when the runner has ended. A runner gives it the name by
which the workers of its session find it (`engine.worker_output`). Where no named pipe can be made, a runner has one
without a name, and what its Python functions print is in the engine's log.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.spark.engine.python.worker_output import PIPES_VARIABLE, pipe_name

_MODE: Final = 0o600


class OutputPipe:
    """Both ends of a new pipe. The caller closes them."""

    def __init__(self, number: int) -> None:
        """Make the pipe of the runner with this number. Raises OSError."""
        directory = os.environ.get(PIPES_VARIABLE, "")
        #: Where the pipe is until its runner renames it; empty for one without a name.
        self.path: Final = _make(Path(directory) / f"runner-{number}") if directory else ""
        if self.path:
            self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.writer = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        else:
            self.reader, self.writer = os.pipe()


def name_pipe(path: str, user: str) -> None:
    """Give a runner's pipe the name by which the workers of this Spark Connect user find it."""
    with suppress(OSError):  # then their output is in the engine's log
        Path(path).rename(Path(path).with_name(pipe_name(user)))


def remove_pipe(reader: int) -> None:
    """Remove the name of the pipe that is read here, whichever it has; none is fine."""
    directory = os.environ.get(PIPES_VARIABLE, "")
    if not directory:
        return
    with suppress(OSError):
        number = os.fstat(reader).st_ino
        for path in Path(directory).iterdir():
            found = path.lstat()
            if found.st_ino == number and stat.S_ISFIFO(found.st_mode):
                path.unlink()


def _make(path: Path) -> str:
    try:
        os.mkfifo(path, _MODE)
    except OSError:  # a file system without named pipes
        return ""
    return str(path)

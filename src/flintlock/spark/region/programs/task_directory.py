"""Refuses what a program writes into the directory of its task, which is removed with it: FINISHED, and no output.

A program that has to run from its copy (`script_place`) has that directory as its own, and writes beside its script by
`dirname(__file__)`. Python's own writes are refused by a hook of its audit, paths in plans of Spark Connect where the
plans are sent, those of classic PySpark in its writers. What none of these shows (an SQL text, a child process, a
library in C) is found when the program has ended: a file that it has added fails the task.

Reading is not refused: files that were sent with the job are there. An error about one that is not says what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from msgspec import structs

from flintlock.model.tasks import Failure, FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.programs.relative_paths import written_in

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Events of Python's audit that make or change a file, and which of their arguments is its path.
_EVENTS: Final = {"os.mkdir": 0, "os.truncate": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
#: What is not the program's: the JVM's files, and compiled modules.
_DRIVER: Final = ".driver"
_COMPILED: Final = "__pycache__"
_MOST_NAMED: Final = 3


class TaskDirectoryRefused(TaskError, PermissionError):
    """A program writes into the directory of its task; as a PermissionError, what handles read-only folders does."""


class TaskDirectory:
    """The directory of one task. `problem`: why its program runs there; empty if it has its folder (`ScriptPlace`)."""

    def __init__(self, directory: Path, problem: str) -> None:
        self._directory: Final = f"{os.path.realpath(directory)}/"
        self._given: Final = f"{str(directory).rstrip('/')}/"
        self._problem: Final = problem
        self._sent: Final = frozenset(self._files())

    def observe(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise TaskDirectoryRefused if an event of Python's audit writes into the directory."""
        if event == "open":
            path, mode, flags = args
            if any(sign in mode for sign in "wax+") if isinstance(mode, str) else flags & _WRITING:
                self._check(path)
        elif event in _EVENTS:
            self._check(args[_EVENTS[event]])
        elif event == "sqlite3.connect":
            name = os.fsdecode(args[0])
            if not name.startswith((":", "file:")) and not os.path.exists(name):  # noqa: PTH110 - ":memory:" is no file
                self._check(name)

    def watch_writers(self) -> None:
        """Check the paths that classic PySpark writes to from now on, to the end of the process."""
        from pyspark.core.rdd import RDD
        from pyspark.sql.readwriter import DataFrameWriter
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        for kind, names in (
            (DataFrameWriter, ("option", "save", "csv", "json", "orc", "parquet", "text", "xml")),
            (DataStreamWriter, ("option", "start")),
            (RDD, ("saveAsTextFile", "saveAsPickleFile")),
        ):
            for name in names:
                setattr(kind, name, self._checked(getattr(kind, name)))

    def check_plan(self, message: Any) -> None:
        """Raise TaskDirectoryRefused if a command of Spark Connect writes into the directory."""
        for path in written_in(message):
            self._check_target(path)

    def check_end(self) -> None:
        """Raise TaskDirectoryRefused if the program has left files in the directory."""
        added = sorted(set(self._files()) - self._sent)
        if added:
            more = f" and {len(added) - _MOST_NAMED} more" if len(added) > _MOST_NAMED else ""
            names = ", ".join(map(repr, added[:_MOST_NAMED]))
            raise self._refusal(f"the program has written {names}{more}")

    def explained(self, failure: Failure) -> Failure:
        """Return a failure with what to do if it is about a file that is missing in the directory."""
        for given in dict.fromkeys((self._given, self._directory)):
            for found in re.findall(rf"{re.escape(given)}([^\s'\"\]]+)", failure.message):
                name = found.rstrip(".,;:)")
                if self._problem and not os.path.exists(given + name):  # noqa: PTH110
                    hint = (
                        f"{name!r} is not beside the script where that runs: a copy in the directory of its task,"
                        f" because {self._problem}. Send the files that it reads along (--files)"
                    )
                    return structs.replace(failure, message=f"{failure.message}\n{hint}")
        return failure

    def _checked(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that checks its texts first: what is in the directory can only be a path."""

        @wraps(write)
        def check_and_write(writer: object, *args: object, **options: object) -> Any:
            for value in (*args, *options.values()):
                if isinstance(value, str):
                    self._check_target(value)
            return write(writer, *args, **options)

        return check_and_write

    def _check_target(self, path: str) -> None:
        name = unquote(re.sub(r"^file:(//)?(?=/)", "", path))
        if name.startswith("/"):  # relative ones do not start in this directory
            self._check(name)

    def _check(self, path: object) -> None:
        name = path if isinstance(path, str) else os.fsdecode(path) if isinstance(path, bytes) else ""
        if not name:
            return
        whole = os.path.abspath(name)  # noqa: PTH100 - a link is the name that was opened
        for directory in (self._given, self._directory):
            inner = whole.removeprefix(directory)
            if inner != whole and not f"{inner}/".startswith(f"{_DRIVER}/") and _COMPILED not in inner:
                raise self._refusal(f"the program writes {inner!r}")

    def _refusal(self, what: str) -> TaskDirectoryRefused:
        why = f", and the program runs from a copy there, because {self._problem}" if self._problem else ""
        return TaskDirectoryRefused(
            FailureKind.CONFIGURATION,
            f"{what} into the directory of its task, where it would be lost: that directory is removed when the task"
            f" ends{why}. Give an absolute path that all TaskManagers have, as an argument of the program for example",
        )

    def _files(self) -> Iterator[str]:
        for place, folders, files in os.walk(self._directory):
            folders[:] = [
                name for name in folders if name != _COMPILED and not (name == _DRIVER and place == self._directory)
            ]
            yield from (os.path.join(place, name).removeprefix(self._directory) for name in files)  # noqa: PTH118

"""Relative paths of user code start in the directory that its job was submitted from, for Spark as for Python.

Spark Connect resolves paths in the engine, whose own directory is no concern of a job. So the plans that PySpark sends
are changed on their way: each path of a file source, a sink, a saved model or an SQL text that is neither absolute nor
has a scheme is made absolute. Where the directory does not exist on this host, such a plan is refused and never sent.
What is not recognised here (a setting, an argument of a foreign data source) is refused by the engine, which has no
directory for relative paths either (`jvm.NO_DIRECTORY`).

Rejected: Hadoop's working directory, which all sessions of an engine share; wrapping PySpark's readers and writers,
which are many, where all plans leave by one method.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from typing import Any, Final

from flintlock.model.operations.kind import STAGED_FORMATS, is_relative
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.plan_hook import on_every_plan
from flintlock.spark.region.sql_text import with_absolute_paths

#: The formats that Spark reads and writes as files at a path. The "path" of any other one may be the name of a table.
FILE_FORMATS: Final = STAGED_FORMATS | {"", "binaryfile", "delta", "hudi", "image", "libsvm"}
_PATH_OPTIONS: Final = frozenset({"path", "checkpointlocation"})


class RelativePaths:
    """The directory of one job on this host, and what is made of its relative paths."""

    def __init__(self, directory: str) -> None:
        self.problem: Final = _problem(directory)
        self.directory: Final = "" if self.problem else directory  # "" if it is not usable here

    def absolute(self, path: str) -> str:
        """Return a path as an absolute one. Raises TaskError for a relative one without a directory."""
        if not is_relative(path):
            return path
        if not self.directory:
            raise TaskError(FailureKind.CONFIGURATION, f"the path {path!r} is relative, and {self.problem}: {_REMEDY}")
        return f"{self.directory.rstrip('/')}/{path}"

    def apply(self, message: Any) -> None:
        """Make the relative paths in a relation or command of Spark Connect absolute, in place. Raises TaskError."""
        change = _CHANGES.get(message.DESCRIPTOR.full_name)
        if change is not None:
            change(message, self.absolute)
        fields = _leading_to_paths(message.DESCRIPTOR)
        for field, value in message.ListFields():
            if field.name in fields:
                for part in value if field.is_repeated else (value,):
                    self.apply(part)

    def install(self) -> None:
        """Have all plans that PySpark sends from this process pass through `apply`."""
        on_every_plan(self.apply)


def written_in(message: Any) -> Iterator[str]:
    """Yield the paths of files that a relation or command of Spark Connect writes to, as they are written."""
    match message.DESCRIPTOR.full_name, message.WhichOneof(message.DESCRIPTOR.oneofs[0].name):
        case "spark.connect.Command", "write_operation" | "write_stream_operation_start" as kind:
            sink = getattr(message, kind)
            yield sink.path
            yield from (value for key, value in sink.options.items() if key.lower() in _PATH_OPTIONS)
        case "spark.connect.Command", "ml_command" if message.ml_command.HasField("write"):
            yield message.ml_command.write.path
        case _:
            pass


_REMEDY: Final = "give an absolute path, or a directory that all TaskManagers have (`directory` of the job)"


def _problem(directory: str) -> str:
    """Return why relative paths cannot start in this directory; empty if they can."""
    if not directory:
        return "the job was submitted without a directory"
    if not os.path.isdir(directory):  # noqa: PTH112 - a Path raises where access is denied
        return (
            f"the directory {directory!r}, from which the job was submitted, does not exist on this TaskManager's host"
        )
    if not os.access(directory, os.X_OK):
        return f"the directory {directory!r}, from which the job was submitted, is not accessible to the TaskManager"
    return ""


def _read(source: Any, absolute: Callable[[str], str]) -> None:
    if source.format.lower() in FILE_FORMATS:
        source.paths[:] = [absolute(path) for path in source.paths]
        _options(source.options, absolute)


def _write(sink: Any, absolute: Callable[[str], str]) -> None:
    form: str = sink.source if "source" in sink.DESCRIPTOR.fields_by_name else sink.format
    _options(sink.options, absolute, every_path=form.lower() in FILE_FORMATS)
    if form.lower() in FILE_FORMATS:
        _path(sink, absolute)


def _table(table: Any, absolute: Callable[[str], str]) -> None:
    _path(table, absolute)
    _options(table.options, absolute)


def _options(options: MutableMapping[str, str], absolute: Callable[[str], str], *, every_path: bool = True) -> None:
    for key in [key for key in options if key.lower() in _PATH_OPTIONS and (every_path or key.lower() != "path")]:
        options[key] = absolute(options[key])


def _path(message: Any, absolute: Callable[[str], str]) -> None:
    if message.path:  # where it is one of several choices, setting it would discard the other
        message.path = absolute(message.path)


def _sql(message: Any, absolute: Callable[[str], str]) -> None:
    for name in ("query", "sql", "unparsed_identifier"):
        text: str = getattr(message, name, "")
        changed = with_absolute_paths(text, absolute) if text else text
        if changed != text:
            setattr(message, name, changed)


_CHANGES: Final[dict[str, Callable[[Any, Callable[[str], str]], None]]] = {
    "spark.connect.Read.DataSource": _read,
    "spark.connect.Read.NamedTable": _sql,
    "spark.connect.SQL": _sql,
    "spark.connect.SqlCommand": _sql,
    "spark.connect.WriteOperation": _write,
    "spark.connect.WriteStreamOperationStart": _write,
    "spark.connect.CreateTable": _table,
    "spark.connect.CreateExternalTable": _table,
    "spark.connect.RefreshByPath": _path,
    "spark.connect.MlCommand.Read": _path,
    "spark.connect.MlCommand.Write": _path,
}
#: Expressions make up most of a plan, and have no paths in them.
_WITHOUT_PATHS: Final = frozenset({"spark.connect.Expression", "spark.connect.DataType"})


@cache
def _leading_to_paths(descriptor: Any) -> frozenset[str]:
    """Return the fields of a message below which there may be paths."""
    return frozenset(
        field.name
        for field in descriptor.fields
        if field.message_type is not None
        and not field.message_type.GetOptions().map_entry
        and _may_have_paths(field.message_type)
    )


@cache
def _may_have_paths(descriptor: Any) -> bool:
    pending, seen = [descriptor], {descriptor.full_name}
    while pending:
        current = pending.pop()
        if current.full_name in _CHANGES:
            return True
        if current.full_name in _WITHOUT_PATHS:
            continue
        for field in current.fields:
            below = field.message_type
            if below is not None and below.full_name not in seen:
                seen.add(below.full_name)
                pending.append(below)
    return False

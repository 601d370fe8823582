"""`source`: a step that reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from msgspec import field

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.function import is_reference
from flintlock.model.operations.kind import (
    ConfigValue,
    Fill,
    StepForm,
    StepOperation,
    empty_texts,
    filled,
    filled_options,
    is_file_format,
)


class Source(StepOperation, frozen=True, kw_only=True, tag="source"):
    """Read a table, or files or anything else that Spark has a format for.

    A format with a colon, `package.module:Class`, is a data source in Python, of the job's own files.
    """

    kind: ClassVar[str] = "source"
    label: ClassVar[str | None] = "Source"

    format: str | None = None
    paths: tuple[str, ...] = ()
    table: str | None = None
    schema: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    stream: bool = False

    def describe(self) -> str:
        """Return format and paths, or the table."""
        kind = "streaming source" if self.stream else "source"
        if self.table is not None:
            return f"{kind}: table {self.table}"
        return f"{kind}: {self.format} {', '.join(self.paths)}".rstrip()

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - reads none
        """Yield what keeps it from being read."""
        if inputs:
            yield Problem(field="inputs", message="a source has no inputs")
        if self.stream:
            yield from self._stream_problems()
        if self.table is not None and (self.paths or self.format is not None):
            yield Problem(field="source", message="give either a table, or a format with its path, not both")
        elif self.table is None and self.format is None:
            yield Problem(field="source", message="needs a format (with a path, where it has one) or a table")
        elif is_file_format(self.format) and not self.paths and "path" not in self.options:
            yield Problem(field="source", message=f"the format {self.format!r} needs a path")
        if self.format is not None and ":" in self.format and not is_reference(self.format):
            message = f"{self.format!r} does not have the form 'package.module:Class' of a data source in Python"
            yield Problem(field="source", message=message)
        yield from empty_texts("source", format=(self.format,), table=(self.table,), path=self.paths)
        if self.table is not None and self.schema is not None:
            yield Problem(field="source", message="a table has its own schema")

    def _stream_problems(self) -> Iterator[Problem]:
        """Yield what Spark's streaming readers do not accept, though the others do."""
        if len(self.paths) > 1:
            message = f"a streaming source reads one path, not {len(self.paths)}: use a pattern, or several sources"
            yield Problem(field="source", message=message)
        if is_file_format(self.format) and self.schema is None and (self.format or "").lower() != "text":
            message = f"a streaming source of {self.format} files needs a schema: Spark infers none for a stream"
            yield Problem(field="source", message=message)


class SourceSpec(StepForm, frozen=True, kw_only=True):
    """`source:` of a step."""

    format: str | None = None
    path: str | tuple[str, ...] = ()
    table: str | None = None
    schema: str | None = None
    options: dict[str, ConfigValue] = field(default_factory=dict)
    stream: bool = False


def read(given: SourceSpec, fill: Fill) -> Source:
    """Return the operation that the document describes."""
    paths = (given.path,) if isinstance(given.path, str) else given.path
    return Source(
        format=given.format,
        paths=tuple(fill(path) for path in paths),
        table=filled(given.table, fill),
        schema=filled(given.schema, fill),
        options=filled_options(given.options, fill),
        stream=given.stream,
    )

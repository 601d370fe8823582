"""Results as files: CSV, JSON, JSON lines, Parquet, Arrow, or a table to read.

A file is complete or not there: it is written beside its place and moved.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from flintlock.api.jobs import ResultTable
from flintlock.client.connection.results import ResultHandle
from flintlock.client.display.console import cell_text, table_text
from flintlock.host.files.whole_files import write_whole
from flintlock.model.errors import Refused


class ResultFormat(StrEnum):
    """How the rows of a result are written."""

    TABLE = "table"  # for people
    CSV = "csv"
    JSON = "json"  # one document: columns with their types, and rows
    JSON_LINES = "jsonl"  # an object for each row
    PARQUET = "parquet"
    ARROW = "arrow"  # an IPC stream

    @property
    def binary(self) -> bool:
        """Whether it cannot be shown on a terminal."""
        return self in (ResultFormat.PARQUET, ResultFormat.ARROW)


_SUFFIXES: Final = {
    ".csv": ResultFormat.CSV,
    ".json": ResultFormat.JSON,
    ".jsonl": ResultFormat.JSON_LINES,
    ".ndjson": ResultFormat.JSON_LINES,
    ".parquet": ResultFormat.PARQUET,
    ".arrow": ResultFormat.ARROW,
    ".arrows": ResultFormat.ARROW,
    ".txt": ResultFormat.TABLE,
}


def format_of(path: Path) -> ResultFormat:
    """Return the format that a file's name stands for. Raises Refused if it stands for none."""
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise Refused(f"{str(path)!r}: the name of the file does not say which format; use --format, or one of"
                      f" {', '.join(_SUFFIXES)}")  # fmt: skip
    return found


def encoded(result: ResultHandle, form: ResultFormat) -> bytes:
    """Return the rows in that format. Raises Refused if a package that it needs is not installed."""
    match form:
        case ResultFormat.TABLE:
            return table_text(result.table).encode()
        case ResultFormat.CSV:
            return _csv(result.table)
        case ResultFormat.JSON:
            return _json(result.table)
        case ResultFormat.JSON_LINES:
            return b"".join(msgspec.json.encode(row) + b"\n" for row in _objects(result.table))
        case ResultFormat.PARQUET:
            return _parquet(result)
        case ResultFormat.ARROW:
            return result.arrow_stream


def write_file(path: Path, content: bytes) -> None:
    """Write a file that others see complete or not at all. Raises Refused if that is not possible."""
    if not path.parent.is_dir():
        raise Refused(f"{str(path)!r} cannot be written: there is no directory {str(path.parent)!r}")
    try:
        write_whole(path, content)
    except OSError as error:
        raise Refused(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _csv(table: ResultTable) -> bytes:
    """NULL is an empty field, and nested values are JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([["" if value is None else cell_text(value) for value in row] for row in table.rows])
    return text.getvalue().encode()


def _json(table: ResultTable) -> bytes:
    """The document that REST returns, with a row on each line."""
    head = {"name": table.name, "truncated": table.truncated, "columns": table.columns}
    rows = b",\n".join(b"  " + msgspec.json.encode(row) for row in table.rows)
    return msgspec.json.encode(head)[:-1] + b',"rows":[\n' + rows + (b"\n" if rows else b"") + b"]}\n"


def _objects(table: ResultTable) -> Iterator[dict[str, object]]:
    names = [column.name for column in table.columns]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise Refused(f"two columns are called {min(twice)!r}, which JSON lines cannot have: rename one, or use csv")
    return (dict(zip(names, row, strict=True)) for row in table.rows)


def _parquet(result: ResultHandle) -> bytes:
    table = result.arrow()  # raises Refused if there is no PyArrow
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue()

"""Results in every format, in files that are complete or not there."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from flintlock.api.jobs import ResultColumn, ResultTable
from flintlock.client.connection.results import ResultHandle
from flintlock.client.display.console import table_text
from flintlock.client.display.result_files import ResultFormat, encoded, format_of, write_file
from flintlock.model.errors import Refused

TABLE = ResultTable(
    name="top",
    columns=(ResultColumn(name="city", type="string"), ResultColumn(name="n", type="int"), ResultColumn(name="m")),
    rows=(('Par,"is', 1, {"a": [1]}), (None, 20, True)),
)


def arrow_stream() -> bytes:
    stream = io.BytesIO()
    table = cast("Any", pa).table({"city": ["Paris", None], "n": [1, 20]})
    ipc: Any = pa.ipc
    with ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def handle(table: ResultTable = TABLE) -> ResultHandle:
    return ResultHandle(table.name, lambda: table, arrow_stream)


def test_csv_has_a_header_and_empty_fields_for_null() -> None:
    assert encoded(handle(), ResultFormat.CSV).decode().splitlines() == [
        "city,n,m",
        '"Par,""is",1,"{""a"": [1]}"',
        ",20,true",
    ]


def test_json_lines_are_objects() -> None:
    lines = encoded(handle(), ResultFormat.JSON_LINES).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"city": 'Par,"is', "n": 1, "m": {"a": [1]}},
        {"city": None, "n": 20, "m": True},
    ]
    twice = ResultTable(name="t", columns=(ResultColumn(name="x"), ResultColumn(name="x")), rows=((1, 2),))
    with pytest.raises(Refused, match="two columns are called 'x'"):
        encoded(handle(twice), ResultFormat.JSON_LINES)


@pytest.mark.parametrize("rows", [TABLE.rows, ()])
def test_json_is_one_document_with_a_row_on_each_line(rows: tuple[tuple[object, ...], ...]) -> None:
    table = ResultTable(name="top", columns=TABLE.columns, rows=rows)
    text = encoded(handle(table), ResultFormat.JSON).decode()
    document = json.loads(text)
    assert (document["name"], document["truncated"], len(document["columns"])) == ("top", False, 3)
    assert document["rows"] == [list(row) for row in rows]
    assert len(text.splitlines()) == len(rows) + 2


def test_parquet_and_arrow_keep_the_types() -> None:
    written = cast("Any", parquet).read_table(io.BytesIO(encoded(handle(), ResultFormat.PARQUET)))
    assert written.to_pydict() == {"city": ["Paris", None], "n": [1, 20]}
    assert encoded(handle(), ResultFormat.ARROW) == arrow_stream()


def test_a_table_is_text_in_aligned_columns() -> None:
    assert table_text(TABLE).splitlines() == [
        "city      n  m",
        "-------  --  ----------",
        'Par,"is   1  {"a": [1]}',
        "NULL     20  true",
    ]


def test_the_name_of_a_file_says_its_format(tmp_path: Path) -> None:
    names = ("a.csv", "a.json", "a.JSONL", "a.ndjson", "a.parquet", "a.arrow")
    assert [format_of(tmp_path / name).value for name in names] == ["csv", "json", "jsonl", "jsonl", "parquet", "arrow"]
    with pytest.raises(Refused, match="the name of the file does not say which format"):
        format_of(tmp_path / "a.xls")


def test_a_file_is_complete_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [item.name for item in tmp_path.iterdir()] == ["out.csv"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="cannot be written"):
        write_file(tmp_path / "folder", b"three")
    with pytest.raises(Refused, match="cannot be written: there is no directory"):
        write_file(tmp_path / "nowhere" / "out.csv", b"three")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "out.csv"]

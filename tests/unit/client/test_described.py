"""What the dashboard learns of a Python file: its jobs as documents, or its problems with their lines."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flintlock.client.authoring.described import DescribedRow, described, graphs

GRAPH = """\
import flintlock as fl

job = fl.Job("words", params={"many": 5})
numbers = job.sql("numbers", "SELECT id FROM range(:many)")


@job.step(inputs=[numbers])
def squares(numbers):
    return numbers.selectExpr("id * id AS n")


job.result("top", squares)
print("the file was read")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are forgotten afterwards."""
    known = {*sys.modules}
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in {*sys.modules} - known:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "job_of_a_browser.py") -> Path:
    """Write a file of user code; return where it is."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_graph_is_a_document_and_its_files(folder: Path) -> None:
    rows = described(write(folder, GRAPH))
    document = json.loads(rows[0].text)
    assert [row.kind for row in rows] == ["document", "file"]
    assert (rows[0].job, document["name"], document["params"]) == ("job", "words", {"many": 5})
    assert set(document["steps"]) == {"numbers", "squares", "top"}
    assert document["steps"]["squares"]["function"]["pickle"] == rows[1].name
    assert base64.b64decode(rows[1].text).startswith(b"\x80")
    assert not document.get("directory")


def test_every_job_of_a_file_is_described(folder: Path) -> None:
    rows = described(
        write(folder, GRAPH + '\nother = fl.Job("other")\nother.result("r", other.sql("q", "SELECT 1"))\n')
    )
    assert [row.job for row in rows if row.kind == "document"] == ["job", "other"]


def test_a_file_without_flintlock_is_a_program_and_is_not_run(folder: Path) -> None:
    ran = folder / "ran"
    assert described(write(folder, f"open({str(ran)!r}, 'w')\n")) == [DescribedRow("program")]
    assert not ran.exists()


def test_a_file_that_defines_no_job_is_a_program(folder: Path) -> None:
    assert described(write(folder, "import flintlock\n")) == [DescribedRow("program")]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("import flintlock as fl\njob = fl.Job('a'\n", 2, "invalid Python"),
        ("import flintlock as fl\n\nraise ValueError('no way')\n", 3, "ValueError: no way"),
        (GRAPH.replace("def squares(numbers)", "def squares()"), 7, "cannot be called with 1 input"),
        (GRAPH.replace('"SELECT id FROM range(:many)"', '"SELECT id FROM range(:mny)"'), 4, "mny"),
        (GRAPH + 'job.sink("out", squares, format="parquet", path="relative/out")\n', 0, "a path is relative"),
    ],
)  # fmt: skip
def test_problems_have_the_line_of_the_file(folder: Path, text: str, line: int, message: str) -> None:
    (row,) = described(write(folder, text))
    assert (row.kind, row.line) == ("problem", line)
    assert message in row.text
    assert str(folder) not in row.text


def test_the_directory_of_the_attempt_is_not_changed(folder: Path) -> None:
    before = Path.cwd()
    described(write(folder, GRAPH))
    assert Path.cwd() == before


class Session:
    """Makes a DataFrame of rows: themselves."""

    def createDataFrame(self, rows: list[Any], schema: str) -> list[Any]:  # noqa: N802 - PySpark's name
        """Return the rows."""
        assert len(schema.split(",")) == 5
        return rows


def test_the_function_of_the_step_finds_the_file_among_the_artifacts(folder: Path) -> None:
    write(folder, "print(1)\n", "words.py")
    assert graphs({"file": "words.py"}, Session()) == [("program", "", "", 0, "")]
    assert graphs({"file": "gone.py"}, Session()) == [("problem", "", "", 0, "the job has no file 'gone.py'")]

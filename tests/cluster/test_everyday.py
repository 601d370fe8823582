"""What people do all day: queries at the command line, jobs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pyarrow import parquet
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes


def test_queries_are_run_from_the_command_line(standing: Processes, tmp_path: Path) -> None:
    """A query, statements of a file that are commands too, and rows in a file."""
    at = ("-m", standing.url)
    rows = flintlock(
        "sql", "SELECT id, id * :by AS y FROM range(3)", "--param", "by=2", "--format", "jsonl", *at, cwd=tmp_path
    )
    assert rows.returncode == 0, rows.stderr
    assert [json.loads(line) for line in rows.stdout.splitlines()] == [{"id": n, "y": 2 * n} for n in range(3)]

    (tmp_path / "several.sql").write_text("SHOW DATABASES; -- a command;\nVALUES (';', 1);\n")
    several = flintlock("sql", "-f", "several.sql", "--format", "csv", *at, cwd=tmp_path)
    assert several.stdout.splitlines() == ["namespace", "default", "col1,col2", ";,1"], several.stderr

    written = flintlock("sql", "SELECT date'2026-01-31' AS day", "-o", "days.parquet", *at, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    table = cast("Any", parquet).read_table(tmp_path / "days.parquet")
    assert [str(value) for value in table.column("day").to_pylist()] == ["2026-01-31"]

    wrong = flintlock("sql", "SELECT nothing", *at, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "UNRESOLVED_COLUMN" in wrong.stderr
    found = flintlock("result", "latest", "--format", "csv", *at, cwd=tmp_path)
    assert found.returncode == 2  # the latest job has failed, and has no result

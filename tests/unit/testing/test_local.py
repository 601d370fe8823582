"""What becomes of a job in a user's test, before anything runs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import flintlock.testing
from flintlock.client.authoring.job import Job
from flintlock.model.errors import Refused
from flintlock.model.operations import MAX_RESULT_ROWS, Result, Source, SourceSpec, Sql
from flintlock.testing.local import in_test, write_rows

NAIVE = datetime(2026, 1, 31, 8)  # noqa: DTZ001 users' rows have such times
ROWS = SourceSpec(format="parquet", path="/rows")


def revenue() -> Job:
    job = Job("revenue")
    raw = job.source("raw", format="csv", path="in/raw")
    orders = job.sql("orders", "SELECT * FROM raw", inputs=[raw])
    countries = job.source("countries", format="csv", path="in/countries")
    joined = job.sql("joined", "SELECT * FROM orders JOIN countries USING (c)", inputs=[orders, countries])
    job.sink("out", joined, format="parquet", path="out", mode="overwrite")
    job.result("top", joined, limit=3)
    return job


def test_sources_are_given_rows_and_sinks_become_results() -> None:
    package = in_test(revenue().package(), {"raw": ROWS})
    operations = {str(vertex.name): vertex.operation for vertex in package.graph.vertices}

    assert operations["raw"] == Source(format="parquet", paths=("/rows",))
    assert operations["out"] == Result(limit=MAX_RESULT_ROWS)
    assert operations["top"] == Result(limit=3)
    assert isinstance(operations["countries"], Source)
    assert set(package.spec.steps) == set(operations)


def test_what_leads_only_to_a_replaced_step_is_left_out() -> None:
    """It would be analysed, and its files do not exist."""
    package = in_test(revenue().package(), {"orders": ROWS, "countries": ROWS})

    assert [vertex.name for vertex in package.graph.vertices] == ["orders", "countries", "joined", "out", "top"]
    assert package.graph.vertex("orders").inputs == ()
    assert isinstance(package.graph.vertex("joined").operation, Sql)


def read(folder: Path) -> Any:
    return cast("Any", parquet).read_table(folder)


def test_rows_keep_their_types(tmp_path: Path) -> None:
    row = {"day": date(2026, 1, 31), "at": NAIVE, "sum": Decimal("1.50"), "n": 7, "s": "x"}
    spec = write_rows([row], tmp_path, "orders")
    table = read(tmp_path)

    assert (spec.format, spec.path) == ("parquet", str(tmp_path))
    assert table.to_pylist() == [{**row, "at": datetime(2026, 1, 31, 8, tzinfo=UTC)}]
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"  # Spark's TIMESTAMP


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_tables_are_rows_too(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame({"x": [1, 2]})
    write_rows(frame if kind == "pandas" else cast("Any", pa).table({"x": [1, 2]}), tmp_path, "orders")

    assert read(tmp_path).to_pydict() == {"x": [1, 2]}


def test_a_source_with_a_schema_reads_dicts_with_it(tmp_path: Path) -> None:
    spec = write_rows([{"day": date(2026, 1, 31)}], tmp_path, "orders", schema="day DATE")

    assert (spec.format, spec.schema) == ("json", "day DATE")
    assert [msgspec.json.decode(line) for line in (tmp_path / "rows.json").read_bytes().splitlines()] == [
        {"day": "2026-01-31"}
    ]


def test_no_rows_have_no_columns(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="'orders' has no rows, and so no columns"):
        write_rows([], tmp_path, "orders")
    assert write_rows([], tmp_path, "orders", schema="x INT").format == "json"


def test_the_package_has_what_users_need() -> None:
    assert callable(flintlock.testing.run_local)
    assert not hasattr(flintlock.testing, "no_such_thing")

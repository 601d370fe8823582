"""Relative paths in plans: made absolute from the job's directory, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.proto import commands_pb2, relations_pb2

from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.programs.relative_paths import RelativePaths
from flintlock.spark.region.sql_text import with_absolute_paths


def read(*paths: str, form: str = "csv", **options: str) -> Any:
    relation: Any = relations_pb2.Relation()
    relation.read.data_source.format = form
    relation.read.data_source.paths.extend(paths)
    relation.read.data_source.options.update(options)
    return relation


def test_the_paths_of_file_sources_start_in_the_directory_of_the_job(tmp_path: Path) -> None:
    inner = read("in/a.csv", "/abs", "s3a://bucket/x", path="b")
    filtered: Any = relations_pb2.Relation()
    filtered.filter.input.CopyFrom(inner)

    RelativePaths(str(tmp_path)).apply(filtered)

    source = filtered.filter.input.read.data_source
    assert list(source.paths) == [f"{tmp_path}/in/a.csv", "/abs", "s3a://bucket/x"]
    assert source.options["path"] == f"{tmp_path}/b"


def test_the_name_of_a_table_in_a_foreign_format_is_no_path(tmp_path: Path) -> None:
    relation = read("db.orders", form="iceberg")
    RelativePaths(str(tmp_path)).apply(relation)
    assert list(relation.read.data_source.paths) == ["db.orders"]


def test_the_paths_of_commands_start_in_the_directory_of_the_job(tmp_path: Path) -> None:
    paths = RelativePaths(str(tmp_path))
    batch: Any = commands_pb2.Command()
    batch.write_operation.source = "parquet"
    batch.write_operation.path = "out"
    batch.write_operation.input.CopyFrom(read("in"))
    stream: Any = commands_pb2.Command()
    stream.write_stream_operation_start.format = "kafka"
    stream.write_stream_operation_start.options["checkpointLocation"] = "checkpoints"
    model: Any = commands_pb2.Command()
    model.ml_command.write.path = "models/one"
    table: Any = commands_pb2.Command()
    table.write_operation.table.table_name = "orders"
    for command in (batch, stream, model, table):
        paths.apply(command)

    assert batch.write_operation.path == f"{tmp_path}/out"
    assert list(batch.write_operation.input.read.data_source.paths) == [f"{tmp_path}/in"]
    assert stream.write_stream_operation_start.options["checkpointLocation"] == f"{tmp_path}/checkpoints"
    assert model.ml_command.write.path == f"{tmp_path}/models/one"
    assert table.write_operation.table.table_name == "orders"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM parquet.`a/b` p JOIN csv.`/c`", "SELECT * FROM parquet.`/d/a/b` p JOIN csv.`/c`"),
        ("SELECT 'parquet.`a`', path FROM t -- csv.`x`", None),
        ("SELECT * FROM t WHERE location = 'a' AND path = 'b'", None),
        ("SELECT * FROM db.parquet.`a`", None),
        ("CREATE TABLE t (a int) USING csv LOCATION 'a'", "CREATE TABLE t (a int) USING csv LOCATION '/d/a'"),
        (
            'CREATE TEMP VIEW v USING csv OPTIONS ("path" = "a", header true, sep (";"))',
            'CREATE TEMP VIEW v USING csv OPTIONS ("path" = "/d/a", header true, sep (";"))',
        ),
        ("INSERT OVERWRITE DIRECTORY 'o' USING csv SELECT 1", "INSERT OVERWRITE DIRECTORY '/d/o' USING csv SELECT 1"),
        ("LOAD DATA INPATH 'x' INTO TABLE t", "LOAD DATA INPATH '/d/x' INTO TABLE t"),
        ("CREATE TABLE t USING csv LOCATION '${base}/a'", None),
    ],
)
def test_the_paths_in_sql_texts_start_in_the_directory_of_the_job(query: str, expected: str | None) -> None:
    assert with_absolute_paths(query, lambda path: f"/d/{path}") == (expected or query)


def test_quotes_in_a_directory_stay_inside_the_text() -> None:
    changed = with_absolute_paths("CREATE TABLE t USING csv LOCATION 'a'", lambda path: f"/it's\\here/{path}")
    assert changed == "CREATE TABLE t USING csv LOCATION '/it\\'s\\\\here/a'"
    assert with_absolute_paths("TABLE csv.`a`", lambda path: f"/o`n/{path}") == "TABLE csv.`/o``n/a`"


@pytest.mark.parametrize("directory", ["", "/no/such/directory"])
def test_a_relative_path_without_a_directory_is_refused_before_the_plan_is_sent(directory: str) -> None:
    paths = RelativePaths(directory)
    paths.apply(read("/abs", "s3a://bucket/x"))
    with pytest.raises(TaskError, match="the path 'in' is relative") as refused:
        paths.apply(read("in"))
    assert refused.value.kind is FailureKind.CONFIGURATION

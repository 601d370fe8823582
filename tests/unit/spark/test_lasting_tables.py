"""Tables are created only in catalogs that outlive an engine."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.connect.proto import commands_pb2, relations_pb2

from flintlock.model.tasks import FailureKind
from flintlock.spark.region.programs.lasting_tables import LastingTables, TableRefused
from flintlock.spark.region.sql_text import created_table

MEMORY = {"spark.sql.catalogImplementation": "in-memory"}


def command(**fields: Any) -> Any:
    made: Any = commands_pb2.Command()
    for path, value in fields.items():
        *parents, name = path.split("__")
        target = made
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return made


@pytest.mark.parametrize(
    "creating",
    [
        command(write_operation__table__table_name="orders", write_operation__table__save_method=1),
        command(write_operation_v2__table_name="orders", write_operation_v2__mode=6),
        command(sql_command__sql="CREATE TABLE orders AS SELECT 1"),
        command(sql_command__input__sql__query="-- new\ncreate table if not exists db.orders (id int)"),
    ],
)
def test_a_table_without_a_catalog_is_refused_before_it_is_created(creating: Any) -> None:
    with pytest.raises(TableRefused, match="orders' would be lost with its Spark engine") as refused:
        LastingTables(MEMORY.get).check_plan(creating)
    assert refused.value.kind is FailureKind.CONFIGURATION

    LastingTables({"spark.sql.catalogImplementation": "hive"}.get).check_plan(creating)


def test_a_table_of_the_catalog_interface_is_refused() -> None:
    relation: Any = relations_pb2.Relation()
    relation.catalog.create_table.table_name = "orders"
    with pytest.raises(TableRefused):
        LastingTables(MEMORY.get).check_plan(relation)


@pytest.mark.parametrize(
    "other",
    [
        command(write_operation__table__table_name="orders", write_operation__table__save_method=2),
        command(write_operation__path="/out"),
        command(write_operation_v2__table_name="orders", write_operation_v2__mode=4),
        command(sql_command__sql="CREATE TEMPORARY VIEW orders AS SELECT 1"),
        command(sql_command__sql="SELECT 'CREATE TABLE orders'"),
    ],
)
def test_what_creates_no_table_is_not_refused(other: Any) -> None:
    LastingTables(MEMORY.get).check_plan(other)


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        ("lake.db.orders", {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}),
        ("`lake`.db.orders", {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}),
        ("orders", {"spark.sql.defaultCatalog": "lake"}),
        ("orders", {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}),
    ],
)
def test_a_configured_catalog_takes_tables(table: str, settings: dict[str, str]) -> None:
    LastingTables({**MEMORY, **settings}.get).check(table)


@pytest.mark.parametrize(
    ("query", "table"),
    [
        ("CREATE OR REPLACE TABLE a.b.c USING delta", "a.b.c"),
        ("REPLACE TABLE `my table` AS SELECT 1", "`my table`"),
        ("CREATE EXTERNAL TABLE t (id int)", "t"),
        ("CREATE DATABASE d", None),
        ("CREATE", None),
        ("", None),
    ],
)
def test_the_table_of_a_statement(query: str, table: str | None) -> None:
    assert created_table(query) == table

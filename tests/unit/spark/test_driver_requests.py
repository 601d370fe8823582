"""What a program on the shared engine asks for, and only a driver of its own has."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.proto import commands_pb2

from flintlock.model.tasks import FailureKind
from flintlock.spark.region.programs.lasting_tables import TableRefused
from flintlock.spark.region.programs.program import (
    DriverRequested,
    check_similarity_join,
    ignore_masters,
    needs_driver,
)

WAREHOUSE = "spark.sql.warehouse.dir"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what `ignore_masters` replaces."""
    name = "_validate_startup_urls"
    monkeypatch.setattr(SparkSession.Builder, name, getattr(SparkSession.Builder, name))
    monkeypatch.setenv("MASTER", "")
    monkeypatch.delenv("MASTER")


def test_another_value_of_a_setting_that_is_fixed_at_the_start_needs_a_driver() -> None:
    ignore_masters({WAREHOUSE: "file:/here"}.get)
    with pytest.raises(DriverRequested, match=r"warehouse.dir=/there, which is fixed when Spark starts, needs"):
        SparkSession.Builder().config(map={"spark.sql.shuffle.partitions": "3", WAREHOUSE: "/there"})
    with pytest.raises(DriverRequested, match=r"spark\.sql\.catalogImplementation=hive") as caught:
        SparkSession.Builder().enableHiveSupport()
    assert needs_driver(caught.value)


def test_settings_that_the_engine_has_or_that_a_session_can_change_need_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ignore_masters({WAREHOUSE: "file:/here", "spark.sql.catalogImplementation": "hive"}.get)
    SparkSession.Builder().config(WAREHOUSE, "file:/here").enableHiveSupport().master("local[2]").appName("x")
    assert "the master 'local[2]' is ignored" in capsys.readouterr().err


def test_a_program_that_wants_the_shared_engine_keeps_it() -> None:
    ignore_masters()
    SparkSession.Builder().config(WAREHOUSE, "/there")


def join(column: str, method: str = "approxSimilarityJoin") -> Any:
    command: Any = commands_pb2.Command()
    called = command.ml_command.fetch.methods.add(method=method)
    for value in ("a", "b", "0.6", column):
        called.args.add().param.string = value
    return command


def test_a_similarity_join_with_a_column_of_its_own_needs_a_driver() -> None:
    with pytest.raises(DriverRequested, match="approxSimilarityJoin with distCol='distance' needs"):
        check_similarity_join(join("distance"))
    check_similarity_join(join("distCol"))
    check_similarity_join(join("distance", "transform"))
    check_similarity_join(commands_pb2.Command())


def test_other_errors_need_no_driver() -> None:
    assert needs_driver(TableRefused(FailureKind.CONFIGURATION, "the table would be lost"))
    assert not needs_driver(ValueError("x"))

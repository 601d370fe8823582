"""Columns that an output cannot hold."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    LongType,
    StructField,
    StructType,
)

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Exchange, JobVertex, vertex_id
from flintlock.model.operations import Sink, Sql
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.schemas import check_output

JOB = JobId("ab" * 16)
EXCHANGE = JobVertex(
    id=vertex_id(JOB, "clean"), name=StepName("clean"), operation=Sql(query="x"), exchange=Exchange.BLOCKING
)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_names_that_differ_in_case_only_are_one_name() -> None:
    with pytest.raises(TaskError, match="'id', 'ID'") as caught:
        check_output(EXCHANGE, schema(id=LongType(), k=LongType(), ID=LongType()))
    assert (caught.value.kind, caught.value.step) == (FailureKind.ANALYSIS, "clean")
    check_output(EXCHANGE, schema(id=LongType(), ID=LongType()), case_sensitive=True)


def test_intervals_are_found_wherever_they_are() -> None:
    with pytest.raises(TaskError, match=r"INTERVAL \('a', 'b'\)"):
        check_output(EXCHANGE, schema(a=CalendarIntervalType(), b=ArrayType(CalendarIntervalType()), c=LongType()))
    check_output(EXCHANGE, schema(a=DayTimeIntervalType()))


def test_an_exchange_needs_at_least_one_column() -> None:
    with pytest.raises(TaskError, match="no column at all"):
        check_output(EXCHANGE, schema())


def test_a_sink_partitions_by_columns_that_exist() -> None:
    sink = JobVertex(
        id=vertex_id(JOB, "out"),
        name=StepName("out"),
        operation=Sink(format="parquet", path="/o", partition_by=("Day", "hour")),
        inputs=(StepName("clean"),),
    )
    with pytest.raises(TaskError, match=r"cannot partition by 'hour': the rows have the columns 'day', 'n'"):
        check_output(sink, schema(day=LongType(), n=LongType()))
    check_output(sink, schema(day=LongType(), hour=LongType()))

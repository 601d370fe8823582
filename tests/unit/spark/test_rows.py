"""Rows as JSON and as Arrow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from flintlock.model.ids import StepName
from flintlock.model.tasks import ResultRows
from flintlock.spark.region.rows import json_rows, result_rows, too_large_together


def table_of(kind: DataType, values: list[Any]) -> tuple[Any, StructType]:
    schema = StructType([StructField("c", kind)])
    arrow: Any = arrow_types
    return cast("Any", pa).table([values], schema=arrow.to_arrow_schema(schema, timezone="UTC")), schema


def written(kind: DataType, values: list[Any]) -> list[Any]:
    table, schema = table_of(kind, values)
    return [row[0] for row in msgspec.json.decode(json_rows(table, schema))["rows"]]


def test_plain_values_are_unchanged() -> None:
    assert written(LongType(), [1, None, 1 << 62]) == [1, None, 1 << 62]
    assert written(StringType(), ["a", 'b"\n', None]) == ["a", 'b"\n', None]
    assert written(BooleanType(), [True, False, None]) == [True, False, None]


def test_decimals_are_exact_text() -> None:
    assert written(DecimalType(20, 2), [Decimal("12345678901234567.10"), None]) == ["12345678901234567.10", None]
    assert written(DecimalType(38, 10), [Decimal("0.0000000001")]) == ["0.0000000001"]


def test_what_json_has_no_numbers_for_is_text() -> None:
    values = [1.5, float("nan"), float("inf"), float("-inf"), None]
    assert written(DoubleType(), values) == [1.5, "NaN", "Infinity", "-Infinity", None]


def test_dates_and_times_are_iso() -> None:
    instant = dt.datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=dt.UTC)
    assert written(DateType(), [dt.date(2026, 1, 2)]) == ["2026-01-02"]
    assert written(TimestampType(), [instant, None]) == ["2026-01-02T03:04:05.600000Z", None]
    assert written(TimestampNTZType(), [instant.replace(tzinfo=None)]) == ["2026-01-02T03:04:05.600000"]
    assert written(DayTimeIntervalType(), [dt.timedelta(days=1, seconds=2)]) == ["P1DT2S"]


def test_binary_is_base64() -> None:
    assert written(BinaryType(), [b"\0\xff", None]) == ["AP8=", None]


def test_nested_values_are_converted_all_the_way_down() -> None:
    struct = StructType([StructField("d", DecimalType(5, 1)), StructField("n", IntegerType())])
    assert written(struct, [{"d": Decimal("1.0"), "n": None}, None]) == [{"d": "1.0", "n": None}, None]
    assert written(ArrayType(DoubleType()), [[float("nan"), None], []]) == [["NaN", None], []]
    assert written(MapType(StringType(), BinaryType()), [[("a", b"x"), ("b", None)]]) == [{"a": "eA==", "b": None}]
    assert written(MapType(IntegerType(), StringType()), [[(1, "x")]]) == [[[1, "x"]]]


def test_columns_carry_sparks_type_names_and_may_share_a_name() -> None:
    schema = StructType([StructField("a", DecimalType(5, 1)), StructField("a", ArrayType(StringType()))])
    table = cast("Any", pa).Table.from_arrays(
        [pa.array([Decimal("1.0")], pa.decimal128(5, 1)), pa.array([["x"]])], names=["a", "a"]
    )
    assert msgspec.json.decode(json_rows(table, schema)) == {
        "columns": [{"name": "a", "type": "decimal(5,1)"}, {"name": "a", "type": "array<string>"}],
        "rows": [["1.0", ["x"]]],
    }


def test_no_rows_still_have_columns() -> None:
    table, schema = table_of(LongType(), [])
    assert msgspec.json.decode(json_rows(table, schema)) == {"columns": [{"name": "c", "type": "bigint"}], "rows": []}


def test_one_row_beyond_the_limit_marks_the_result_as_truncated() -> None:
    table, schema = table_of(LongType(), [1, 2, 3])
    rows = result_rows(StepName("top"), table, schema, 2)
    assert (rows.rows, rows.truncated) == (2, True)
    assert pa.ipc.open_stream(rows.arrow).read_all().column(0).to_pylist() == [1, 2]
    whole = result_rows(StepName("top"), table, schema, 3)
    assert (whole.rows, whole.truncated) == (3, False)


def test_all_results_of_a_region_fit_into_one_message() -> None:
    half = ResultRows(name=StepName("r"), rows=1, truncated=False, arrow=bytes(16 << 20), json=bytes(14 << 20))
    assert not too_large_together([half, half])
    assert too_large_together([half, half, half])

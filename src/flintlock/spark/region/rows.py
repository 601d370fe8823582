"""A job's result rows in two forms: an Arrow stream, and JSON for any client.

JSON has fewer types than Spark; values of the others become text: decimals (exact), dates and times (ISO 8601,
instants with `Z`), binary (Base64), NaN and the infinities (as Spark writes them). A struct is an object, and so is a
map with text keys; other maps are lists of pairs. The column's `type` is Spark's own name for it.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from flintlock.config.options import MAX_RESULTS_BYTES
from flintlock.model.ids import StepName
from flintlock.model.tasks import ResultRows

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`: pyarrow has no type annotations."""
Value: TypeAlias = Any
Converter: TypeAlias = Callable[[Value], Value]
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


def too_large_together(results: Iterable[ResultRows]) -> bool:
    """Return whether these results hold more than one message carries."""
    return sum(len(result.arrow) + len(result.json) for result in results) > MAX_RESULTS_BYTES


def result_rows(name: StepName, table: ArrowTable, schema: StructType, limit: int) -> ResultRows:
    """Return the first `limit` rows in both forms; one row more in the table means that the result is truncated."""
    first = table.slice(0, limit)
    return ResultRows(
        name=name,
        rows=first.num_rows,
        truncated=table.num_rows > limit,
        arrow=arrow_stream(first),
        json=json_rows(first, schema),
    )


def arrow_stream(table: ArrowTable) -> bytes:
    """Return the table as an Arrow IPC stream."""
    sink = cast("Any", pa).BufferOutputStream()
    writer: Any = pa.ipc.new_stream(sink, table.schema)
    with writer:
        writer.write_table(table)
    return cast("bytes", sink.getvalue().to_pybytes())


def json_rows(table: ArrowTable, schema: StructType) -> bytes:
    """Return `{"columns": [{"name", "type"}], "rows": [[…]]}`."""
    columns = [_column(table.column(index), field.dataType) for index, field in enumerate(schema.fields)]
    return _encoder.encode(
        {
            "columns": [{"name": field.name, "type": field.dataType.simpleString()} for field in schema.fields],
            "rows": [list(row) for row in zip(*columns, strict=True)]
            if columns
            else [[] for _ in range(table.num_rows)],
        }
    )


def _column(values: Any, kind: DataType) -> list[Value]:
    convert = _converter(kind)
    plain = cast("list[Value]", values.to_pylist())
    return plain if convert is None else [None if value is None else convert(value) for value in plain]


def _converter(kind: DataType) -> Converter | None:
    """Return the conversion of this type's values to JSON, or None if they need none."""
    match kind:
        case DecimalType():
            return _decimal
        case DoubleType() | FloatType():
            return _floating
        case TimestampType():
            return _instant
        case BinaryType():
            return _binary
        case VariantType():
            return _variant
        case ArrayType():
            return _array(_converter(kind.elementType))
        case MapType():
            return _map(_converter(kind.keyType), _converter(kind.valueType), text=isinstance(kind.keyType, StringType))
        case StructType():
            return _struct({field.name: _converter(field.dataType) for field in kind.fields})
        case _:
            return None  # numbers and text as they are; dates, times and intervals as msgspec writes them


def _decimal(value: decimal.Decimal) -> str:
    return format(value, "f")


def _floating(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _instant(value: dt.datetime) -> str:
    return value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat() + "Z"  # noqa: UP017 - same on every version


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _variant(value: Value) -> Value:
    if isinstance(value, Mapping):  # as Arrow carries it
        parts = cast("Mapping[str, bytes]", value)
        value = VariantVal(parts["value"], parts["metadata"])
    return msgspec.json.decode(value.toJson())


def _array(element: Converter | None) -> Converter | None:
    if element is None:
        return None
    return lambda value: [None if item is None else element(item) for item in value]


def _map(key: Converter | None, item: Converter | None, *, text: bool) -> Converter:
    def convert(value: Value) -> Value:
        entries = cast("Iterable[tuple[Value, Value]]", value.items() if isinstance(value, dict) else value)
        pairs = [(key(k) if key else k, item(v) if item and v is not None else v) for k, v in entries]
        return dict(pairs) if text else [list(pair) for pair in pairs]

    return convert


def _struct(fields: Mapping[str, Converter | None]) -> Converter:
    def convert(value: Mapping[str, Value]) -> Value:
        return {
            name: convert_field(value[name]) if convert_field and value[name] is not None else value[name]
            for name, convert_field in fields.items()
        }

    return convert

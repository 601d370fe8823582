"""Checks of a schema before anything is written: whether an output can store its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyspark.sql.types import ArrayType, CalendarIntervalType, DataType, MapType, StructType

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import JobVertex
from flintlock.model.operations import Sink
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError


def check_output(vertex: JobVertex, schema: StructType, *, case_sensitive: bool = False) -> None:
    """Raise TaskError if the rows of this schema cannot be written by this output: a sink, or a blocking exchange."""
    if vertex.has_output:
        _check_exchange(vertex.name, schema, case_sensitive=case_sensitive)
    elif isinstance(vertex.operation, Sink) and vertex.operation.partition_by:
        known = {_folded(name, case_sensitive=case_sensitive) for name in schema.names}
        missing = [
            name for name in vertex.operation.partition_by if _folded(name, case_sensitive=case_sensitive) not in known
        ]
        if missing:
            raise TaskError(
                FailureKind.ANALYSIS,
                f"cannot partition by {_listed(missing)}: the rows have the columns {_listed(schema.names)}",
                vertex.name,
            )


def _check_exchange(step: StepName, schema: StructType, *, case_sensitive: bool) -> None:
    problems: list[str] = []
    counts = Counter(_folded(name, case_sensitive=case_sensitive) for name in schema.names)
    repeated = [name for name in schema.names if counts[_folded(name, case_sensitive=case_sensitive)] > 1]
    if repeated:
        problems.append(f"several columns of one name ({_listed(repeated)}): rename or drop all but one")
    intervals = list(_intervals(schema))
    if intervals:
        problems.append(f"columns of the type INTERVAL ({_listed(intervals)}): cast them, to STRING for one")
    if not schema.fields:
        problems.append("no column at all: select at least one")
    if problems:
        raise TaskError(
            FailureKind.ANALYSIS,
            "a blocking exchange is kept as Parquet, which cannot hold " + "; nor ".join(problems),
            step,
        )


def _intervals(schema: StructType) -> Iterator[str]:
    return (field.name for field in schema.fields if _holds_interval(field.dataType))


def _holds_interval(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return _holds_interval(kind.elementType)
        case MapType():
            return _holds_interval(kind.keyType) or _holds_interval(kind.valueType)
        case StructType():
            return any(_holds_interval(field.dataType) for field in kind.fields)
        case _:
            return isinstance(kind, CalendarIntervalType)


def _folded(name: str, *, case_sensitive: bool) -> str:
    return name if case_sensitive else name.lower()


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)

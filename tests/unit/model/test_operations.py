"""The kinds of steps: one registry, which documents, stores and views agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

import msgspec
import pytest
from tests.unit.model.graphs import JOB, step

from flintlock.model.checking.jobspec import JobSpec, StepSpec
from flintlock.model.ids import StepName
from flintlock.model.operations import (
    READERS,
    ForeachBatch,
    Function,
    Guarantee,
    Operation,
    Program,
    Result,
    SaveMode,
    Sink,
    Source,
    Sql,
    StepOperation,
)

#: One document of each kind, the operation that it describes, and its description.
EXAMPLES: Final[Mapping[str, tuple[object, Operation, str]]] = {
    "source": (
        {"format": "parquet", "path": "in"},
        Source(format="parquet", paths=("in",)),
        "source: parquet in",
    ),
    "sql": ("SELECT  1", Sql(query="SELECT  1"), "sql: SELECT 1"),
    "function": ("package.module:name", Function(reference="package.module:name"), "function: package.module:name"),
    "sink": (
        {"format": "json", "path": "out", "mode": "append", "partitionBy": ["day"]},
        Sink(format="json", path="out", mode=SaveMode.APPEND, partition_by=("day",)),
        "sink: json out, append, partitioned by day",
    ),
    "result": ({"limit": 3}, Result(limit=3), "result: at most 3 rows"),
    "program": ({"file": "a.py", "args": ["x"]}, Program(file="a.py", args=("x",)), "program: a.py x"),
    "foreachBatch": ("lib:upsert", ForeachBatch(reference="lib:upsert"), "foreachBatch: lib:upsert"),
}


_FIELDS: Final = {field.encode_name: field.name for field in msgspec.structs.fields(StepSpec)}


def test_the_registry_has_every_kind_once() -> None:
    """The union, the registry and the document's keys name the same kinds; the tag is the key."""
    kinds = {operation.kind: operation for operation in get_args(Operation)}
    fields = [field.encode_name for field in msgspec.structs.fields(StepSpec)]

    assert list(kinds) == list(READERS) == list(EXAMPLES) == fields[: len(READERS)]
    assert {kind: operation.__struct_config__.tag for kind, operation in kinds.items()} == {
        kind: kind for kind in kinds
    }


@pytest.mark.parametrize("kind", READERS)
def test_a_document_becomes_the_operation(kind: str) -> None:
    """The key's value is converted by the document's struct, then by the kind's reader."""
    document, operation, description = EXAMPLES[kind]
    given = msgspec.convert({"name": "j", "steps": {"s": {kind: document}}}, JobSpec).steps["s"]

    made = READERS[kind](getattr(given, _FIELDS[kind]), lambda text: text)

    assert made == operation
    assert made.describe() == description


@pytest.mark.parametrize("kind", READERS)
def test_an_operation_is_stored_with_its_kind(kind: str) -> None:
    """The tag of a stored operation is its kind, and it reads back equal."""
    operation = EXAMPLES[kind][1]

    stored = msgspec.json.encode(operation)

    assert msgspec.json.decode(stored)["type"] == kind
    assert msgspec.json.decode(stored, type=Operation) == operation


def test_only_outputs_have_a_guarantee_and_only_they_have_no_consumers() -> None:
    """A step either passes rows on or delivers them."""
    for _, operation, _ in EXAMPLES.values():
        assert operation.has_output == (operation.guarantee is None)
        assert not operation.writes or not operation.has_output


def test_vertices_are_titled_as_flink_titles_them() -> None:
    """Sources, sinks, results and programs have a prefix; other steps only have their name."""
    titles = [step("s", operation).title for _, operation, _ in EXAMPLES.values()]

    assert titles == ["Source: s", "s", "s", "Sink: s", "Result: s", "Program: s", "Sink: s"]


def test_a_kind_has_to_describe_and_check_itself() -> None:
    """The base decides neither."""
    with pytest.raises(NotImplementedError):
        StepOperation().describe()
    with pytest.raises(NotImplementedError):
        StepOperation().problems(0, ())


def test_a_format_that_was_never_run_with_this_spark_is_not_called_exactly_once() -> None:
    """Delta receives transaction ids, but no release of it fits: what it does with them is not tested."""
    sink = Sink(format="delta", path="out")

    assert sink.guarantee.value.startswith("at least once")
    assert sink.stream_guarantee.value.startswith("at least once")


@pytest.mark.parametrize(
    ("sink", "guarantee"),
    [
        (Sink(format="parquet", path="out"), Guarantee.STAGED),
        (Sink(format="Delta", path="out"), Guarantee.TRANSACTION_ID),
        (Sink(format="delta", table="t"), Guarantee.TRANSACTION_ID),
        (Sink(format="iceberg", table="t"), Guarantee.AT_LEAST_ONCE),
        (Sink(format="hudi", path="out"), Guarantee.AT_LEAST_ONCE),
        (Sink(table="t"), Guarantee.AT_LEAST_ONCE),
        (Sink(format="parquet", table="t"), Guarantee.AT_LEAST_ONCE),
        (Sink(format="jdbc"), Guarantee.AT_LEAST_ONCE),
    ],
)
def test_only_what_cannot_repeat_rows_is_exactly_once(sink: Sink, guarantee: Guarantee) -> None:
    """A retried append to a table format without transaction ids would add its rows again."""
    assert sink.guarantee is guarantee
    assert bool(sink.transaction(JOB, StepName("out"))) == (guarantee is Guarantee.TRANSACTION_ID)

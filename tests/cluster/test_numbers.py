"""Records and bytes of an attempt are those that Spark counted, whatever kind of task it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.cluster.runner_harness import RunnerHarness, pickle_step, step

from flintlock.model.jobgraph import EngineKind, JobVertex
from flintlock.model.operations import Result, Sink, Source, Sql
from flintlock.model.tasks import TaskFinished
from flintlock.spark.runner import handle

ROWS = 10_000


@pytest.fixture(scope="module")
def orders(b: RunnerHarness) -> str:
    """Parquet files of so many rows."""
    place = b.path("orders")
    query = f"SELECT id, id % 7 AS k, uuid() AS text FROM range({ROWS})"
    finished = b.run(
        b.task(step("made", Sql(query=query)), step("out", Sink(format="parquet", path=place), "made"))
    ).finished
    (sink,) = finished.sinks
    written = sum(Path(move.source).stat().st_size for move in sink.moves)
    assert (finished.metrics.write_records, finished.metrics.write_bytes) == (ROWS, written)
    assert [(output.rows, output.bytes) for output in finished.outputs] == [(ROWS, written)]
    return sink.staging


def source(orders: str) -> JobVertex:
    return step("orders", Source(format="parquet", paths=(orders,)))


def size(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).glob("*.parquet"))


def check_read(finished: TaskFinished, orders: str) -> None:
    assert finished.metrics.read_records == ROWS, finished.metrics
    assert 0 < finished.metrics.read_bytes <= 2 * size(orders), finished.metrics


def test_files_read_and_written(b: RunnerHarness, orders: str) -> None:
    some = step("some", Sql(query="SELECT * FROM orders WHERE k < 3"), "orders")
    target = b.path("copied")
    finished = b.run(b.task(source(orders), some, step("out", Sink(format="parquet", path=target), "some"))).finished
    check_read(finished, orders)
    kept = sum(1 for number in range(ROWS) if number % 7 < 3)
    assert finished.metrics.write_records == kept
    assert finished.metrics.write_bytes == finished.outputs[0].bytes > 0


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_a_result(b: RunnerHarness, orders: str, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a short task come from the plan, those of a long one from the engine."""
    monkeypatch.setattr(handle, "WORTH_MEASURING_S", 0.0 if long else 1e9)
    counted = step("counted", Sql(query="SELECT k, count(text) AS n FROM orders GROUP BY k"), "orders")
    finished = b.run(b.task(source(orders), counted, step("r", Result(), "counted"))).finished
    check_read(finished, orders)
    assert (finished.metrics.write_records, finished.metrics.write_bytes) == (0, 0)
    assert finished.outputs[0].rows == 7


def test_a_blocking_exchange(b: RunnerHarness, orders: str) -> None:
    steps = (
        source(orders),
        step("kept", Sql(query="SELECT id, text FROM orders"), "orders", blocking=True),
        step("summed", Sql(query="SELECT sum(id), max(text) FROM kept"), "kept"),
        step("r", Result(), "summed"),
    )
    first = b.run(b.task(*steps, region=0)).finished
    check_read(first, orders)
    assert first.metrics.write_records == ROWS
    (place,) = first.materialised.values()
    assert first.metrics.write_bytes == size(place)
    check_read(b.run(b.task(*steps, region=1, inputs=first.materialised)).finished, place)


def test_a_step_with_a_udf(b: RunnerHarness, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "WORTH_MEASURING_S", 1e9)

    def longer(orders: DataFrame) -> DataFrame:
        from pyspark.sql.functions import length, udf

        return orders.select(udf(str.upper, "string")("text").alias("t")).where(length("t") > 40)

    steps = (source(orders), pickle_step("longer", "orders"), step("r", Result(), "longer"))
    check_read(b.run(b.task(*steps, artifacts=(b.pickled("longer", longer),))).finished, orders)


@pytest.mark.parametrize("engine", [EngineKind.SHARED, EngineKind.DEDICATED])
def test_a_program(b: RunnerHarness, orders: str, engine: EngineKind) -> None:
    target = b.path("by-program")
    text = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.read.parquet({orders!r}).write.parquet({target!r})
spark.stop()
"""
    more: dict[str, Any] = {"engine": engine}
    finished = b.run(b.program(text, **more)).finished
    check_read(finished, orders)
    assert (finished.metrics.write_records, finished.metrics.write_bytes) == (ROWS, size(target))

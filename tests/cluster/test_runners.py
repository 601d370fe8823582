"""Runners on a real engine: regions, sinks, failures, programs, interrupts, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql import DataFrame
from tests.cluster.processes import until
from tests.cluster.runner_harness import OUTPUT_LIMIT, Ran, RunnerHarness, contents, pickle_step, running_harness, step

import flintlock as fl
from flintlock.model.commands import CancelTask, CommandAccepted, PingTask, TaskAnswer
from flintlock.model.errors import Unavailable
from flintlock.model.failures.failure_text import render
from flintlock.model.files.staging import staging_directory
from flintlock.model.ids import JobId, RegionId, StepName
from flintlock.model.jobgraph import ArtifactKind, EngineKind, Exchange, JobVertex
from flintlock.model.operations import Function, Result, SaveMode, Sink, Source, Sql
from flintlock.model.regions import regions_of
from flintlock.model.tasks import Analysis, FailureKind, ResultRows, TaskFailed, TaskFinished, TaskRunning
from flintlock.spark.runner import queries
from flintlock.spark.runner.handle import ForkedRunner

NUMBERS = step("numbers", Sql(query="SELECT id, id % 3 AS k FROM range(30)"))


def rows(result: ResultRows) -> list[list[Any]]:
    return msgspec.json.decode(result.json)["rows"]


def one(b: RunnerHarness, query: str, **more: Any) -> Any:
    """Return the only value of a query."""
    ran = b.run(b.task(step("q", Sql(query=query)), step("r", Result(), "q"), **more))
    return rows(ran.finished.results[0])[0][0]


# --- regions


PRINTING = """\
import logging, sys, warnings
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf, udf

word = sys.argv[1]
spark = SparkSession.builder.getOrCreate()

@udf("long")
def plain(x):
    print(f"{word} prints {x}")
    logging.error("%s logs %d", word, x)
    warnings.warn(f"{word} warns")
    return x

@pandas_udf("long")
def of_pandas(x: pd.Series) -> pd.Series:
    print(f"{word} pandas", end="")
    return x

def mapped(frames):
    for frame in frames:
        sys.stdout.buffer.write(f"{word} maps\\n".encode())
        yield frame

frame = spark.range(0, 40, 1, 4).select(plain("id").alias("id")).select(of_pandas("id").alias("id"))
assert frame.mapInPandas(mapped, "id long").count() == 40
"""


def test_what_python_functions_print_is_in_the_log_of_their_own_task_only(b: RunnerHarness) -> None:
    """Two tasks at once on one engine, each with functions of several kinds."""

    async def both() -> tuple[Ran, Ran]:
        return await asyncio.gather(b.ran(b.program(PRINTING, "apple")), b.ran(b.program(PRINTING, "pear")))

    for ran, own, other in zip(b.loop.run(both()), ("apple", "pear"), ("pear", "apple"), strict=True):
        assert ran.finished
        lines = ran.log.splitlines()
        assert {f"{own} prints {n}" for n in range(40)} <= set(lines), ran.log
        assert any(line.endswith(f"{own} logs 7") for line in lines)
        assert any(f"UserWarning: {own} warns" in line for line in lines)
        assert f"{own} pandas" in ran.log
        assert f"{own} maps" in ran.log
        assert other not in ran.log
        assert f"{own} prints" not in (b.home / "engine.log").read_text()
    assert len([*(b.home / "scratch" / "output").iterdir()]) <= b.pool.alive(), "a pipe of an ended runner is there"


def test_functions_that_print_without_end_are_neither_blocked_nor_recorded_whole(b: RunnerHarness) -> None:
    flood = """\
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
spark = SparkSession.builder.getOrCreate()
@udf("long")
def loud(x):
    print("x" * 10_000)
    return x
assert len(spark.range(0, 1000, 1, 2).select(loud("id")).collect()) == 1000
"""
    ran = b.run(b.program(flood))
    assert ran.finished
    assert "x" * 10_000 in ran.log
    assert len(ran.log) < 2 * OUTPUT_LIMIT
    assert "left out here]" in ran.log


def test_a_query_gives_rows_in_both_forms(b: RunnerHarness) -> None:
    query = step("counts", Sql(query="SELECT k, count(*) AS n FROM numbers WHERE k < :most GROUP BY k"), "numbers")
    ran = b.run(b.task(NUMBERS, query, step("top", Result(limit=1), "counts"), params={"most": 2, "unused": None}))
    assert isinstance(ran.news[0], TaskRunning)
    assert ran.activities == ["collecting top"]
    (result,) = ran.finished.results
    assert (result.name, result.rows, result.truncated) == ("top", 1, True)
    assert msgspec.json.decode(result.json)["columns"] == [
        {"name": "k", "type": "bigint"},
        {"name": "n", "type": "bigint"},
    ]
    assert pa.ipc.open_stream(result.arrow).read_all().column("n").to_pylist() == [10]
    (output,) = ran.finished.outputs
    assert (output.step, output.rows, output.bytes) == ("top", 1, len(result.arrow))


def test_parameters_are_values_never_text(b: RunnerHarness) -> None:
    nasty = "x' OR '1'='1"
    assert one(b, "SELECT :v", params={"v": nasty}) == nasty


def test_a_step_and_what_was_made_of_it_can_be_read_together(b: RunnerHarness) -> None:
    """The inner query's views must not take away the outer's."""
    steps = (
        NUMBERS,
        step("some", Sql(query="SELECT * FROM numbers WHERE k = 1"), "numbers"),
        step("both", Sql(query="SELECT count(*) FROM numbers JOIN some USING (id)"), "numbers", "some"),
        step("again", Sql(query="SELECT * FROM both, some, numbers LIMIT 1"), "some", "both", "numbers"),
        step("r", Result(), "both"),
        step("s", Result(), "again"),
    )
    ran = b.run(b.task(*steps))
    assert rows(ran.finished.results[0]) == [[10]]
    assert len(ran.finished.results[1].json) > 0


def test_a_graph_with_many_paths_is_planned(b: RunnerHarness) -> None:
    steps = [NUMBERS]
    for n in range(5):
        last = steps[-1].name
        steps.append(step(f"left{n}", Sql(query=f"SELECT * FROM {last}"), last))
        both = f"SELECT * FROM {last} UNION ALL SELECT * FROM left{n}"
        steps.append(step(f"both{n}", Sql(query=both), last, f"left{n}"))
    counted = step("counted", Sql(query=f"SELECT count(*) FROM {steps[-1].name}"), steps[-1].name)
    ran = b.run(b.task(*steps, counted, step("r", Result(), "counted")))
    assert rows(ran.finished.results[0]) == [[30 << 5]]


def test_sessions_are_utc_and_have_a_partition_for_each_slot(b: RunnerHarness) -> None:
    zone = "SELECT current_timezone()"
    assert one(b, zone) == "UTC"
    assert one(b, zone, config={"spark.sql.session.timeZone": "Europe/Vienna"}) == "Europe/Vienna"

    def partitions(spark: Any) -> DataFrame:
        return spark.createDataFrame([[spark.conf.get("spark.sql.shuffle.partitions")]], "p string")

    def partitions_with(**more: Any) -> Any:
        task = b.task(pickle_step("p"), step("r", Result(), "p"), artifacts=(b.pickled("p", partitions),), **more)
        return rows(b.run(task).finished.results[0])[0][0]

    assert partitions_with(slots=(4, 5, 6)) == "3"
    assert partitions_with(config={"spark.sql.shuffle.partitions": "7"}) == "7"


def test_functions_get_inputs_parameters_and_helpers(b: RunnerHarness) -> None:
    helper = b.artifact(
        "sample_helper.py",
        b"from pyspark.sql.functions import udf\n\n\n@udf('long')\ndef plus(x):\n    return x + 100\n",
    )

    def priced(numbers: DataFrame, *, params: dict[str, Any], spark: Any) -> DataFrame:
        import sample_helper  # type: ignore[import-not-found]

        helper: Any = sample_helper
        assert spark.version
        return numbers.where(numbers.k == params["k"]).select(helper.plus("id").alias("n")).orderBy("n")

    task = b.task(
        NUMBERS,
        pickle_step("priced", "numbers"),
        step("r", Result(limit=2), "priced"),
        params={"k": 1},
        artifacts=(helper, b.pickled("priced", priced)),
    )
    assert rows(b.run(task).finished.results[0]) == [[101], [104]]


def test_a_function_can_be_named(b: RunnerHarness) -> None:
    module = b.artifact("named_steps.py", b"def double(n):\n    return n.selectExpr('id * 2 AS d').orderBy('d')\n")
    task = b.task(
        NUMBERS,
        step("double", Function(reference="named_steps:double"), "numbers"),
        step("r", Result(limit=2), "double"),
        artifacts=(module,),
    )
    assert rows(b.run(task).finished.results[0]) == [[0], [2]]


def test_a_cached_step_is_computed_once(b: RunnerHarness) -> None:
    random = step("random", Sql(query="SELECT rand() AS r"), cache=True)
    ran = b.run(b.task(random, step("x", Result(), "random"), step("y", Result(), "random")))
    first, second = (rows(result) for result in ran.finished.results)
    assert first == second


def test_a_result_that_is_too_large_is_an_error_that_names_it(b: RunnerHarness) -> None:
    wide = step("wide", Sql(query="SELECT repeat(uuid(), 1000) FROM range(1000)"))
    ran = b.run(b.task(wide, step("top", Result(limit=1000), "wide"), config={"execution.result.max-bytes": "1m"}))
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.CONFIGURATION, "top")
    assert "execution.result.max-bytes" in ran.failure.message


# --- blocking exchanges


def test_a_blocking_exchange_is_written_and_read_by_the_next_region(b: RunnerHarness) -> None:
    steps = (
        NUMBERS,
        step("clean", Sql(query="SELECT id FROM numbers WHERE k = 0"), "numbers", blocking=True),
        step("summed", Sql(query="SELECT sum(id) FROM clean"), "clean"),
        step("r", Result(), "summed"),
    )
    first = b.task(*steps, region=0)
    ran = b.run(first)
    assert ran.activities == ["materialising clean"]
    path = f"{b.home}/work/clean/{first.attempt.attempt}"
    assert ran.finished.materialised == {"clean": path}
    second = b.run(b.task(*steps, region=1, inputs={StepName("clean"): path}))
    assert rows(second.finished.results[0]) == [[135]]


def test_within_a_region_consumers_read_what_was_written(b: RunnerHarness) -> None:
    """Steps around a blocking exchange that a pipelined path joins: one region; both readers see the same rows."""
    steps = (
        step("random", Sql(query="SELECT id, uuid() AS u FROM range(5)"), blocking=True),
        step("left", Sql(query="SELECT * FROM random"), "random"),
        step("right", Sql(query="SELECT * FROM left JOIN random USING (id, u)"), "left", "random"),
        step("r", Result(), "right"),
    )
    from flintlock.model.regions import regions_of

    task = b.task(*steps)
    regions = regions_of(task.graph)
    if len(regions) == 1:
        assert b.run(task).finished.results[0].rows == 5
    else:
        first = b.run(task)
        ran = b.run(b.task(*steps, region=1, inputs=first.finished.materialised))
        assert ran.finished.results[0].rows == 5


def test_an_analysis_error_comes_before_any_action(b: RunnerHarness) -> None:
    target = b.path("never")
    task = b.task(
        NUMBERS,
        step("good", Sink(format="parquet", path=target), "numbers"),
        step("bad", Sql(query="SELECT nope FROM numbers"), "numbers"),
        step("worse", Sql(query="SELECT * FROM bad"), "bad"),
        step("r", Result(), "worse"),
    )
    ran = b.run(task)
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.ANALYSIS, "bad")
    assert ran.failure.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert ran.failure.query_context is not None
    assert "SELECT nope FROM numbers" in ran.failure.query_context
    assert ran.failure.jvm_stack_trace
    assert not Path(target).exists()


def test_a_step_whose_own_code_fails_to_resolve_is_called_once(b: RunnerHarness) -> None:
    calls = Path(b.path("calls"))

    def asks(numbers: Any) -> Any:
        with calls.open("a") as file:
            file.write("called ")
        return numbers.select(numbers.select("nope").columns)

    steps = (NUMBERS, pickle_step("asks", "numbers"), step("r", Result(), "asks"))
    ran = b.run(b.task(*steps, artifacts=(b.pickled("asks", asks),)))
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.ANALYSIS, "asks")
    assert calls.read_text() == "called "


def test_an_analysis_error_of_a_later_region_comes_before_any_action(b: RunnerHarness) -> None:
    steps = (
        NUMBERS,
        step("clean", Sql(query="SELECT id FROM numbers"), "numbers", blocking=True),
        step("later", Sql(query="SELECT nope FROM clean"), "clean"),
        step("r", Result(), "later"),
    )
    task = b.task(*steps, analysis=Analysis.WHOLE)
    ran = b.run(task)
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.ANALYSIS, "later")
    assert not Path(f"{b.home}/work/clean/{task.attempt.attempt}").exists()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id, id AS ID FROM numbers", "'id', 'ID'"),
        ("SELECT make_interval(1) AS i FROM numbers", "INTERVAL ('i')"),
    ],
)
def test_a_type_that_an_exchange_does_not_support_is_reported_by_column(
    b: RunnerHarness, query: str, expected: str
) -> None:
    steps = (NUMBERS, step("clean", Sql(query=query), "numbers", blocking=True), step("r", Result(), "clean"))
    ran = b.run(b.task(*steps))
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.ANALYSIS, "clean")
    assert expected in ran.failure.message


# --- sinks


def sink_task(b: RunnerHarness, target: str, **more: Any) -> Any:
    return b.task(NUMBERS, step("out", Sink(format="parquet", path=target, **more), "numbers"))


def publish(ran: Any) -> None:
    """What the engine does when the JobMaster has accepted the attempt."""
    for sink in ran.finished.sinks:
        for move in sink.moves:
            Path(move.target).parent.mkdir(parents=True, exist_ok=True)
            Path(move.source).rename(move.target)
        for path in sink.removes:
            Path(path).unlink()


def test_a_staged_sink_publishes_nothing_by_itself(b: RunnerHarness) -> None:
    target = b.path("staged")
    task = sink_task(b, target, partition_by=("k",))
    ran = b.run(task)
    (sink,) = ran.finished.sinks
    assert sink.staging == staging_directory(target, task.attempt)
    assert [path.name for path in Path(target).iterdir()] == [Path(sink.staging).name]
    partitions = {Path(move.target).parent.name for move in sink.moves}
    assert partitions == {"k=0", "k=1", "k=2"}
    assert all(move.source.removeprefix(sink.staging) == move.target.removeprefix(target) for move in sink.moves)
    assert all(Path(move.source).is_file() for move in sink.moves)
    (output,) = ran.finished.outputs
    assert output.bytes == sum(Path(move.source).stat().st_size for move in sink.moves)
    assert output.rows == 30
    publish(ran)
    assert one(b, f"SELECT count(*) FROM parquet.`{target}`") == 30


def test_modes_mean_what_spark_means_by_them(b: RunnerHarness) -> None:
    target = b.path("modes")
    publish(b.run(sink_task(b, target)))
    refused = b.run(sink_task(b, target))
    assert (refused.failure.kind, refused.failure.step) == (FailureKind.ANALYSIS, "out")
    assert "has data already" in refused.failure.message

    ignored = b.run(sink_task(b, target, mode=SaveMode.IGNORE))
    assert ignored.finished.sinks == ()
    assert [output.rows for output in ignored.finished.outputs] == [0]
    assert f"'out' writes nothing: {target} has data already" in ignored.log

    publish(b.run(sink_task(b, target, mode=SaveMode.APPEND)))
    assert one(b, f"SELECT count(*) FROM parquet.`{target}`") == 60

    over = b.run(sink_task(b, target, mode=SaveMode.OVERWRITE))
    assert len(over.finished.sinks[0].removes) >= 2
    publish(over)
    assert one(b, f"SELECT count(*) FROM parquet.`{target}`") == 30


def test_a_sink_whose_target_another_job_has_writes_nothing(b: RunnerHarness) -> None:
    target, other = b.path("taken"), JobId("f" * 32)
    taken = {StepName("out"): other}
    refused = b.run(structs.replace(sink_task(b, target), taken=taken))
    assert (refused.failure.kind, refused.failure.step) == (FailureKind.ANALYSIS, "out")
    assert f"job {other} writes to the path {target!r}" in refused.failure.message
    ignored = b.run(structs.replace(sink_task(b, target, mode=SaveMode.IGNORE), taken=taken))
    assert ignored.finished.sinks == ()
    assert f"'out' writes nothing: job {other} writes to {target}" in ignored.log
    assert not Path(target).exists()


def test_a_dynamic_overwrite_removes_only_partitions_it_writes(b: RunnerHarness) -> None:
    target = b.path("dynamic")
    publish(b.run(sink_task(b, target, partition_by=("k",))))
    task = b.task(
        step("numbers", Sql(query="SELECT 99 AS id, 1 AS k")),
        step(
            "out",
            Sink(
                format="parquet",
                path=target,
                mode=SaveMode.OVERWRITE,
                partition_by=("k",),
                options={"partitionOverwriteMode": "dynamic"},
            ),
            "numbers",
        ),
    )
    ran = b.run(task)
    assert {Path(path).parent.name for path in ran.finished.sinks[0].removes} == {"k=1"}
    publish(ran)
    assert one(b, f"SELECT count(*) FROM parquet.`{target}`") == 21


@pytest.mark.parametrize(("form", "options"), [("csv", {"header": "true"}), ("json", {}), ("orc", {})])
def test_other_file_formats_are_staged_too(b: RunnerHarness, form: str, options: dict[str, str]) -> None:
    target = b.path(form)
    ran = b.run(b.task(NUMBERS, step("out", Sink(format=form, path=target, options=options), "numbers")))
    publish(ran)
    back = step("back", Source(format=form, paths=(target,), options=options, schema="id LONG, k LONG"))
    counted = step("n", Sql(query="SELECT count(*), sum(id) FROM back"), "back")
    again = b.run(b.task(back, counted, step("r", Result(), "n")))
    assert rows(again.finished.results[0]) == [[30, 435]]


def test_a_table_that_no_catalog_would_keep_is_refused(b: RunnerHarness) -> None:
    ran = b.run(b.task(NUMBERS, step("out", Sink(table="kept_nowhere", mode=SaveMode.OVERWRITE), "numbers")))
    assert (ran.failure.kind, ran.failure.step) == (FailureKind.CONFIGURATION, "out")
    assert "spark.sql.catalog.NAME" in ran.failure.message


# --- failures


def test_an_error_in_a_step_shows_the_users_own_lines(b: RunnerHarness) -> None:
    def helper() -> int:
        prices: dict[str, int] = {}
        return prices["price"]

    def priced(numbers: DataFrame) -> DataFrame:
        return numbers.limit(helper())

    task = b.task(
        NUMBERS,
        pickle_step("priced", "numbers"),
        step("r", Result(), "priced"),
        artifacts=(b.pickled("priced", priced),),
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.exception) == (FailureKind.USER_CODE, "priced", "KeyError")
    assert [(frame.file, frame.function, frame.source) for frame in failure.frames] == [
        (__file__, "priced", "return numbers.limit(helper())"),
        (__file__, "helper", 'return prices["price"]'),
    ]
    assert "priced" in render(failure)


def test_an_error_in_a_udf_shows_the_users_own_lines(b: RunnerHarness) -> None:
    def inverse(x: int) -> int:
        return 1 // (x - x)

    def priced(numbers: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return numbers.select(F.udf(inverse, "long")("id"))

    task = b.task(
        NUMBERS,
        pickle_step("priced", "numbers"),
        step("r", Result(), "priced"),
        artifacts=(b.pickled("priced", priced),),
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.exception, failure.permanent) == (FailureKind.USER_CODE, "ZeroDivisionError", False)
    assert failure.message == "integer division or modulo by zero"
    assert [(frame.function, frame.source) for frame in failure.frames] == [("inverse", "return 1 // (x - x)")]
    assert failure.step == "priced"


def test_no_retry_of_a_udf_is_permanent_and_its_message_has_no_note(b: RunnerHarness) -> None:
    class NoPrice(fl.NoRetry):
        pass

    def price(x: int) -> int:
        raise NoPrice(f"product {x} has no price")

    def priced(numbers: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return numbers.where("id = 3").select(F.udf(price, "long")("id"))

    task = b.task(
        NUMBERS,
        pickle_step("priced", "numbers"),
        step("r", Result(), "priced"),
        artifacts=(b.pickled("priced", priced),),
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.permanent, failure.message) == (
        FailureKind.USER_CODE,
        True,
        "product 3 has no price",
    )
    assert failure.exception.endswith("NoPrice")


def test_a_column_expression_that_fails_shows_where_it_was_written(b: RunnerHarness) -> None:
    def priced(numbers: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        return numbers.select(F.col("id") / (F.col("k") - F.col("k")))

    def other(priced: DataFrame) -> DataFrame:
        return priced

    task = b.task(
        NUMBERS,
        pickle_step("priced", "numbers"),
        pickle_step("other", "priced"),
        step("r", Result(), "other"),
        artifacts=(b.pickled("priced", priced), b.pickled("other", other)),
    )
    failure = b.run(task).failure
    assert (failure.step, failure.error_class) == ("priced", "DIVIDE_BY_ZERO")
    assert [frame.source for frame in failure.frames] == [
        'return numbers.select(F.col("id") / (F.col("k") - F.col("k")))'
    ]


def test_an_error_at_run_time_names_the_sql_step(b: RunnerHarness) -> None:
    task = b.task(
        NUMBERS,
        step("ratio", Sql(query="SELECT id / (k - k) AS x FROM numbers"), "numbers"),
        step("sums", Sql(query="SELECT sum(x) FROM ratio"), "ratio"),
        step("r", Result(), "sums"),
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.error_class) == (FailureKind.USER_CODE, "ratio", "DIVIDE_BY_ZERO")


def test_a_missing_module_is_user_code(b: RunnerHarness) -> None:
    task = b.task(step("f", Function(reference="nowhere_to_be_found:f")), step("r", Result(), "f"))
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.exception) == (FailureKind.USER_CODE, "f", "ModuleNotFoundError")
    assert failure.permanent


def test_a_missing_path_is_an_analysis_error_of_its_source(b: RunnerHarness) -> None:
    source = step("orders", Source(format="parquet", paths=("/nowhere/orders",)))
    task = b.task(source, step("q", Sql(query="SELECT * FROM orders"), "orders"), step("r", Result(), "q"))
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.error_class) == (FailureKind.ANALYSIS, "orders", "PATH_NOT_FOUND")


def test_a_missing_blob_is_a_missing_artifact(b: RunnerHarness) -> None:
    lost = b.artifact("lost.py", b"")
    Path(lost.blob).unlink()
    failure = b.run(b.task(NUMBERS, step("r", Result(), "numbers"), artifacts=(lost,))).failure
    assert failure.kind is FailureKind.MISSING_ARTIFACT


@pytest.mark.parametrize("key", ["spark.executor.memory", "spark.sql.warehouse.dir"])
def test_a_static_setting_points_to_dedicated_engines(b: RunnerHarness, key: str) -> None:
    failure = b.run(b.task(NUMBERS, step("r", Result(), "numbers"), config={key: "1g"})).failure
    assert failure.kind is FailureKind.CONFIGURATION
    assert key in failure.message
    assert "engine: dedicated" in failure.message


def test_a_setting_that_spark_refuses_is_reported(b: RunnerHarness) -> None:
    failure = b.run(
        b.task(NUMBERS, step("r", Result(), "numbers"), config={"spark.sql.shuffle.partitions": "x"})
    ).failure
    assert failure.kind is FailureKind.CONFIGURATION
    assert "spark.sql.shuffle.partitions" in failure.message


# --- the end of runners


@pytest.mark.parametrize(
    ("code", "expected"),
    [("os._exit(3)", "ended with exit code 3"), ("os.kill(os.getpid(), 9)", "was killed by SIGKILL")],
)
def test_a_runner_that_dies_is_reported_with_its_last_output(b: RunnerHarness, code: str, expected: str) -> None:
    ran = b.run(b.program(f"import os\nprint('last words', flush=True)\n{code}\n"))
    assert ran.failure.kind is FailureKind.RUNNER_LOST
    assert expected in ran.failure.message
    assert "last words" in ran.failure.message


def test_an_interrupt_stops_sparks_work(b: RunnerHarness) -> None:
    slow = step("slow", Sql(query="SELECT count(*) FROM range(100000000000) WHERE sqrt(id) < 0"))
    task = b.task(slow, step("r", Result(), "slow"))

    async def stop(runner: ForkedRunner) -> None:
        await runner.command(CancelTask(attempt=task.attempt))
        await runner.command(CancelTask(attempt=task.attempt))

    async def scenario() -> Any:
        async with asyncio.timeout(60):
            return await b.ran(task, during=stop)

    ran = b.loop.run(scenario())
    assert ran.failure.exception == "Interrupted"


def test_a_runner_stays_until_its_taskmanager_has_hung_up(b: RunnerHarness) -> None:
    """If it closed its socket with unread data, its outcome would be lost."""
    task = b.task(NUMBERS, step("r", Result(), "numbers"))

    async def scenario() -> ForkedRunner:
        runner = await b.pool.take_process(task)
        news = runner.run(task, str(b.log_of(task)), {})
        while not isinstance(await anext(news), TaskFinished):
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):  # without staying it is gone within milliseconds
                await runner.exited()
        assert [item async for item in news] == []  # at the end of which the TaskManager hangs up
        assert (await runner.exited()).code == 0
        return runner

    b.loop.run(b.end(b.loop.run(scenario())))


def test_an_interrupt_raises_in_user_code(b: RunnerHarness) -> None:
    text = """
import threading
try:
    print("begun", flush=True)
    threading.Event().wait()
except Exception:
    print("swallowed")
finally:
    print("cleaned up")
"""
    task = b.program(text)

    async def stop(runner: ForkedRunner) -> None:
        await b.until(lambda: b.log_of(task).exists() and "begun" in b.log_of(task).read_text())
        await runner.command(CancelTask(attempt=task.attempt))

    async def scenario() -> Any:
        async with asyncio.timeout(60):
            return await b.ran(task, during=stop)

    ran = b.loop.run(scenario())
    assert ran.failure.exception == "Interrupted"
    assert ran.log.splitlines() == ["begun", "cleaned up"]


class Queried:
    """A program that runs, and what its runner answers meanwhile."""

    def __init__(self, b: RunnerHarness, text: str, **more: Any) -> None:
        self.task = b.program(text, **more)
        self._b = b

    async def during(self, act: Callable[[ForkedRunner], Coroutine[Any, Any, None]]) -> Ran:
        """Run the program; `act` begins once it has printed "begun", while its messages are read."""
        log = self._b.log_of(self.task)
        async with asyncio.TaskGroup() as tasks:

            async def act_later(runner: ForkedRunner) -> None:
                async def acted() -> None:
                    await self._b.until(lambda: log.exists() and "begun" in log.read_text())
                    await act(runner)

                tasks.create_task(acted(), name="act")

            async with asyncio.timeout(60):
                return await self._b.ran(self.task, during=act_later)


def test_a_runner_answers_while_user_code_runs(b: RunnerHarness) -> None:
    """Python code that never waits, too; and the task is none the worse for it."""
    go = Path(b.path("go"))
    text = f"import os\nprint('begun', flush=True)\nwhile not os.path.exists({str(go)!r}):\n    sum(range(1000))\n"
    queried = Queried(b, text)
    answers: list[TaskAnswer] = []

    async def ask(runner: ForkedRunner) -> None:
        answers.extend(await asyncio.gather(*(runner.command(PingTask(attempt=queried.task.attempt)) for _ in "123")))
        go.touch()

    assert b.loop.run(queried.during(ask)).finished
    assert answers == [CommandAccepted()] * 3


def test_a_runner_whose_interpreter_is_blocked_does_not_answer_and_is_not_flooded(
    b: RunnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code that keeps the GIL: clear errors within a limited time. The answers that come later are dropped."""
    monkeypatch.setattr(queries, "ANSWER_S", 0.3)
    monkeypatch.setattr(queries, "MAX_UNANSWERED", 2)
    text = "import ctypes\nprint('begun', flush=True)\nctypes.PyDLL(None).sleep(3)\nprint('done')\n"
    queried = Queried(b, text)
    said: list[str] = []

    async def ask(runner: ForkedRunner) -> None:
        for _ in range(3):
            with pytest.raises(Unavailable) as error:
                await runner.command(PingTask(attempt=queried.task.attempt))
            said.append(error.value.public)

    ran = b.loop.run(queried.during(ask))
    assert ran.finished
    assert ran.log.splitlines() == ["begun", "done"]
    assert ["did not answer within 0.3 s" in said[0], "did not answer" in said[1]] == [True, True]
    assert said[2] == "the runner is busy: it has not answered the last 2 queries"


@pytest.mark.parametrize("end", ["cancel", "kill"])
def test_a_query_to_a_runner_that_ends_is_an_error_at_once(b: RunnerHarness, end: str) -> None:
    """Not after the time in which a runner has to answer."""
    text = """
import threading
print("begun", flush=True)
threading.Event().wait()
"""
    queried = Queried(b, text)
    said: list[str] = []

    async def ask(runner: ForkedRunner) -> None:
        pid = await runner.started()
        os.kill(pid, signal.SIGSTOP)  # so that it cannot answer
        ping = runner.command(PingTask(attempt=queried.task.attempt))
        call = asyncio.get_running_loop().create_task(ping, name="ping")
        await asyncio.sleep(0)
        if end == "cancel":
            await runner.command(CancelTask(attempt=queried.task.attempt))
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL)
        try:
            assert await call == CommandAccepted()  # it may have been faster than its end
            assert end == "cancel"
        except Unavailable as error:
            said.append(error.public)
        await runner.exited()
        with pytest.raises(Unavailable, match="has ended its task"):
            await runner.command(PingTask(attempt=queried.task.attempt))

    assert b.loop.run(queried.during(ask)).failure
    assert said in ([], ["the runner has ended its task"])


def test_a_runner_that_does_not_obey_is_killed_with_all_it_started(b: RunnerHarness) -> None:
    text = """
import os, subprocess, sys, threading
own_session = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
orphan = subprocess.Popen([sys.executable, "-c", own_session], stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, orphan.stdout.readline().decode(), flush=True)
while True:
    try:
        threading.Event().wait()
    except BaseException:
        pass
"""
    task = b.program(text)

    async def scenario() -> list[int]:
        runner = await b.pool.take_process(task)
        log = b.log_of(task)

        async def serve() -> None:
            async for _ in runner.run(task, str(log), contents(task.graph)):
                pass

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve())
            await b.until(lambda: log.exists() and len(log.read_text().split()) == 2)
            pids = [await runner.started(), *map(int, log.read_text().split())]
            await runner.command(CancelTask(attempt=task.attempt))
            await runner.kill()
            await runner.kill()
        return pids

    pids = b.loop.run(scenario())
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def _over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_a_runner_leaves_running_ends_with_it(b: RunnerHarness) -> None:
    ran = b.run(b.program("import subprocess\nprint(subprocess.Popen(['sleep', '1000']).pid)\n"))
    ran.finished  # noqa: B018
    pid = int(ran.log)
    until("the end of what it left", lambda: _over(pid), 10)


def test_scratch_directories_are_removed_and_a_program_that_leaves_a_file_there_fails(b: RunnerHarness) -> None:
    """A child process writes it, which Python's audit does not see."""
    ran = b.run(b.program("import subprocess\nsubprocess.run(['touch', 'left-behind'], check=True)\n"))
    assert "the program has written 'left-behind' into the directory of its task" in ran.failure.message
    b.loop.run(b.until(lambda: not ran.runner.scratch.exists()))


# --- programs


def test_an_unmodified_script_runs_in_the_runners_session(b: RunnerHarness) -> None:
    text = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F

def main():
    spark = SparkSession.builder.appName("x").getOrCreate()
    twice = F.udf(lambda x: x * 2, "long")
    print(spark.range(3).select(twice("id").alias("d")).agg(F.sum("d")).collect()[0][0])
    print(spark.session_id)
    print(sys.argv[1:], Path("data.txt").read_text(), __name__)
    print("to stderr", file=sys.stderr)
    spark.stop()
    again = SparkSession.builder.getOrCreate()
    print(again.range(5).count())
    again.stop()

main()
"""
    data = b.artifact("data.txt", b"content", ArtifactKind.FILE)
    ran = b.run(b.program(text, "a", "b c", artifacts=(data,)))
    assert ran.finished.results == ()
    session = ran.runner.session
    assert session is not None
    assert ran.log.splitlines() == ["6", session.session_id, "['a', 'b c'] content __main__", "to stderr", "5"]


@pytest.mark.parametrize("end", ["", "import sys; sys.exit()", "raise SystemExit(0)", "exit(False)"])
def test_success_has_several_spellings(b: RunnerHarness, end: str) -> None:
    assert b.run(b.program(end)).finished


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [("raise SystemExit(3)", 3, "bye"), ("import sys; sys.exit('no luck')", 1, "no luck"), ("exit(-1)", 255, "bye")],
)
def test_other_exit_codes_are_failures_with_the_last_output(b: RunnerHarness, end: str, code: int, last: str) -> None:
    failure = b.run(b.program(f"print('bye')\n{end}\n")).failure
    assert (failure.kind, failure.step) == (FailureKind.USER_CODE, "script")
    assert f"exit code {code}" in failure.message
    assert failure.message.endswith(last)


def test_a_script_that_raises_shows_its_own_lines(b: RunnerHarness) -> None:
    failure = b.run(b.program("def f():\n    raise ValueError('no')\n\nf()\n")).failure
    assert (failure.kind, failure.exception, failure.message) == (FailureKind.USER_CODE, "ValueError", "no")
    assert [(frame.file, frame.line, frame.source) for frame in failure.frames] == [
        ("script.py", 4, "f()"),
        ("script.py", 2, "raise ValueError('no')"),
    ]


def test_a_script_ends_as_python_ends(b: RunnerHarness) -> None:
    text = """
import atexit, threading
done = threading.Event()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (done.wait(), print("thread done"))).start()
threading.Timer(0.1, done.set).start()
print("main done")
"""
    assert b.run(b.program(text)).log.split("\n")[:3] == ["main done", "thread done", "at exit"]


def test_a_script_on_a_driver_of_its_own_has_rdds_and_shows_its_own_lines(b: RunnerHarness) -> None:
    helper = b.artifact("rdd_helper.py", b"def triple(x):\n    return 3 * x\n")
    text = """
from pyspark.sql import SparkSession
from rdd_helper import triple
spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
print(sc.master, spark.conf.get("spark.executor.cores", "-"), spark.conf.get("spark.sql.session.timeZone"))
print(sc.parallelize(range(10), 2).map(triple).sum(), flush=True)
def bad(x):
    return 1 // (x - x)
sc.parallelize(range(3)).map(lambda x: print(f"function prints {x}")).count()
sc.parallelize(range(3)).map(bad).collect()
"""
    task = b.program(text, engine=EngineKind.DEDICATED, artifacts=(helper,), config={"spark.executor.cores": "1"})
    ran = b.run(task)
    printed = {"local[2] 1 UTC", "135", "function prints 2"}
    assert printed <= set(ran.log.splitlines())  # output of the driver may come between them
    assert ran.runner.session is None
    assert (ran.failure.kind, ran.failure.exception) == (FailureKind.USER_CODE, "ZeroDivisionError")
    assert [(frame.file, frame.source) for frame in ran.failure.frames] == [
        ("script.py", "sc.parallelize(range(3)).map(bad).collect()"),
        ("script.py", "return 1 // (x - x)"),
    ]
    assert "PythonException" in (ran.failure.jvm_stack_trace or "")


def test_a_graph_with_a_static_setting_runs_on_a_driver_of_its_own(b: RunnerHarness) -> None:
    target = b.path("dedicated")
    warehouse = b.path("warehouse")

    def with_warehouse(counts: DataFrame, spark: Any) -> DataFrame:
        return counts.withColumn(
            "w", __import__("pyspark").sql.functions.lit(spark.conf.get("spark.sql.warehouse.dir"))
        )

    task = b.task(
        NUMBERS,
        step("counts", Sql(query="SELECT k, count(*) n FROM numbers WHERE k > :k GROUP BY k ORDER BY k"), "numbers"),
        pickle_step("with_warehouse", "counts"),
        step("out", Sink(format="parquet", path=target), "numbers"),
        step("r", Result(), "with_warehouse"),
        engine=EngineKind.DEDICATED,
        params={"k": 0},
        config={"spark.sql.warehouse.dir": warehouse},
        artifacts=(b.pickled("with_warehouse", with_warehouse),),
    )
    ran = b.run(task)
    assert [row[:2] for row in rows(ran.finished.results[0])] == [[1, 10], [2, 10]]
    assert rows(ran.finished.results[0])[0][2].endswith(Path(warehouse).name)
    assert len(ran.finished.sinks[0].moves) >= 1


def test_a_dedicated_graph_materialises_counts_and_collects(b: RunnerHarness) -> None:
    """Blocking exchanges, sinks and results have the same outcome as on a shared engine, with their numbers."""
    task = b.task(
        structs.replace(NUMBERS, exchange=Exchange.BLOCKING),
        step("doubled", Sql(query="SELECT id * 2 AS id, timestamp '2024-01-01 12:00:00' AS t FROM numbers"), "numbers"),
        step("out", Sink(format="json", path=b.path("dedicated-out")), "doubled"),
        step("r", Result(limit=2), "doubled"),
        engine=EngineKind.DEDICATED,
        config={"spark.sql.session.timeZone": "Europe/Vienna", "spark.sql.warehouse.dir": b.path("warehouse-2")},
        region=0,
    )
    made = b.run(task).finished
    assert list(made.materialised) == ["numbers"]
    assert [(output.step, output.rows) for output in made.outputs] == [("numbers", 30)]

    rest = structs.replace(task, attempt=structs.replace(task.attempt, region=RegionId(1)))
    rest = structs.replace(rest, region=regions_of(task.graph)[1], inputs=made.materialised)
    ran = b.run(rest).finished

    assert [(output.step, output.rows) for output in ran.outputs] == [("out", 30), ("r", 2)]
    assert rows(ran.results[0])[0][1] == "2024-01-01T11:00:00Z"
    assert ran.results[0].truncated
    assert ran.metrics.write_records == 30
    assert ran.metrics.read_records >= 30
    assert len(ran.sinks[0].moves) >= 1


def test_a_dedicated_graphs_errors_name_their_step(b: RunnerHarness) -> None:
    """Analysis and failures at run time are attributed as on a shared engine."""
    wrong = step("q", Sql(query="SELECT nope FROM numbers"), "numbers")
    failure = b.run(b.task(NUMBERS, wrong, step("r", Result(), "q"), engine=EngineKind.DEDICATED)).failure
    assert (failure.kind, failure.step) == (FailureKind.ANALYSIS, "q")
    assert "UNRESOLVED_COLUMN" in (failure.error_class or "")

    def bad(numbers: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        def inverse(x: int) -> int:
            return 1 // (x - x)

        return numbers.select(F.udf(inverse, "long")("id"))

    task = b.task(
        NUMBERS,
        pickle_step("bad", "numbers"),
        step("r", Result(), "bad"),
        engine=EngineKind.DEDICATED,
        artifacts=(b.pickled("bad", bad),),
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.exception) == (FailureKind.USER_CODE, "bad", "ZeroDivisionError")


def test_a_dedicated_graph_can_be_cancelled(b: RunnerHarness) -> None:
    """The driver's jobs are cancelled, and the runner ends with its JVM."""
    slow = step("slow", Sql(query="SELECT count(*) FROM range(100000000000) WHERE sqrt(id) < 0"))
    task = b.task(slow, step("r", Result(), "slow"), engine=EngineKind.DEDICATED)

    async def stop(runner: ForkedRunner) -> None:
        await runner.command(CancelTask(attempt=task.attempt))

    ran = b.loop.run(b.ran(task, during=stop))
    assert ran.failure.exception == "Interrupted"


# --- the pool


def test_runners_wait_with_a_session_and_are_replaced(b: RunnerHarness) -> None:
    async def scenario() -> None:
        await b.until(lambda: b.pool.waiting() == 2)
        task = b.task(NUMBERS, step("r", Result(), "numbers"))
        first, second, third = [await b.pool.take_process(task) for _ in range(3)]
        assert first.session is not None
        assert second.session is not None
        assert len({first.session.session_id, second.session.session_id}) == 2
        for runner in (first, second, third):
            await b.end(runner)
        await b.until(lambda: b.pool.waiting() == 2)

    b.loop.run(scenario())


def test_the_template_has_one_thread(b: RunnerHarness) -> None:
    """A fork copies only one, and every lock as another may hold it just then."""

    async def scenario() -> int:
        runner = await b.pool.take_process(b.task(NUMBERS, step("r", Result(), "numbers")))
        template = psutil.Process(await runner.started()).parent()
        assert template is not None
        await b.end(runner)
        return template.num_threads()

    assert b.loop.run(scenario()) == 1


def test_without_an_engine_there_is_no_runner(b: RunnerHarness) -> None:
    async def scenario() -> None:
        b.pool.use_engine(None)
        try:
            with pytest.raises(Unavailable):
                await b.pool.take_process(b.task(NUMBERS, step("r", Result(), "numbers")))
            await b.until(lambda: b.pool.alive() == 0)
        finally:
            b.pool.use_engine(b.engine)
        await b.until(lambda: b.pool.waiting() == 2)

    b.loop.run(scenario())


def test_a_template_that_dies_is_replaced(b: RunnerHarness) -> None:
    task = b.program("import threading\nthreading.Event().wait()\n")

    async def scenario() -> Any:
        async def kill_template(runner: ForkedRunner) -> None:
            template = psutil.Process(await runner.started()).parent()
            assert template is not None
            template.send_signal(signal.SIGKILL)

        ran = await b.ran(task, during=kill_template)
        await b.until(lambda: b.pool.waiting() == 2)
        return ran

    ran = b.loop.run(scenario())
    assert isinstance(ran.news[-1], TaskFailed)
    assert ran.failure.kind is FailureKind.RUNNER_LOST
    assert one(b, "SELECT 1") == 1


def test_the_output_of_a_task_that_ends_while_the_template_is_busy_is_kept(b: RunnerHarness) -> None:
    """The template may kill what another runner left behind for seconds, and then finds this one begun and ended."""
    task = b.program("print('HELLO OUT')\n")

    async def scenario() -> str:
        runner = await b.pool.take_process(task)
        template = psutil.Process(await runner.started()).parent()
        assert template is not None
        template.suspend()
        try:
            async for _ in runner.run(task, str(b.log_of(task)), contents(task.graph)):
                pass
            own = psutil.Process(await runner.started())
            await b.until(lambda: own.status() == psutil.STATUS_ZOMBIE)
        finally:
            template.resume()
        await runner.exited()
        await b.end(runner)
        return b.log_of(task).read_text()

    assert b.loop.run(scenario()) == "HELLO OUT\n"


def test_a_script_that_sets_a_master_runs_on_the_shared_engine_and_is_told_so(b: RunnerHarness) -> None:
    script = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.master", "local[*]").appName("x").getOrCreate()
print(spark.range(7).count())
"""
    ran = b.run(b.program(script))
    assert ran.finished
    assert ran.log.splitlines()[-1] == "7"
    assert "[flintlock: the master 'local[2]' is ignored, the job runs on the shared engine" in ran.log


def test_no_failure_shows_what_opens_the_sessions_of_an_engine(b: RunnerHarness) -> None:
    ran = b.run(b.program("import os\nraise ValueError(os.environ['SPARK_REMOTE'])\n"))
    token = b.engine.remote_url.partition("Bearer%20")[2].partition(";")[0]
    assert len(token) > 10
    assert "authorization=Bearer%20******" in ran.failure.message
    assert token not in render(ran.failure) + ran.failure.stack_trace


def test_no_relative_path_leads_to_the_directories_of_the_engine(b: RunnerHarness) -> None:
    script = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
for name in ("local", "tmp", "warehouse"):
    try:
        spark.range(1).write.mode("overwrite").parquet(name)
    except Exception as error:
        print(error)
"""
    before = {path.name for path in (b.home / "engine" / "local").iterdir()}
    assert b.run(b.program(script)).log.count("is relative, and the job was submitted without a directory") == 3
    assert before <= {path.name for path in (b.home / "engine" / "local").iterdir()}


def test_a_secret_reaches_the_program_that_names_it_and_no_failure(b: RunnerHarness) -> None:
    path = b.home / "secrets" / "KEY"
    path.parent.mkdir(mode=0o700)
    path.write_text("open sesame\n")
    path.chmod(0o600)
    try:
        ran = b.run(b.program("import sys\nprint(len(sys.argv[1]))\nraise ValueError(sys.argv[1])\n", "${secret:KEY}"))
        assert ran.log.splitlines()[0] == str(len("open sesame"))
        assert ran.failure.message == "******"
        assert "sesame" not in render(ran.failure)
        missing = b.run(b.program("pass\n", "${secret:OTHER}")).failure
    finally:
        path.unlink()
        path.parent.rmdir()
    assert missing.kind is FailureKind.CONFIGURATION
    assert "there is no secret 'OTHER' on this TaskManager" in missing.message


class Nowhere:
    """An engine that is not there."""

    remote_url = "sc://127.0.0.1:1"

    async def list_files(self, path: str, *, with_sizes: bool = False, durable: bool = False) -> Any:
        raise Unavailable("gone")

    async def make_durable(self, path: str) -> None:
        raise Unavailable("gone")

    async def repartition_state(self, checkpoint: str, partitions: int, config: dict[str, str]) -> None:
        raise Unavailable("gone")

    async def find_unshared(self, targets: Any, sources: Any) -> Any:
        raise Unavailable("gone")

    async def measure(self, session: Any, operations: Any) -> Any:
        raise Unavailable("gone")


def test_an_engine_that_cannot_be_reached_fails_the_task(b: RunnerHarness, tmp_path: Path) -> None:
    with running_harness(b.loop, Nowhere(), tmp_path, warm=0) as lost:
        failure = lost.run(lost.task(NUMBERS, step("r", Result(), "numbers"))).failure
        assert failure.kind is FailureKind.ENGINE_LOST


def test_directories_of_a_killed_pool_are_removed(b: RunnerHarness, tmp_path: Path) -> None:
    """Its runners had the same numbers."""
    for number in range(4):
        (tmp_path / "scratch" / f"runner-{number}" / "left").mkdir(parents=True)
    with running_harness(b.loop, Nowhere(), tmp_path, warm=0) as successor:
        failure = successor.run(successor.task(NUMBERS, step("r", Result(), "numbers"))).failure
        assert failure.kind is FailureKind.ENGINE_LOST
        assert not (tmp_path / "scratch" / "runner-3").exists()


# --- analysis only


def test_schemas_are_found_without_running_anything(b: RunnerHarness, tmp_path: Path) -> None:
    target = b.path("untouched")
    graph = b.task(
        NUMBERS,
        step("clean", Sql(query="SELECT id, CAST(k AS DECIMAL(5, 1)) AS k FROM numbers"), "numbers", blocking=True),
        step("out", Sink(format="parquet", path=target), "clean"),
    ).graph
    analysis = b.loop.run(b.pool.analyze(graph, str(tmp_path / "log"), {}))
    assert analysis.failure is None
    assert [(s.step, [(c.name, c.type) for c in s.columns]) for s in analysis.schemas] == [
        ("numbers", [("id", "bigint"), ("k", "bigint")]),
        ("clean", [("id", "bigint"), ("k", "decimal(5,1)")]),
        ("out", [("id", "bigint"), ("k", "decimal(5,1)")]),
    ]
    assert not Path(target).exists()


def test_the_first_step_that_fails_is_named(b: RunnerHarness, tmp_path: Path) -> None:
    bad: JobVertex = step("bad", Sql(query="SELECT nope FROM numbers"), "numbers")
    graph = b.task(NUMBERS, bad, step("r", Result(), "bad")).graph
    analysis = b.loop.run(b.pool.analyze(graph, str(tmp_path / "log"), {}))
    assert [schema.step for schema in analysis.schemas] == ["numbers"]
    assert analysis.failure is not None
    assert analysis.failure.step == "bad"

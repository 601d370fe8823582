"""Unmodified scripts that start streaming queries: their queries are shown, and end with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests

ENDS = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
numbers = spark.readStream.schema("n LONG").json("in")
query = numbers.groupBy().count().writeStream.queryName("counts").outputMode("complete").format("noop").option(
    "checkpointLocation", "checkpoint").start()
query.processAllAvailable()
print("done", flush=True)
"""
RUNS = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
query = rows.writeStream.queryName("rates").format("noop").option("checkpointLocation", "checkpoint").start()
print("query", query.id, flush=True)
spark.streams.awaitAnyTermination()
"""


def _queries(url: str, job_id: str) -> list[dict[str, Any]]:
    return rest_requests.get(f"{url}/jobs/{job_id}/queries").json()["queries"]


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
def test_a_query_that_runs_when_its_script_ends_is_stopped_with_it_and_the_output_says_so(
    standing: Processes, tmp_path: Path, engine: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "ends.py").write_text(ENDS)

    ran = flintlock("run", "-m", standing.url, "--engine", engine, "--name", engine, "ends.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the query 'counts' was still running when the program ended" in ran.stdout + ran.stderr
    job = rest_requests.get(f"{standing.url}/jobs/overview?name={engine}").json()["jobs"][0]
    (query,) = _queries(standing.url, job["jid"])
    assert (query["name"], query["active"], query["input-rows"], query["state-rows"]) == ("counts", False, 2, 1)


def test_the_queries_of_a_script_are_shown_while_it_runs_and_end_with_its_cancel(
    standing: Processes, tmp_path: Path
) -> None:
    (tmp_path / "runs.py").write_text(RUNS)
    submitted = flintlock("run", "-m", standing.url, "-d", "--engine", "shared", "runs.py", cwd=tmp_path)
    job_id = submitted.stdout.split()[-1]

    def running() -> dict[str, Any] | None:
        found = _queries(standing.url, job_id)
        return found[0] if found and found[0]["batch"] >= 1 else None

    query = until("a batch", running)
    assert (query["name"], query["active"]) == ("rates", True)
    assert {"addBatch", "triggerExecution"} <= query["durations"].keys()
    assert query["sources"][0]["backlog"] is not None
    shown = flintlock("status", job_id, "-m", standing.url, cwd=tmp_path)
    assert "running runs.py with 1 streaming query" in shown.stdout

    assert flintlock("cancel", job_id, "-m", standing.url, cwd=tmp_path).returncode == 0

    (query,) = _queries(standing.url, job_id)
    assert not query["active"]
    # A query that is alive would keep the next one from its checkpoint.
    alone = 'spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")\nrows = '
    again = RUNS.replace("rows = ", alone).replace(".start()", ".trigger(availableNow=True).start()")
    (tmp_path / "again.py").write_text(again)
    ran = flintlock("run", "-m", standing.url, "--engine", "shared", "again.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


CONSOLE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
numbers = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).json("in").selectExpr("n * 111 AS m")
numbers.groupBy("m").count().writeStream.outputMode("complete").format("console").option(
    "checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
"""
PRINTS = """
import logging
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

def write(rows, batch_id):
    logging.basicConfig(format="logged %(message)s", level="INFO")
    print("printed", batch_id, [row.m for row in rows.collect()])
    logging.info("of %s", batch_id)

spark = SparkSession.builder.getOrCreate()

@udf("long")
def twice(n):
    print("computed", n)
    return n * 2

numbers = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", 1).json("in")
numbers.select(twice("n").alias("m")).writeStream.foreachBatch(write).option(
    "checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
"""


def _write_files(directory: Path) -> None:
    """Two files, the second of which repeats the row of the first."""
    (directory / "in").mkdir()
    (directory / "in" / "1.json").write_text('{"n": 7}\n')
    (directory / "in" / "2.json").write_text('{"n": 7}\n')


@pytest.mark.parametrize("engine", ["dedicated", "auto"])
def test_rows_for_a_console_are_in_the_output(standing: Processes, tmp_path: Path, engine: str) -> None:
    """A shared engine would print them into its own log; and each batch has to find the state of the one before it."""
    _write_files(tmp_path)
    (tmp_path / "console.py").write_text(CONSOLE)

    ran = flintlock("run", "-m", standing.url, "--engine", engine, "console.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.startswith(("Batch", "|777"))]
    assert lines == ["Batch: 0", "|777|    1|", "Batch: 1", "|777|    2|"], ran.stdout + ran.stderr
    assert "printed by the shared engine into its own log" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("engine", ["dedicated", "shared"])
def test_what_functions_of_a_stream_print_is_in_the_output(standing: Processes, tmp_path: Path, engine: str) -> None:
    _write_files(tmp_path)
    (tmp_path / "prints.py").write_text(PRINTS)

    ran = flintlock("run", "-m", standing.url, "--engine", engine, "prints.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in ("printed 0 [14]", "printed 1 [14]", "logged of 0", "logged of 1", "computed 7"):
        assert line in ran.stdout + ran.stderr
    assert "ForeachBatch worker" not in ran.stdout + ran.stderr, "what Spark says there names its sessions"

"""Typical mistakes, and what their author reads: the exact text is in a file beside this one.

`UPDATE_SNAPSHOTS=1 make test ARGS=tests/cluster/test_mistakes.py` writes it again; review the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

SNAPSHOTS = Path(__file__).parent / "mistakes"

HEAD = """\
import flintlock as fl
from pyspark.sql import DataFrame, functions as F

job = fl.Job("mistake", parallelism=1)
numbers = job.sql("numbers", "SELECT id, CAST(id AS STRING) AS text FROM range(5)")
"""

#: Each is what its author wrote after the head above.
MISTAKES = {
    "missing-column": 'job.result("rows", job.sql("picked", "SELECT idd FROM numbers", inputs=[numbers]))',
    "missing-column-in-a-later-region": """
kept = job.sql("kept", "SELECT * FROM numbers", inputs=[numbers], exchange="blocking")
job.result("rows", job.sql("picked", "SELECT nope FROM kept", inputs=[kept]))
""",
    "sql-syntax": 'job.result("rows", job.sql("picked", "SELEC id FROM numbers", inputs=[numbers]))',
    "unknown-table": 'job.result("rows", job.sql("picked", "SELECT * FROM orders"))',
    "missing-file": 'job.result("rows", job.source("files", format="parquet", path="/nowhere/at/all"))',
    "exception-in-a-step": """
@job.step(inputs=[numbers])
def scaled(numbers: DataFrame) -> DataFrame:
    factor = 1 / 0
    return numbers.withColumn("scaled", F.col("id") * factor)

job.result("rows", scaled)
""",
    "step-returns-nothing": """
@job.step(inputs=[numbers])
def shown(numbers: DataFrame) -> DataFrame:
    numbers.limit(3)

job.result("rows", shown)
""",
    "exception-in-a-udf": """
def cents(text: str) -> int:
    if text == "3":
        raise ValueError(f"no price: {text}")
    return int(text) * 100

@job.step(inputs=[numbers])
def priced(numbers: DataFrame) -> DataFrame:
    return numbers.withColumn("cents", F.udf(cents, "int", useArrow=False)("text"))

job.result("rows", priced)
""",
    "division-by-zero-in-sql": """
job.result("rows", job.sql("ratio", "SELECT 10 / id AS r FROM numbers", inputs=[numbers]))
""",
    "cast-of-bad-data": """
query = "SELECT CAST(concat('x', text) AS INT) AS n FROM numbers WHERE id = 2"
job.result("rows", job.sql("cast_it", query, inputs=[numbers]))
""",
    "module-that-is-not-there": """
@job.step(inputs=[numbers])
def scored(numbers: DataFrame) -> DataFrame:
    import scoring_models
    return scoring_models.score(numbers)

job.result("rows", scored)
""",
    "duplicate-columns-at-a-blocking-exchange": """
twice = job.sql("twice", "SELECT id, id + 1 AS id FROM numbers", inputs=[numbers], exchange="blocking")
job.result("rows", job.sql("read", "SELECT 1 AS one FROM twice", inputs=[twice]))
""",
    "forgotten-input": 'job.result("rows", job.sql("picked", "SELECT id FROM numbers"))',
    "missing-column-in-a-python-step": """
@job.step(inputs=[numbers])
def doubled(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("idd * 2 AS twice")

job.result("rows", doubled)
""",
    "csv-read-as-parquet": 'job.result("rows", job.source("files", format="parquet", path="orders.csv"))',
    "unknown-format": 'job.result("rows", job.source("files", format="parqet", path="orders.csv"))',
    "jdbc-driver-that-is-not-there": """
options = {"url": "jdbc:nosuchbase://db/shop", "dbtable": "orders"}
job.result("rows", job.source("orders", format="jdbc", options=options))
""",
    "sink-that-exists": 'job.sink("out", numbers, format="csv", path="taken", mode="errorifexists")',
    "step-returns-a-column": """
@job.step(inputs=[numbers])
def doubled(numbers: DataFrame) -> DataFrame:
    return F.col("id") * 2

job.result("rows", doubled)
""",
    "exit-in-a-step": """
@job.step(inputs=[numbers])
def ended(numbers: DataFrame) -> DataFrame:
    raise SystemExit("no orders today")

job.result("rows", ended)
""",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_as(name: str, standing: Processes, tmp_path: Path) -> None:
    """Step, exception, the user's own lines, Spark's error class and query context; no machine's stack."""
    (tmp_path / "job.py").write_text(HEAD + MISTAKES[name])
    (tmp_path / "orders.csv").write_text("id,name\n1,a\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "part-0.csv").write_text("1\n")

    ran = flintlock("run", "-m", standing.url, "job.py:job", cwd=tmp_path)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    output = _neutral(ran.stderr, tmp_path)
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        snapshot.write_text(output, encoding="utf-8")
    assert output == snapshot.read_text(encoding="utf-8")


def test_a_module_that_was_not_sent_with_a_program_is_reported_as(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import importlib\nimportlib.import_module('scoring_models.trees')\n")
    ran = flintlock("run", "-m", standing.url, "--name", "mistake", "program.py", cwd=tmp_path)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    snapshot = SNAPSHOTS / "module-that-is-not-sent.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(_neutral(ran.stderr, tmp_path), encoding="utf-8")
    assert _neutral(ran.stderr, tmp_path) == snapshot.read_text(encoding="utf-8")


def _neutral(text: str, tmp_path: Path) -> str:
    """Leave out what differs from run to run: ids, times, directories, and progress before the failure."""
    text = text.replace(str(tmp_path), "HERE")
    text = re.sub(r"\b[0-9a-f]{32}\b", "JOB", text)
    text = re.sub(r"\([0-9.]+ (ms|s|min)\)", "(TIME)", text)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not re.match(r"(job JOB|mistake: |  \[)", line)) + "\n"

"""Scripts that need a Spark driver of their own, found by reading them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from flintlock.client.authoring.driver_needs import driver_need
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import ProgramJob, read_program
from flintlock.model.jobgraph import EngineKind


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("from pyspark import SparkConf, SparkContext", "SparkContext"),
        ("import pyspark.mllib.linalg as linalg", "pyspark.mllib.linalg"),
        ("from pyspark.mllib.regression import LabeledPoint", "pyspark.mllib.regression"),
        ("from pyspark import mllib", "mllib"),
        ("from pyspark.streaming import StreamingContext", "pyspark.streaming"),
        ("from pyspark.sql import Row, SQLContext", "SQLContext"),
        ("sc = pyspark.SparkContext('local')", "SparkContext"),
        ("spark.sparkContext.setLogLevel('WARN')", "sparkContext"),
        ("words = df.rdd.map(len)", "rdd"),
        ("SparkSession.builder.enableHiveSupport()", "enableHiveSupport"),
        ("orders.write.saveAsTable('orders')", "saveAsTable"),
        ("model.approxSimilarityJoin(a, b, 1.5, distCol='distance')", "approxSimilarityJoin"),
        ("spark.sql('create table if not exists orders (id int)')", "CREATE TABLE"),
        ("b.config('spark.sql.extensions', 'x')", "spark.sql.extensions"),
    ],
)
def test_a_script_that_uses_what_only_a_driver_has_is_given_one(line: str, what: str) -> None:
    need = driver_need(ast.parse(f"import pyspark\n{line}\n"))
    assert need is not None
    assert (need.what, need.line) == (what, 2)


@pytest.mark.parametrize(
    "text",
    [
        "from pyspark import SparkConf, StorageLevel",
        "from pyspark.sql import SparkSession, functions as F",
        "from pyspark.ml.feature import Tokenizer",
        "SparkSession.builder.master('local').config('spark.sql.shuffle.partitions', 2).getOrCreate()",
        "query = rows.writeStream.format('parquet').start('console')",
        "query = rows.writeStream.format('console').start()",
        "print('to {}'.format('console'))",
        "# sparkContext and rdd in a comment\nprint('sparkContext')",
    ],
)
def test_other_scripts_share_the_engine(text: str) -> None:
    assert driver_need(ast.parse(text)) is None


def test_the_engine_of_a_program_is_chosen_unless_it_is_requested(tmp_path: Path) -> None:
    (tmp_path / "rdd.py").write_text("df.rdd\n")
    (tmp_path / "plain.py").write_text("print(1)\n")
    rdd, plain = read_program(tmp_path / "rdd.py"), read_program(tmp_path / "plain.py")

    def engine(job: ProgramJob, requested: EngineKind | None = None) -> EngineKind:
        return job.package(Overrides(engine=requested)).graph.engine

    assert (engine(rdd), engine(plain)) == (EngineKind.DEDICATED, EngineKind.AUTO)
    assert (engine(rdd, EngineKind.AUTO), engine(plain, EngineKind.AUTO)) == (EngineKind.DEDICATED, EngineKind.AUTO)
    assert (engine(rdd, EngineKind.SHARED), engine(plain, EngineKind.DEDICATED)) == (
        EngineKind.SHARED,
        EngineKind.DEDICATED,
    )
    assert "rdd.py:1: rdd needs a Spark driver of its own" in (rdd.note() or "")
    assert rdd.note(Overrides(engine=EngineKind.SHARED)) is None
    assert plain.note() is None

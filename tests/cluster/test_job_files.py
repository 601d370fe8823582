"""Job files as people write them: what a script has at its top works there too."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

MODULE_LEVEL = """
import flintlock as fl
import pandas as pd
from pyspark.sql import Window, functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

BIG = F.col("id") > 5
LATEST = Window.partitionBy("size").orderBy(F.desc("id"))
SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


@F.udf("string")
def size(number):
    return "big" if number > 5 else "small"


@F.udf(StringType())
def shout(text):
    return text.upper()


@F.pandas_udf("double")
def half(numbers: pd.Series) -> pd.Series:
    return numbers / 2


job = fl.Job("top")


@job.step
def numbers(spark):
    names = spark.createDataFrame([(9, "nine")], SCHEMA)
    rows = spark.range(10).select("id", BIG.alias("large"), size("id").alias("size"), half("id").alias("half"))
    ranked = rows.withColumn("rank", F.row_number().over(LATEST)).where("rank = 1")
    return ranked.join(names, "id", "left").select("id", "large", shout("size").alias("size"), "half", "name")


job.result("r", numbers)
"""


def test_udfs_columns_windows_and_schemas_at_the_top_of_a_job_file_work(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "top.py").write_text(MODULE_LEVEL)
    ran = flintlock("run", "-m", standing.url, "--json", "top.py:job", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    answered = "".join(ran.stdout.split())
    assert '[9,true,"BIG",4.5,"nine"]' in answered
    assert '[5,false,"SMALL",2.5,null]' in answered


def test_udfs_of_a_module_that_a_job_file_or_a_program_imports_work(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text(
        "from pyspark.sql import functions as F\n@F.udf('string')\ndef shout(text):\n    return text.upper()\n"
    )
    (tmp_path / "graph.py").write_text(
        "import flintlock as fl\n"
        "from cleaning import shout\n"
        "job = fl.Job('imported', py_files=['cleaning.py'])\n"
        "@job.step\n"
        "def words(spark):\n"
        "    return spark.createDataFrame([('a',)], ['w']).select(shout('w').alias('w'))\n"
        "job.result('r', words)\n"
    )
    ran = flintlock("run", "-m", standing.url, "--json", "graph.py:job", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert '["A"]' in "".join(ran.stdout.split())

    (tmp_path / "program.py").write_text(
        "from cleaning import shout\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(spark.createDataFrame([('a',)], ['w']).select(shout('w').alias('w')).collect())\n"
    )
    ran = flintlock("run", "-m", standing.url, "program.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "[Row(w='A')]" in ran.stdout


def test_a_job_file_for_a_dedicated_engine_is_read_with_classic_pyspark(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "classic.py").write_text(
        "import flintlock as fl\n"
        "from pyspark.sql import functions as F\n"
        "from pyspark.sql.types import StringType\n"
        "job = fl.Job('classic')\n"
        "shout = F.udf(lambda text: text.upper(), StringType())\n"
        "@job.step\n"
        "def words(spark):\n"
        "    return spark.createDataFrame([('a',)], ['w']).select(shout('w').alias('w'))\n"
        "job.result('r', words)\n"
    )
    ran = flintlock("run", "-m", standing.url, "--engine", "dedicated", "--json", "classic.py:job", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert '["A"]' in "".join(ran.stdout.split())


def test_a_forgotten_input_and_a_source_that_cannot_be_read_are_named(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n")
    (tmp_path / "job.yaml").write_text(
        "name: forgotten\nsteps:\n"
        "  orders: {sql: SELECT 1 AS id}\n"
        "  all: {sql: SELECT * FROM orders}\n"
        "  kept: {result: {}, inputs: [orders]}\n"
        "  r: {result: {}, inputs: [all]}\n"
    )
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)
    assert ran.returncode == 1
    assert "there is a step 'orders', which is not an input of this one: add it (inputs: [orders])" in ran.stderr

    (tmp_path / "source.yaml").write_text(
        "name: unreadable\nsteps:\n"
        "  orders: {source: {format: parquet, path: in.csv}}\n"
        "  all: {sql: SELECT * FROM orders, inputs: [orders]}\n"
        "  r: {result: {}, inputs: [all]}\n"
    )
    ran = flintlock("run", "-m", standing.url, "source.yaml", cwd=tmp_path)
    assert ran.returncode == 1
    assert "Step 'orders' failed" in ran.stderr, ran.stderr


def test_a_relative_path_in_a_query_means_the_directory_of_the_command(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "orders.csv").write_text("7\n")
    (tmp_path / "job.yaml").write_text(
        "name: query\nsteps:\n"
        "  orders: {sql: SELECT _c0 AS id FROM csv.`in/orders.csv`}\n"
        "  r: {result: {}, inputs: [orders]}\n"
    )
    (tmp_path / "option.yaml").write_text(
        "name: option\nsteps:\n"
        "  orders: {source: {format: csv, options: {path: in/orders.csv}}}\n"
        "  r: {result: {}, inputs: [orders]}\n"
    )
    for arguments in (
        ("run", "--json", "job.yaml"),
        ("run", "--json", "option.yaml"),
        ("run", "--json", "--engine", "dedicated", "job.yaml"),
        ("sql", "--format", "json", "SELECT * FROM csv.`in/orders.csv`"),
    ):
        ran = flintlock(*arguments, "-m", standing.url, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert '"7"' in ran.stdout

    (tmp_path / "elsewhere.yaml").write_text(f"directory: {tmp_path}/gone\n" + (tmp_path / "job.yaml").read_text())
    ran = flintlock("run", "-m", standing.url, "elsewhere.yaml", cwd=tmp_path)
    assert ran.returncode == 1
    assert "Step 'orders' failed" in ran.stderr, ran.stderr
    assert "the path 'in/orders.csv' is relative, and the directory" in ran.stderr

"""Programs as people have them: unmodified PySpark scripts, run with a plain `flintlock run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

RELATIVE = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("relative").getOrCreate()
orders = spark.read.option("header", True).csv("in/orders.csv").cache()
orders.write.mode("overwrite").parquet("out/orders")
assert spark.sql("SELECT * FROM parquet.`out/orders`").count() == 2
spark.sql("CREATE TEMPORARY VIEW v USING parquet OPTIONS (path 'out/orders')")
print("rows", spark.table("v").count(), "first line", open("in/orders.csv").readline().strip())
open("out/done.txt", "w").write("done")
"""


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
def test_a_program_sees_the_directory_it_was_submitted_from_in_python_and_in_spark(
    standing: Processes, tmp_path: Path, engine: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "orders.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "relative.py").write_text(RELATIVE)
    ran = flintlock("run", "-m", standing.url, "--engine", engine, "relative.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rows 2 first line id,name" in ran.stdout
    assert (tmp_path / "out" / "orders" / "_SUCCESS").is_file()
    assert (tmp_path / "out" / "done.txt").read_text() == "done"


@pytest.mark.parametrize(
    ("body", "path", "printed"),
    [
        ("spark.range(10).write.mode('overwrite').parquet('out')", "'out' in line 4", False),
        ("name = 'out'\nspark.range(10).write.mode('overwrite').parquet(name)", "'out'", True),
        ("name = 'out.txt'\nopen(name, 'w').write('lost')", "'out.txt'", True),
    ],
)
def test_relative_paths_without_a_directory_are_refused(
    standing: Processes, tmp_path: Path, body: str, path: str, *, printed: bool
) -> None:
    """Before anything runs if the script shows them, else where they are used."""
    (tmp_path / "write.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('count', spark.range(3).count())\n"
        f"{body}\n"
    )
    gone = tmp_path / "gone"
    (tmp_path / "job.yaml").write_text(
        f"name: elsewhere\ndirectory: {gone}\nsteps:\n  w: {{program: {{file: write.py}}}}\n"
    )
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)

    assert ran.returncode == 1
    assert ("count 3" in ran.stdout) is printed, ran.stdout
    assert f"the path {path} is relative" in ran.stderr, ran.stderr
    assert f"the directory '{gone}', from which the job was submitted, does not exist" in ran.stderr
    assert not printed or 'File "write.py", line 5' in ran.stderr, ran.stderr


SHIPPED = """
import logging, os, subprocess
from pyspark.sql import SparkSession, functions as F
import shipped

spark = SparkSession.builder.getOrCreate()
print("tax", spark.range(3).select(F.udf(shipped.taxed, "long")("id").alias("x")).agg(F.sum("x")).first()[0])
logging.warning("only a warning")
subprocess.run("echo from a child; echo oops of a child >&2", shell=True)
print("rate", shipped.rate(), "level", os.environ["LEVEL"], "token", len(os.environ["TOKEN"]))
"""


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
def test_a_program_has_its_folders_its_variables_and_leaves_nothing_on_the_disk_of_an_engine(
    standing: Processes, tmp_path: Path, engine: str
) -> None:
    secrets = standing.state_dir / "secrets"
    secrets.mkdir(mode=0o700, exist_ok=True)
    (secrets / "TOKEN").write_text("swordfish")
    (secrets / "TOKEN").chmod(0o600)
    (tmp_path / "lib" / "shipped").mkdir(parents=True)
    (tmp_path / "lib" / "shipped" / "rate.txt").write_text("19")
    (tmp_path / "lib" / "shipped" / "__init__.py").write_text(
        "from pathlib import Path\n"
        "def rate():\n    return int((Path(__file__).parent / 'rate.txt').read_text())\n"
        "def taxed(n):\n    return n * 10\n"
    )
    (tmp_path / "main.py").write_text(SHIPPED)
    ran = flintlock(
        "run", "-m", standing.url, "--engine", engine, "--py-files", "lib", "--env", "LEVEL=debug",
        "--env", "TOKEN=${secret:TOKEN}", "main.py", cwd=tmp_path,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "tax 30" in ran.stdout
    assert ran.stdout.splitlines() == ["tax 30", "from a child", "rate 19 level debug token 9"]
    assert "WARNING:root:only a warning" in ran.stderr
    assert "oops of a child" in ran.stderr
    copies = standing.state_dir / "run"
    until("the copies of its files are removed", lambda: True if not [*copies.rglob("lib.zip")] else None)


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
def test_a_program_finds_the_files_that_were_sent_with_it_beside_its_script(
    standing: Processes, tmp_path: Path, engine: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "settings.json").write_text('{"rate": 19}')
    (elsewhere / "codes.csv").write_text("de,at")
    (tmp_path / "reads.py").write_text(
        "import json\n"
        "from pathlib import Path\n"
        "here = Path(__file__).parent\n"
        "print(json.loads((here / 'settings.json').read_text()), (here / 'codes.csv').read_text())\n"
        "from pyspark import SparkFiles\n"
        "from pyspark.sql import SparkSession, functions as F\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "codes = F.udf(lambda n: Path(SparkFiles.get('codes.csv')).read_text(), 'string')\n"
        "print(Path(SparkFiles.get('codes.csv')).read_text(), spark.range(1).select(codes('id')).first()[0])\n"
    )
    files = f"{elsewhere}/settings.json,{elsewhere}/codes.csv"
    ran = flintlock("run", "-m", standing.url, "--engine", engine, "--files", files, "reads.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "{'rate': 19} de,at\nde,at de,at\n"


BESIDE = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
import beside

here = os.path.dirname(os.path.abspath(__file__))
assert here == sys.path[0] == os.path.dirname(sys.argv[0]) == beside.HERE, (here, sys.path, sys.argv, beside.HERE)
spark = SparkSession.builder.getOrCreate()
spark.read.text(os.path.join(here, "conf.yaml")).write.mode("overwrite").parquet(os.path.join(here, "out"))
Path(here, "done.txt").write_text(Path(here, "conf.yaml").read_text())
print("rows", spark.read.parquet((Path(here) / "out").as_uri()).count())
raise ValueError("after all")
"""


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
def test_a_program_reads_and_writes_beside_its_script(standing: Processes, tmp_path: Path, engine: str) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "etl.py").write_text(BESIDE)
    (project / "beside.py").write_text("import os\nHERE = os.path.dirname(os.path.abspath(__file__))\n")
    (project / "conf.yaml").write_text("rate: 19\n")
    ran = flintlock("run", "-m", standing.url, "--engine", engine, "../project/etl.py", cwd=elsewhere)

    assert ran.returncode == 1
    assert ran.stdout == "rows 1\n", ran.stdout + ran.stderr
    assert "ValueError: after all" in ran.stderr
    assert 'File "etl.py", line 13' in ran.stderr, ran.stderr
    assert (project / "done.txt").read_text() == "rate: 19\n"
    assert (project / "out" / "_SUCCESS").is_file()
    assert not (project / "__pycache__").exists()
    assert not [*elsewhere.iterdir()]


def run_elsewhere(standing: Processes, tmp_path: Path, engine: str, body: str) -> tuple[int, str]:
    """Run a script whose folder the cluster does not have."""
    (tmp_path / "etl.py").write_text(
        "import os\n"
        "from pyspark.sql import SparkSession\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"{body}\n"
        "print('the end')\n"
    )
    script = tmp_path / "gone" / "etl.py"
    (tmp_path / "job.yaml").write_text(
        f"name: elsewhere\nengine: {engine}\nsteps:\n  w: {{program: {{file: etl.py, path: {script}}}}}\n"
    )
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("open(os.path.join(here, 'out.txt'), 'w').write('lost')", "writes 'out.txt'"),
        ("os.chdir(here)\nopen('out.txt', 'w').write('lost')", "writes 'out.txt'"),
        ("spark.range(3).write.parquet(os.path.join(here, 'out'))", "writes 'out'"),
        ("os.system(f'echo lost > {here}/out.txt')", "has written 'out.txt'"),
    ],
)
def test_what_a_program_would_write_beside_its_copy_is_refused(
    standing: Processes, tmp_path: Path, engine: str, body: str, refused: str
) -> None:
    code, output = run_elsewhere(standing, tmp_path, engine, body)

    assert code == 1, output
    assert refused in output
    assert "into the directory of its task, where it would be lost" in output
    assert f"because '{tmp_path}/gone/etl.py', from which it was submitted, is not on this TaskManager's host" in output


@pytest.mark.parametrize("engine", ["shared", "dedicated"])
@pytest.mark.parametrize("reading", ["open(os.path.join(here, 'in.txt'))", "spark.read.text(here + '/in.txt').show()"])
def test_a_file_that_is_not_beside_the_copy_of_a_program_is_reported_with_the_remedy(
    standing: Processes, tmp_path: Path, engine: str, reading: str
) -> None:
    code, output = run_elsewhere(standing, tmp_path, engine, reading)

    assert code == 1, output
    assert "'in.txt' is not beside the script where that runs: a copy in the directory of its task" in output
    assert "Send the files that it reads along (--files)" in output
    assert 'File "etl.py", line 5' in output


STATIC = """
from pyspark.sql import SparkSession

key = ".".join(["spark", "sql", "warehouse", "dir"])
print("beginning")
spark = SparkSession.builder.config(key, "/nowhere/warehouse").getOrCreate()
print("warehouse", spark.conf.get("spark.sql.warehouse.dir"))
"""


def test_a_program_that_sets_what_is_fixed_when_spark_starts_begins_again_on_a_driver_of_its_own(
    standing: Processes, tmp_path: Path
) -> None:
    (tmp_path / "static.py").write_text(STATIC)
    ran = flintlock("run", "-m", standing.url, "static.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    output = ran.stdout + ran.stderr
    assert "spark.sql.warehouse.dir=/nowhere/warehouse, which is fixed when Spark starts, needs" in output
    assert "begins again on a dedicated engine" in output
    assert ran.stdout.count("beginning") == 2
    assert "warehouse file:/nowhere/warehouse" in ran.stdout


def test_no_relative_path_reaches_the_directories_of_an_engine(standing: Processes, tmp_path: Path) -> None:
    """A path that is not recognised in the plan is refused by the engine itself."""
    (tmp_path / "odd.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "name = 'org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat'\n"
        "spark.range(10).write.mode('overwrite').format(name).save('local')\n"
    )
    ran = flintlock("run", "-m", standing.url, "odd.py", cwd=tmp_path)

    assert ran.returncode == 1
    assert "A relative path has no directory in an engine" in ran.stderr, ran.stderr


HELPER = """
def driver_of(spark):
    return getattr(spark, "spark" + "Context")
"""
ASKS = """
from pyspark.sql import SparkSession
import asks_helper

spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g").getOrCreate()
{before}
numbers = asks_helper.driver_of(spark).parallelize(range(10))
print("sum", numbers.sum(), "directory", open("here.txt").read())
"""


def run_asking(standing: Processes, tmp_path: Path, before: str = "") -> tuple[int, str]:
    (tmp_path / "here.txt").write_text("seen")
    (tmp_path / "asks_helper.py").write_text(HELPER)
    (tmp_path / "asks.py").write_text(ASKS.format(before=before))
    ran = flintlock("run", "-m", standing.url, "--py-files", "asks_helper.py", "asks.py", cwd=tmp_path)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_program_that_asks_for_a_driver_begins_again_on_a_dedicated_engine(
    standing: Processes, tmp_path: Path
) -> None:
    code, output = run_asking(standing, tmp_path)

    assert code == 0, output
    assert "begins again on a dedicated engine" in output
    assert "sum 45 directory seen" in output
    assert (
        "spark.driver.memory is ignored, the driver is already running; set it with -D spark.driver.memory=1g" in output
    )


def test_a_program_that_has_changed_something_is_not_begun_again(standing: Processes, tmp_path: Path) -> None:
    code, output = run_asking(standing, tmp_path, before="open('made.txt', 'a').write('x')")
    assert (code, (tmp_path / "made.txt").read_text()) == (1, "x")
    assert "The program had written to 'made.txt' before it asked for a Spark driver" in output
    assert "run it with --engine dedicated" in output

    code, output = run_asking(standing, tmp_path, before="spark.range(3).count()")
    assert code == 1
    assert "The program had run a Spark action before it asked for a Spark driver" in output


SESSION_ONLY = """
spark.range(3).createOrReplaceTempView("numbers")
spark.udf.register("twice", lambda x: 2 * x, "long")
spark.sql("SELECT * FROM numbers")
"""


def test_what_ends_with_a_session_does_not_keep_a_program_from_being_begun_again(
    standing: Processes, tmp_path: Path
) -> None:
    code, output = run_asking(standing, tmp_path, before=SESSION_ONLY)

    assert code == 0, output
    assert "begins again on a dedicated engine" in output
    assert "sum 45 directory seen" in output


@pytest.mark.parametrize(
    "creating",
    [
        "spark.range(5).writeTo('numbers').using('parquet').create()",
        "spark.sql(open('create.sql').read())",
        "spark.sql(open('create.sql').read().replace('range(5)', '{rows}'), rows=spark.range(5))",
    ],
)
def test_a_table_that_is_refused_is_created_by_a_driver_of_its_own(
    standing: Processes, tmp_path: Path, creating: str
) -> None:
    """The refusal is no action of Spark's: nothing was done."""
    (tmp_path / "create.sql").write_text("CREATE TABLE numbers USING parquet AS SELECT id FROM range(5)")
    (tmp_path / "create.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"{creating}\n"
        "print('rows', spark.table('numbers').count())\n"
    )
    ran = flintlock("run", "-m", standing.url, "create.py", cwd=tmp_path)

    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output
    assert "the table 'numbers' would be lost with its Spark engine" in output
    assert "begins again on a dedicated engine" in output
    assert "rows 5" in output


def test_tables_without_a_catalog_are_refused_on_the_shared_engine(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(
        "name: table\nsteps:\n"
        "  numbers: {sql: SELECT id FROM range(5)}\n"
        f"  files: {{sink: {{format: parquet, path: {tmp_path}/files}}, inputs: [numbers]}}\n"
        "  out: {sink: {table: numbers, mode: overwrite}, inputs: [numbers]}\n"
    )
    ran = flintlock("run", "-m", standing.url, "table.yaml", cwd=tmp_path)
    assert ran.returncode == 1
    assert "the table 'numbers' would be lost with its Spark engine" in ran.stderr, ran.stderr
    assert not (tmp_path / "files").exists()

    (tmp_path / "table.py").write_text(
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.getOrCreate().range(5).write.saveAsTable('numbers')\n"
    )
    ran = flintlock("run", "-m", standing.url, "--engine", "shared", "table.py", cwd=tmp_path)
    assert ran.returncode == 1
    assert "spark.sql.catalog.NAME" in ran.stderr


def test_a_module_runs_as_python_m_runs_it_with_its_package_and_its_data(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "shop" / "jobs").mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "jobs" / "__init__.py").write_text("")
    (tmp_path / "shop" / "rates.txt").write_text("7")
    (tmp_path / "shop" / "words.py").write_text("def times(rate):\n    return lambda x: x * rate\n")
    (tmp_path / "shop" / "jobs" / "daily.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from pyspark.sql import SparkSession, functions as F\n"
        "from ..words import times\n"
        "def main():\n"
        "    rate = int((Path(__file__).parents[1] / 'rates.txt').read_text())\n"
        "    spark = SparkSession.builder.getOrCreate()\n"
        "    rows = spark.range(3).select(F.udf(times(rate), 'long')('id').alias('x'))\n"
        "    print(__name__, __package__, sys.argv[1:], rows.agg(F.sum('x')).first()[0])\n"
        "    raise ValueError('after all')\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    ran = flintlock("run", "-m", standing.url, "--module", "shop.jobs.daily", "--day", "1", cwd=tmp_path)

    assert ran.returncode == 1
    assert "__main__ shop.jobs ['--day', '1'] 21" in ran.stdout, ran.stdout + ran.stderr
    assert 'File "shop/jobs/daily.py", line 10' in ran.stderr, ran.stderr


LINEAGE = """
from pyspark import SparkContext

context = SparkContext()
rows = context._jsc.parallelize([1, 2, 3], 2)
for _ in range(500):
    rows = rows.coalesce(2)
print("rows", rows.count())
"""


def test_a_long_lineage_fits_on_the_stacks_of_a_driver(standing: Processes, tmp_path: Path) -> None:
    """Spark serialises an RDD with all that it is computed from by recursion: ALS has hundreds of them."""
    (tmp_path / "lineage.py").write_text(LINEAGE)
    ran = flintlock("run", "-m", standing.url, "-p", "1", "lineage.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rows 3" in ran.stdout

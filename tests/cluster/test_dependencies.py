"""Dependencies that a job brings itself, on a real cluster. Nothing is downloaded."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

READS_A_RESOURCE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
loader = spark.sparkContext._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
print("on the class path:", loader.getResource("flintlock-sample.txt") is not None, spark.range(3).count())
"""


def test_a_jar_is_sent_with_a_job_and_is_on_the_class_path_of_its_own_driver(
    standing: Processes, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "own.jar", "w") as jar:
        jar.writestr("flintlock-sample.txt", "a resource")
    (tmp_path / "script.py").write_text(READS_A_RESOURCE)
    (tmp_path / "job.yaml").write_text("name: jar\njars: [own.jar]\nsteps:\n  script: {program: {file: script.py}}\n")
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "jars need a Spark driver of its own: the job runs on a dedicated engine" in ran.stderr
    assert "on the class path: True 3" in ran.stdout


def test_a_jar_of_the_settings_that_is_not_there_fails_the_job_by_its_name(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('never')\n")
    missing = tmp_path / "none.jar"
    ran = flintlock("run", "-m", standing.url, "-D", f"spark.jars={missing}", "script.py", cwd=tmp_path)

    assert ran.returncode == 1
    assert f"spark.jars names '{missing}', which is not a file on this machine" in ran.stderr
    assert "never" not in ran.stdout

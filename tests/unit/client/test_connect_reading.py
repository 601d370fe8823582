"""UDFs at the top of a job file, and of the modules that it imports, are read without a session.

In an interpreter of its own each: what PySpark has loaded, and for which kind of session, stays for good.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

UDF = """
from pyspark.sql import functions as F

@F.udf("struct<a: int, b: string>")
def parts(text):
    return (len(text), text)
"""
GRAPH = """
import flintlock as fl
{import_}

job = fl.Job("late", py_files={py_files})

@job.step
def rows(spark):
    return spark.range(3).select(parts("id"))

job.result("r", rows)
"""
READ = """
import os, sys
from flintlock.client.authoring.targets import read_target
print(read_target("graph.py:job").package().graph.name)
assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
assert not [finder for finder in sys.meta_path if "flintlock" in type(finder).__module__]
"""


@pytest.mark.parametrize(
    ("import_", "modules", "before"),
    [
        (UDF, [], ""),
        ("from cleaning import parts", ["cleaning.py"], ""),
        ("from cleaning_package.texts import parts", ["cleaning_package"], "import pyspark.sql.connect.udf"),
    ],
)
def test_types_that_are_given_as_text_are_parsed_later(
    tmp_path: Path, import_: str, modules: list[str], before: str
) -> None:
    (tmp_path / "cleaning.py").write_text(UDF)
    (tmp_path / "cleaning_package").mkdir()
    (tmp_path / "cleaning_package" / "__init__.py").write_text("")
    (tmp_path / "cleaning_package" / "texts.py").write_text(UDF)
    (tmp_path / "graph.py").write_text(GRAPH.format(import_=import_, py_files=modules))

    read = subprocess.run(
        [sys.executable, "-c", before + READ], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (read.stdout, read.returncode) == ("late\n", 0), read.stderr

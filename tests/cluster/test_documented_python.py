"""The Python of the pages on the Python API and on testing, run as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.processes import Processes
from tests.unit.docs.code_blocks import ROOT, code_blocks

from flintlock.spark.engine.java import find_java

API: Final = [block.text for block in code_blocks(ROOT / "docs" / "python.md", "python")]
STEP: Final = [block.text for block in code_blocks(ROOT / "docs" / "testing.md", "python")]
FIRST_JOB: Final = {block.title: block.text for block in code_blocks(ROOT / "docs" / "first-job.md", "python")}
#: The job that the page supposes.
JOB: Final = """
job = fl.Job("revenue", params={"day": "2026-01-31"})
orders = job.source(
    "orders",
    format="csv",
    path="orders.csv",
    schema="day STRING, price DOUBLE, quantity INT",
    options={"header": "true"},
)
total = job.sql(
    "total",
    "SELECT sum(price * quantity) AS total FROM orders WHERE day = :day HAVING count(*) > 0",
    inputs=[orders],
)
job.sink("out", total, format="parquet", path="out", mode="overwrite")
job.result("top", total)
"""


def python(*arguments: str, directory: Path, **variables: str) -> str:
    """Run a program in a directory, and return what it printed."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "XDG_CONFIG_HOME": str(directory / "none"), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_the_examples_of_the_api_run_on_a_cluster(standing: Processes, tmp_path: Path) -> None:
    import_, run, submit, *_ = API
    (tmp_path / "orders.csv").write_text("day,price,quantity\n2026-01-31,2.0,3\n2026-02-01,1.0,1\n")
    submit = submit.replace("http://127.0.0.1:8081", standing.url)
    script = f"{import_}{JOB}{run}assert run.result('top').pandas()['total'].tolist() == [6.0]\n"
    script += f"{submit}assert rows['total'].tolist() == [6.0]\n"
    (tmp_path / "api.py").write_text(script)

    python("api.py", directory=tmp_path, FLINTLOCK_STATE_DIR=str(standing.state_dir))


def test_the_examples_of_tests_are_tests_that_pass(tmp_path: Path) -> None:
    """With one cluster for all of them, which the first one starts; the test of a step has a session of its own."""
    import_, _, _, local, fixture = API
    plugins, _, with_fixture = fixture.partition("\n\n\n")
    (step,) = STEP
    (tmp_path / "conftest.py").write_text(plugins)
    (tmp_path / "test_local.py").write_text(import_ + local.replace("\n\n\n", f"\n\n{JOB}\n\n", 1))
    (tmp_path / "test_fixture.py").write_text(f"{import_}{JOB}\n\n{with_fixture}")
    (tmp_path / "revenue.py").write_text(FIRST_JOB["revenue.py"])
    (tmp_path / "test_step.py").write_text(step)

    home = find_java(os.environ).home
    passed = python("-m", "pytest", "-q", "-p", "no:cacheprovider", directory=tmp_path, JAVA_HOME=home)

    assert "3 passed" in passed

"""Every example runs on a standing cluster, as the README says, and does what its first lines promise."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import ROOT, Processes

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("target", ["revenue.py:job", "revenue.yaml"])
def test_the_million_row_pipeline(target: str, standing: Processes, tmp_path: Path) -> None:
    """Joins, a blocking exchange, partitioned files and a result, in Python and with SQL only."""
    ran = flintlock("run", "-m", standing.url, EXAMPLES / target, "--param", f"out={tmp_path}/out", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert "2026-01-25" in ran.stdout
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert pyarrow.dataset.dataset(tmp_path / "out", partitioning="hive").count_rows() == 365 * 5  # days and countries


def test_a_python_udf_step(standing: Processes, tmp_path: Path) -> None:
    """User code runs in Spark's Python workers."""
    ran = flintlock("run", "-m", standing.url, f"{EXAMPLES}/udf_step.py:job", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr


def test_an_unmodified_script(standing: Processes, tmp_path: Path) -> None:
    """What a program prints is its output."""
    ran = flintlock("run", "-m", standing.url, EXAMPLES / "plain_script.py", "10", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["even=False: 25", "even=True: 20"]


def test_a_classic_script_is_given_a_driver_of_its_own(standing: Processes, tmp_path: Path) -> None:
    """RDDs and sparkContext need a driver of the script's own."""
    ran = flintlock("run", "-m", standing.url, EXAMPLES / "rdd_classic.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_a_job_that_fails_in_user_code(standing: Processes, tmp_path: Path) -> None:
    """The error names the step and the user's own line, and the exit code is 1."""
    ran = flintlock("run", "-m", standing.url, f"{EXAMPLES}/fails_in_user_code.py:job", cwd=tmp_path)

    assert ran.returncode == 1
    assert "fails_in_user_code.py" in ran.stderr
    assert "FAILED" in ran.stderr


def test_make_demos_job_on_an_embedded_cluster(tmp_path: Path) -> None:
    """Without a cluster, `flintlock run` starts one for the time of the job, and nothing of it stays."""
    ran = flintlock("run", "--local", f"{EXAMPLES}/revenue.py:job", cwd=tmp_path, timeout_s=300)

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out" / "revenue" / "_SUCCESS").exists()

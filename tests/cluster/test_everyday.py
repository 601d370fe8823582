"""What people do all day: queries at the command line, jobs side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

import flintlock as fl
from flintlock.model.states import JobStatus


def test_queries_are_run_from_the_command_line(standing: Processes, tmp_path: Path) -> None:
    """A query, statements of a file that are commands too, and rows in a file."""
    at = ("-m", standing.url)
    rows = flintlock(
        "sql", "SELECT id, id * :by AS y FROM range(3)", "--param", "by=2", "--format", "jsonl", *at, cwd=tmp_path
    )
    assert rows.returncode == 0, rows.stderr
    assert [json.loads(line) for line in rows.stdout.splitlines()] == [{"id": n, "y": 2 * n} for n in range(3)]

    (tmp_path / "several.sql").write_text("SHOW DATABASES; -- a command;\nVALUES (';', 1);\n")
    several = flintlock("sql", "-f", "several.sql", "--format", "csv", *at, cwd=tmp_path)
    assert several.stdout.splitlines() == ["namespace", "default", "col1,col2", ";,1"], several.stderr

    written = flintlock("sql", "SELECT date'2026-01-31' AS day", "-o", "days.parquet", *at, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    table = cast("Any", parquet).read_table(tmp_path / "days.parquet")
    assert [str(value) for value in table.column("day").to_pylist()] == ["2026-01-31"]

    wrong = flintlock("sql", "SELECT nothing", *at, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "UNRESOLVED_COLUMN" in wrong.stderr
    found = flintlock("result", "latest", "--format", "csv", *at, cwd=tmp_path)
    assert found.returncode == 2  # the latest job has failed, and has no result


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_of_two_jobs_that_require_an_empty_path_one_writes_to_it(
    standing: Processes, tmp_path: Path, mode: str
) -> None:
    """The second job begins and ends while the first one has not written yet."""

    def numbers(spark: Any, params: dict[str, str]) -> DataFrame:
        from threading import Event

        Path(params["marks"], "running").touch()
        while not Path(params["marks"], "continue").exists():
            Event().wait(0.02)
        return spark.range(100, numPartitions=2)

    with fl.connect(standing.url) as client:

        def submit(name: str) -> fl.JobHandle:
            job = fl.Job(name, parallelism=1, params={"marks": str(tmp_path)})
            rows = job.step(name="rows")(numbers)
            job.sink("out", rows, format="parquet", path=str(tmp_path / "out"), mode=mode)
            return client.submit(job)

        first = submit("first")
        until("the first job", lambda: (tmp_path / "running").exists() or first.ended_within(0.1), 240.0)
        second = submit("second")
        until("the end of the second job", lambda: second.ended_within(10.0), 240.0)
        (tmp_path / "continue").touch()
        until("the end of the first job", lambda: first.ended_within(10.0), 240.0)
        assert first.status is JobStatus.FINISHED
        assert second.status is (JobStatus.FAILED if mode == "errorifexists" else JobStatus.FINISHED)
        said = f"{second.attempts().failure}" + "".join(part.text for part in second.logs())
    assert f"job {first.id} writes to" in said
    assert cast("Any", parquet).read_table(tmp_path / "out").num_rows == 100


def test_an_ended_job_is_run_again_with_other_parameters(standing: Processes, tmp_path: Path) -> None:
    """Its function was sent as a file, which the cluster still has; its paths are filled in again."""
    job = fl.Job("daily", parallelism=1, params={"day": "monday", "factor": 2})

    @job.step(name="rows")
    def rows(spark: Any, params: dict[str, Any]) -> DataFrame:
        return spark.range(3).selectExpr(f"id * {params['factor']} AS value")

    job.sink("out", rows, format="parquet", path=f"{tmp_path}/${{day}}")
    with fl.connect(standing.url) as client:
        first = client.submit(job).wait(240)
        again = first.rerun(params={"day": "tuesday", "factor": "10"}).wait(240)
        assert again.attempts().rerun_of == first.id
    followed = flintlock("rerun", again.id, "--param", "day=sunday", "-m", standing.url, cwd=tmp_path)
    assert followed.returncode == 0, followed.stderr
    assert "FINISHED" in followed.stderr
    written = {
        day: cast("Any", parquet).read_table(tmp_path / day).column("value").to_pylist()
        for day in ("monday", "tuesday", "sunday")
    }
    assert written == {"monday": [0, 2, 4], "tuesday": [0, 10, 20], "sunday": [0, 10, 20]}
    refused = flintlock("rerun", first.id, "--param", "dya=x", "-m", standing.url, cwd=tmp_path)
    assert refused.returncode == 2
    assert "did you mean 'day'?" in refused.stderr, refused.stderr


def test_a_failed_job_is_run_again_from_where_it_failed(standing: Processes, tmp_path: Path) -> None:
    """What had finished is not run again, unless its rows are gone; what was published is not published twice."""

    def rows(spark: Any, params: dict[str, str]) -> DataFrame:
        with Path(params["here"], "runs").open("a") as runs:
            runs.write("rows\n")
        return spark.range(10, numPartitions=2)

    def checked(rows: Any, params: dict[str, str]) -> DataFrame:
        from threading import Event

        published = Path(params["here"], "out", "_SUCCESS")
        while not published.exists():
            Event().wait(0.02)
        if not Path(params["here"], "repaired").exists():
            raise ValueError("not yet")
        return rows.selectExpr("sum(id) AS total")

    # Without it the first region would call all functions, also the one that waits for what is published later.
    separately = {"execution.analyze-first": "false"}
    job = fl.Job("continued", parallelism=1, params={"here": str(tmp_path)}, config=separately)
    first = job.step(name="rows", exchange="blocking")(rows)
    job.sink("out", first, format="parquet", path=str(tmp_path / "out"), mode="append")
    job.result("total", job.step(name="checked", inputs=first)(checked))
    with fl.connect(standing.url) as client:
        failed = client.submit(job)
        until("the failure", lambda: failed.ended_within(10.0), 240.0)
        assert failed.status is JobStatus.FAILED, failed.attempts()
        again = failed.rerun(from_failed=True)
        until("the second failure", lambda: again.ended_within(10.0), 240.0)
        assert again.status is JobStatus.FAILED
        (tmp_path / "repaired").touch()
        done = again.rerun(from_failed=True).wait(240)
        assert [row.total for row in done.result("total").rows()] == [45]
        assert (tmp_path / "runs").read_text() == "rows\n"
        for part in (standing.state_dir / "work" / failed.id).rglob("*.parquet"):
            part.unlink()
        repaired = again.rerun(from_failed=True).wait(240)
        assert [row.total for row in repaired.result("total").rows()] == [45]
        assert (tmp_path / "runs").read_text() == "rows\nrows\n", "its rows were gone"
    assert cast("Any", parquet).read_table(tmp_path / "out").num_rows == 10
    refused = flintlock("rerun", done.id, "--from-failed", "-m", standing.url, cwd=tmp_path)
    assert refused.returncode == 2
    assert "only a job that has FAILED" in refused.stderr, refused.stderr


def test_sparks_ui_and_the_logs_of_a_taskmanager_are_reached_through_the_jobmanager(
    standing: Processes, tmp_path: Path
) -> None:
    """With a link that its user can open in a browser, which has no token."""
    with fl.connect(standing.url) as client:
        client.sql("SELECT count(*) AS n FROM range(1000)")
        (entry,) = client.task_managers()
        link = client.spark_ui_link(entry.id)
    with httpx.Client(base_url=standing.url, follow_redirects=True) as browser:
        page = browser.get(link)
        assert page.status_code == 200, page.text
        assert "Spark Jobs" in page.text
        assert "Completed Jobs" in page.text
        address = str(page.url).partition("?")[0]
        assert address.startswith(standing.url)
        stages = browser.get(f"{address.removesuffix('/').removesuffix('/jobs')}/stages/")
        assert stages.status_code == 200
        assert "Completed Stages" in stages.text
    log = flintlock("logs", "--taskmanager", entry.id, "--engine", "-m", standing.url, cwd=tmp_path)
    assert log.returncode == 0, log.stderr


USERS_TESTS = """
from datetime import date
import pytest
import flintlock as fl

DAYS = (date(2026, 1, 31), date(2026, 2, 1))
ROWS = [{"day": DAYS[0], "price": 3}, {"day": DAYS[1], "price": 4}]
job = fl.Job("tested", params={"factor": 2})
orders = job.source("orders", format="parquet", path="/nowhere/orders")

@job.step(inputs=[orders])
def priced(orders, params):
    return orders.selectExpr("day", f"price * {params['factor']} AS total")

job.sink("out", priced, format="parquet", path="out", partition_by=["day"])

def test_rows(flintlock_local):
    run = flintlock_local.run(job, inputs={"orders": ROWS}, params={"factor": 10})
    assert [(row.day, row.total) for row in run.result().rows()] == [(DAYS[0], 30), (DAYS[1], 40)]

def test_a_mistake_is_blamed_on_its_step(flintlock_local):
    with pytest.raises(fl.JobFailed) as failed:
        flintlock_local.run(job, inputs={"orders": [{"day": DAYS[0]}]})
    assert failed.value.failure.step == "priced"
    with pytest.raises(fl.Refused, match="no step 'oders' to give rows to; did you mean 'orders'"):
        flintlock_local.run(job, inputs={"oders": ROWS})

def test_wrong(flintlock_local):
    assert flintlock_local.client.sql("SELECT :n AS n", params={"n": 7}).table.rows == ((8,),)
"""


def test_users_test_their_jobs_with_the_fixture_of_pytest(tmp_path: Path) -> None:
    """As the documentation says, with a pytest of their own; all tests use one cluster, which is gone afterwards."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["flintlock.testing.pytest_plugin"]\n')
    (tmp_path / "test_job.py").write_text(USERS_TESTS)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip

    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "assert ((7,),) == ((8,),)" in done.stdout
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


RUN_LOCAL = """
import threading
import flintlock as fl
from flintlock.testing import run_local
job = fl.Job("small")
job.result("top", job.sql("doubled", "SELECT x * 2 AS y FROM rows", inputs=[job.source("rows", table="none")]))
def run(n): print(run_local(job, inputs={"rows": [{"x": n}]}).result().table.rows)
thread = threading.Thread(target=run, args=(1,))
thread.start(); thread.join()
run(2)
"""


def test_run_local_keeps_one_cluster_for_the_process_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also if a thread that has ended was the first to use it."""
    (tmp_path / "script.py").write_text(RUN_LOCAL)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)

    assert done.stdout.splitlines() == ["((2,),)", "((4,),)"], done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []

"""The shell blocks of the documentation, run in order on one cluster with files as the pages suppose them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.cluster.commands import flintlock, shell
from tests.cluster.documented_blocks import FOLLOWED, OWN_CLUSTERS, other_blocks
from tests.cluster.processes import Processes, until

from flintlock.client.connection.client import connect

FILES: Final = {
    "job.yaml": "version: 1\nname: job\nsteps:\n  n: {sql: SELECT 1 AS x}\n  r: {result: {}, inputs: [n]}\n",
    "revenue.py": "import flintlock as fl\njob = fl.Job('revenue')\n@job.step\ndef rows(spark):\n"
    "    import lib, more\n    return spark.range(lib.N + more.N)\njob.result('r', rows)\n",
    "lib.py": "N = 2\n",
    "helpers/more/__init__.py": "N = 3\n",
    "report.sql": "SELECT 1 AS x;\n",
    "waits.py": "import sys, threading\nprint('waiting', flush=True)\nthreading.Event().wait()\n",
}
#: What the pages name and a test has elsewhere.
DOCUMENTED_ADDRESS: Final = "http://127.0.0.1:8081"
DOCUMENTED_TOKEN: Final = "3f0c9d51b7a2e846"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "revenue").mkdir()
    table = cast("Any", pa).table({"day": ["2026-01-31"], "total": [3.5]})
    cast("Any", parquet).write_table(table, tmp_path / "revenue" / "part.parquet")
    return tmp_path


@pytest.fixture
def jobs(standing: Processes, directory: Path) -> Iterator[tuple[str, str]]:
    """A job that has finished and one that runs, by their ids."""
    at = ("-m", standing.url)
    done = flintlock("run", "-q", "--json", "job.yaml", *at, cwd=directory)
    started = flintlock("run", "-d", *at, "waits.py", cwd=directory)
    assert started.returncode == 0, started.stderr
    with connect(standing.url, state_dir=standing.state_dir) as client:
        finished, running = client.find("job"), client.job(started.stdout.strip())
        assert done.returncode == 0, done.stderr
        try:
            until("it runs", lambda: "waiting" in "".join(part.text for part in running.logs()) or None)
            yield finished.id, running.id
        finally:
            running.cancel()


def test_the_shell_blocks_of_the_documentation_run(standing: Processes, directory: Path, jobs: tuple[str, str]) -> None:
    finished, running = jobs

    def run(script: str) -> str:
        prompted = "SELECT 1 AS x;\n"  # at the prompt of `flintlock sql`
        ran = shell(script, cwd=directory, state_dir=standing.state_dir, given=prompted, BROWSER="true")
        assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    run("flintlock token create --role viewer --name other > other.token")
    (other_token,) = [line.split()[0] for line in run("flintlock token list").splitlines() if "other" in line]
    count = 0
    for (page, first), text in other_blocks():
        if (page, first) not in FOLLOWED:
            continue
        count += 1
        script = text.replace(DOCUMENTED_ADDRESS, standing.url).replace("/data/revenue", f"{directory}/revenue")
        script = script.replace("/etc/flintlock", str(directory)).replace("curl -H", "curl -sS --fail-with-body -H")
        script = script.replace(DOCUMENTED_TOKEN, other_token)
        # A job that runs has threads; the output of one that has ended can be followed to its end.
        lines = [line.replace("JOB", running if "threads" in line else finished) for line in script.splitlines()]
        run("\n".join(lines))
    assert count == len(FOLLOWED)
    assert len((directory / "secret").read_text()) == 64
    assert (directory / "report.csv").read_text() == "x\n1\n"


def test_the_shell_blocks_that_start_a_cluster_of_their_own_run(directory: Path) -> None:
    ports = {"FLINTLOCK_REST_PORT": "0", "FLINTLOCK_JOBMANAGER_RPC_PORT": "0"}  # the documented ones may be taken
    (directory / "revenue.py").write_text(
        FILES["revenue.py"].replace("lib.N + more.N", "5").replace("lib, more", "sys")
    )
    count = 0
    for place, text in other_blocks():
        if place in OWN_CLUSTERS:
            count += 1
            own = directory / f"cluster-{count}"
            script = text.replace("$(mktemp -d)", str(own))
            try:
                ran = shell(script, cwd=directory, state_dir=own, timeout_s=300, **ports)
            finally:
                shell("flintlock cluster stop", cwd=directory, state_dir=own)
            assert ran.returncode == 0, f"{script}\n{ran.stdout}{ran.stderr}"
            assert "stopped" in ran.stdout, "the block does not stop its cluster"
    assert count == len(OWN_CLUSTERS)

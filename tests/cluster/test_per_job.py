"""`flintlock run -t per-job` and `-t application`: clusters that end with their job: real processes, real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import until

from flintlock.client.clusters.discovery import job_cluster
from flintlock.client.clusters.local_cluster import stop_cluster
from flintlock.config.configuration import Configuration
from flintlock.host.cluster_spec import read_cluster_spec
from flintlock.host.files.job_directory import JobDirectory
from flintlock.host.processes.pid_files import cluster_processes, job_managers, read_exit
from flintlock.model.errors import Conflict

#: Says that it has begun, and waits for the test. Its rows are what it printed.
PROGRAM = """\
import time
from pathlib import Path
from pyspark.sql import SparkSession

with Path("begun").open("a") as file:
    file.write("once\\n")
while not Path("go").exists():
    time.sleep(0.1)
print("rows:", SparkSession.builder.getOrCreate().range(1000).count())
"""
SMALL = "name: small\nsteps: {one: {sql: SELECT 1 AS x}, rows: {result: {}, inputs: [one]}}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory to work in; the clusters that were started there are ended with the test."""
    yield tmp_path
    for directory in (*directories(tmp_path), *tmp_path.glob("state/flintlock/*/application/*")):
        stop_cluster(directory)


def directories(place: Path) -> list[Path]:
    """Return the state directories of the per-job clusters."""
    return sorted(place.glob("state/flintlock/*/per-job/*"))


def end_of(directory: Path) -> dict[str, Any]:
    """Wait until all processes of a cluster have ended; return the record of the job's end."""
    until("the end of all its processes", lambda: not cluster_processes(directory) or None, 120)
    assert read_cluster_spec(directory) is None
    return json.loads(JobDirectory(directory).end_file.read_text())


def test_a_job_outlives_its_killed_jobmanager_on_a_cluster_of_its_own_which_ends_with_it(place: Path) -> None:
    (place / "program.py").write_text(PROGRAM)
    environ = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CONFIG_HOME": str(place / "none")}
    running = subprocess.Popen(
        [sys.executable, "-m", "flintlock", "run", "-t", "per-job", "program.py"],
        cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until("the program runs", lambda: (place / "begun").exists() or running.poll() is not None, 180)
        (directory,) = directories(place)
        first = job_managers(directory)[0]
        psutil.Process(first.pid).kill()

        leads = until(
            "the supervisor starts it again",
            lambda: next((file for file in job_managers(directory) if file.pid != first.pid and file.epoch), None),
        )
        assert leads.epoch > first.epoch
        with job_cluster(Configuration(), directory).client() as client:
            from flintlock.client.authoring.targets import read_target

            (place / "other.yaml").write_text(SMALL)
            with pytest.raises(Conflict, match=f"this cluster runs job {directory.name} and ends with it"):
                client.submit(read_target(str(place / "other.yaml"), ()))
            assert [job.jid for job in client.jobs()] == [directory.name]

        (place / "go").touch()
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0, err
    assert "rows: 1000" in out
    end = end_of(directory)
    assert (end["application-status"], end["job"]["status"]) == ("SUCCEEDED", "FINISHED")
    assert (place / "begun").read_text() == "once\n", "nothing runs twice"
    ended = read_exit(directory, "jobmanager")
    assert ended is not None
    assert ended.code == 0


def test_a_detached_job_ends_its_cluster_with_its_status_and_leaves_no_process(place: Path) -> None:
    """No TaskManager has registered when these jobs end: those that were being started end all the same."""
    (place / "job.yaml").write_text(SMALL)
    canceled = flintlock("run", "-t", "per-job", "-d", "job.yaml", cwd=place)
    assert canceled.returncode == 0, canceled.stderr
    directory = next(path for path in directories(place) if path.name == canceled.stdout.strip())
    cancel = flintlock("cancel", directory.name, "--state-dir", directory, cwd=place)
    assert cancel.returncode == 0, cancel.stderr
    assert end_of(directory)["application-status"] == "CANCELED"
    status = flintlock("status", directory.name, "--state-dir", directory, cwd=place)
    assert status.returncode == 3
    assert f"has ended with its job, CANCELED: {directory / 'job' / 'end.json'}" in status.stderr

    failed = flintlock("run", "-t", "per-job", "-d", "-D", "job.timeout=1 s", "job.yaml", cwd=place)
    assert failed.returncode == 0, failed.stderr
    directory = next(path for path in directories(place) if path.name == failed.stdout.strip())
    end = end_of(directory)
    assert (end["application-status"], end["job"]["status"]) == ("FAILED", "FAILED")
    assert "job.timeout" in end["job"]["failure"]["message"]
    ended = read_exit(directory, "jobmanager")
    assert ended is None or ended.code == 6


APPLICATION = """\
import json, os, signal, sys
from pathlib import Path
import flintlock as fl

def numbered(n):
    job = fl.Job(f"numbered-{n}")
    job.result("rows", job.sql("one", f"SELECT {n} AS n, rand() AS luck"))
    return job

runs = Path("runs.jsonl")
again = runs.exists()
first = fl.run(numbered(1), quiet=True)
with fl.connect() as client:
    others = [client.submit(numbered(n)) for n in (2, 3)]
    rows = [first.result().table.rows, *(other.wait().result("rows").table.rows for other in others)]
    with runs.open("a") as file:
        file.write(json.dumps([first.id, *(other.id for other in others), rows]) + "\\n")
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    left = client.submit(numbered(4))
print("arguments", sys.argv[1:], "left", left.id)
"""


def test_a_program_that_is_killed_runs_again_on_its_cluster_and_finds_the_jobs_that_it_has_submitted(
    place: Path,
) -> None:
    (place / "program.py").write_text(APPLICATION)
    done = flintlock(
        "run", "-t", "application", "-D", "restart-strategy.type=fixed-delay", "program.py", "a", "b", cwd=place
    )
    assert done.returncode == 0, done.stderr
    assert "arguments ['a', 'b'] left " in done.stdout
    first, second = ((place / "runs.jsonl").read_text()).splitlines()
    assert first == second, "the same jobs, with the rows of their only run"

    (directory,) = place.glob("state/flintlock/*/application/*")
    end = end_of(directory)
    assert (end["application-status"], end["job"]["jobid"]) == ("SUCCEEDED", directory.name)
    assert sorted((job["name"], job["status"]) for job in end["jobs"]) == [
        (f"numbered-{number}", "FINISHED") for number in (1, 2, 3, 4)
    ]

"""`flintlock run -t application`, whatever happens to its processes and its user: real processes, real Spark."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.zookeeper.servers import Ensemble, running_ensemble

from flintlock.client.clusters.local_cluster import stop_cluster
from flintlock.host.files.job_directory import JobDirectory
from flintlock.host.processes.pid_files import cluster_processes, job_managers, read_exit
from flintlock.testing import rest_requests

#: Three jobs, one after another. Each says that it runs, and the second one waits for the test.
PROGRAM = """\
import os, time
from pathlib import Path
import flintlock as fl

here = Path.cwd()

def note(name):
    with (here / name).open("a") as file:
        file.write("once\\n")

def numbered(n):
    job = fl.Job(f"numbered-{n}")
    one = job.sql("one", f"SELECT {n} AS n")

    @job.step(inputs=[one])
    def waiting(one):
        with (here / f"job-{n}").open("a") as file:
            file.write("once\\n")
        while n == 2 and not (here / "go").exists():
            time.sleep(0.1)
        return one

    job.result("rows", waiting)
    return job

(here / "main-pid").write_text(str(os.getpid()))
note("main")
print("main says hello", flush=True)
for n in (1, 2, 3):
    rows = fl.run(numbered(n), quiet=True).result().table.rows
    print("job", n, rows, flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory to work in; the clusters that were started there are ended with the test."""
    (tmp_path / "program.py").write_text(PROGRAM)
    yield tmp_path
    for directory in tmp_path.glob("state/flintlock/*/application/*"):
        stop_cluster(directory)


def runs_of(place: Path) -> dict[str, int]:
    """Return how often main and each job have begun."""
    return {path.name: len(path.read_text().splitlines()) for path in place.glob("*") if path.name in NAMES}


NAMES = ("main", "job-1", "job-2", "job-3")


@contextmanager
def running(place: Path, *flags: str) -> Generator[subprocess.Popen[str]]:
    """Run the program attached; yield when its second job runs."""
    environ = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "XDG_CONFIG_HOME": str(place / "none")}
    process = subprocess.Popen(
        [sys.executable, "-m", "flintlock", "run", "-t", "application", *flags, "program.py"],
        cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until("the second job", lambda: (place / "job-2").exists() or process.poll() is not None, 240)
        yield process
    finally:
        process.kill()
        process.communicate()


def directory_of(place: Path) -> Path:
    (directory,) = place.glob("state/flintlock/*/application/*")
    return directory


def end_of(directory: Path) -> dict[str, Any]:
    """Wait until all processes of a cluster have ended; return the record of its end."""
    until("the end of all its processes", lambda: not cluster_processes(directory) or None, 120)
    return json.loads(JobDirectory(directory).end_file.read_text())


def stored_jobs(directory: Path) -> list[str]:
    """Return what the embedded store of a cluster has of jobs. The epoch of its leader stays."""
    file = directory / "store.db"
    if not file.exists():
        return []
    with closing(sqlite3.connect(file)) as store:
        tables = ("job_graphs", "job_results", "region_records", "ended_jobs", "idempotency_keys", "job_histories")
        return [table for table in tables if store.execute(f"SELECT 1 FROM {table}").fetchone()]


def kill_jobmanager(directory: Path) -> None:
    """Kill the JobManager; return when the supervisor's next one leads."""
    (first,) = job_managers(directory)
    psutil.Process(first.pid).kill()
    until("another leader", lambda: any(file.pid != first.pid and file.epoch for file in job_managers(directory)))


def assert_ended_well(place: Path, process: subprocess.Popen[str], *, mains: int = 1) -> None:
    """Let the second job go; everything ends, and no job has run twice."""
    (place / "go").touch()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "job 3" in out
    assert runs_of(place) == {"main": mains, "job-1": 1, "job-2": 1, "job-3": 1}
    directory = directory_of(place)
    end = end_of(directory)
    assert end["application-status"] == "SUCCEEDED"
    assert [(job["name"], job["status"]) for job in sorted(end["jobs"], key=lambda job: job["name"])] == [
        (f"numbered-{number}", "FINISHED") for number in (1, 2, 3)
    ]
    ended = read_exit(directory, "jobmanager")
    assert ended is not None
    assert ended.code == 0
    assert stored_jobs(directory) == [], "the HA data is removed"


def test_program_and_jobs_outlive_the_killed_jobmanager_of_an_application(place: Path) -> None:
    with running(place) as process:
        kill_jobmanager(directory_of(place))
        assert_ended_well(place, process)


def test_an_application_whose_jobmanager_and_program_are_killed_finds_its_jobs_again(place: Path) -> None:
    """Main runs again on the next leader: the first job answers at once, the second one is followed."""
    with running(place, "-D", "restart-strategy.type=fixed-delay") as process:
        directory = directory_of(place)
        psutil.Process(int((place / "main-pid").read_text())).kill()
        kill_jobmanager(directory)
        until("main again", lambda: runs_of(place)["main"] == 2 or None)
        assert_ended_well(place, process, mains=2)


def test_an_application_is_cancelled_with_its_jobs_and_its_log_is_read_meanwhile(place: Path) -> None:
    with running(place) as process:
        directory = directory_of(place)
        logs = flintlock("logs", directory.name, "--state-dir", directory, cwd=place)
        assert "main says hello" in logs.stdout
        (leader,) = job_managers(directory)
        answer = rest_requests.post(f"{leader.rest}/applications/{directory.name}/cancel")
        assert answer.status_code == 202
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "CANCELED" in err
    end = end_of(directory)
    assert end["application-status"] == "CANCELED"
    assert sorted((job["name"], job["status"]) for job in end["jobs"]) == [
        ("numbered-1", "FINISHED"),
        ("numbered-2", "CANCELED"),
    ]
    ended = read_exit(directory, "jobmanager")
    assert ended is not None
    assert ended.code == 0


def test_the_failure_of_a_detached_application_has_the_line_of_the_program(place: Path) -> None:
    (place / "program.py").write_text("print('begins')\nnumber = 0\nprint(1 / number)\n")
    started = flintlock("run", "-t", "application", "-d", "program.py", cwd=place)
    assert started.returncode == 0, started.stderr
    directory = directory_of(place)
    assert started.stdout.strip() == directory.name
    end = end_of(directory)
    assert end["application-status"] == "FAILED"
    failure = end["job"]["failure"]
    assert "ZeroDivisionError" in f"{failure}"
    assert "program.py" in f"{failure}"
    assert "print(1 / number)" in f"{failure}"
    ended = read_exit(directory, "jobmanager")
    assert ended is not None
    assert ended.code == 6


def test_an_application_in_zookeeper_outlives_its_jobmanager_and_leaves_nothing_there(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = place / "storage"
    with running_ensemble(tmp_path_factory.mktemp("zookeeper")) as servers:
        settings = (
            "high-availability.type=zookeeper",
            f"high-availability.zookeeper.quorum={servers.quorum}",
            f"high-availability.storageDir={storage}",
        )
        with running(place, *(part for setting in settings for part in ("-D", setting))) as process:
            directory = directory_of(place)
            assert _znodes(servers, directory.name, "job-graphs"), "the cluster has the id of its program there"
            kill_jobmanager(directory)
            assert_ended_well(place, process)
        left = {kind: _znodes(servers, directory.name, kind) for kind in ("job-graphs", "job-results", "progress")}
        assert left == {"job-graphs": [], "job-results": [], "progress": []}
        assert len([path for path in storage.rglob("*") if path.is_file()]) <= 1, "the marker of the directory"


def _znodes(servers: Ensemble, cluster_id: str, kind: str) -> list[str]:
    """Return the jobs of which a cluster has records of a kind."""
    from kazoo.client import KazooClient

    client: Any = KazooClient(hosts=servers.quorum)
    client.start()
    try:
        root = f"/flintlock/{cluster_id}/{kind}"
        return [name for shard in client.get_children(root) for name in client.get_children(f"{root}/{shard}")]
    finally:
        client.stop()
        client.close()

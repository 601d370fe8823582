"""Everything that a cluster writes, shows and has on its command lines: no secret is in it, and its log is uniform.

One cluster is started by the command line and runs jobs that succeed and jobs that fail with their secrets in hand.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest
from tests.cluster.commands import flintlock

from flintlock.host.processes.pid_files import cluster_processes
from flintlock.model.log_events import EVENT_LOOP_BLOCKED, EVENTS
from flintlock.testing import rest_requests

PASSWORD: Final = "pa55w0rd-0f-the-database"
STORE_KEY: Final = "k3y-0f-the-object-store"
PROGRAM: Final = """\
import os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
remote = os.environ["SPARK_REMOTE"]
with open(sys.argv[1], "w") as file:
    file.write(spark.session_id + " " + remote)
assert spark.range(10).count() == 10
raise ValueError(f"the program shows what it has: {spark.session_id} {remote} {sys.argv[2]}")
"""
JDBC: Final = """\
version: 1
name: database
steps:
  rows:
    source:
      format: jdbc
      options: {url: "jdbc:nosuch://host/db", dbtable: t, user: me, password: "${secret:PASSWORD}"}
  out: {result: {}, inputs: [rows]}
"""
FINE: Final = "version: 1\nname: fine\nsteps:\n  one: {sql: SELECT 1 AS x}\n  r: {result: {}, inputs: [one]}\n"


class Written:
    """A cluster after its jobs: where its files are, what its secrets are, and what else was shown."""

    def __init__(self, place: Path) -> None:
        self.state_dir: Final = place / "c"
        self.secrets: Final[dict[str, str]] = {"password": PASSWORD, "key": STORE_KEY}
        self.shown: Final[dict[str, str]] = {}  # what commands and REST returned, by their names
        self.failed_jobs: Final[list[str]] = []


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    place = tmp_path_factory.mktemp("written")
    found = Written(place)
    for name, text in {"p.py": PROGRAM, "jdbc.yaml": JDBC, "fine.yaml": FINE}.items():
        (place / name).write_text(text)
    (found.state_dir / "secrets").mkdir(parents=True, mode=0o700)
    (found.state_dir / "secrets" / "PASSWORD").touch(mode=0o600)
    (found.state_dir / "secrets" / "PASSWORD").write_text(PASSWORD)
    there = ("--state-dir", str(found.state_dir))

    def run(*command: str, code: int = 0) -> str:
        done = flintlock(*command, cwd=place, timeout_s=300)
        assert done.returncode == code, done.stderr
        found.shown[" ".join(command)] = done.stdout + done.stderr
        return done.stdout

    try:
        run("cluster", "start", "--json", "--slots", "1", "-D", "rest.port=0", *there,
            "-D", f"spark.hadoop.fs.s3a.secret.key={STORE_KEY}")  # fmt: skip
        made = json.loads(
            flintlock("token", "create", "--role", "admin", "--name", "t", "--json", *there, cwd=place).stdout
        )
        found.secrets["access token"] = made["token"]
        run("run", "fine.yaml", *there)
        run("run", "--verbose", *there, "p.py", str(place / "secrets.txt"), "${secret:PASSWORD}", code=1)
        run("run", "--verbose", "jdbc.yaml", *there, code=1)
        session, remote = (place / "secrets.txt").read_text().split(" ", 1)
        found.secrets["session id"] = session
        found.secrets["engine token"] = remote.partition("token=")[2].partition(";")[0] or remote.rpartition("%20")[2]
        found.secrets["cluster secret"] = (found.state_dir / "cluster-secret").read_text().strip()
        _show(found, msgspec.json.decode((found.state_dir / "cluster.json").read_bytes())["rest"])
        yield found
    finally:
        flintlock("cluster", "stop", *there, cwd=place)


def _show(found: Written, url: str) -> None:
    """Request what REST has, and read the command lines of all processes."""

    def get(path: str) -> Any:
        answer = rest_requests.get(url + path, timeout=30.0)
        found.shown[path] = answer.text
        return answer

    for path in ("/jobmanager/config", "/jobmanager/environment", "/jobmanager/log", "/metrics", "/tokens"):
        get(path)
    for job in get("/jobs/overview").json()["jobs"]:
        for path in ("", "/config", "/exceptions", "/plan", "/logs", "/attempts"):
            get(f"/jobs/{job['jid']}{path}")
        if job["state"] == "FAILED":
            found.failed_jobs.append(job["jid"])
    (manager,) = get("/taskmanagers").json()["taskmanagers"]
    assert get(f"/taskmanagers/{manager['id']}/engine-log").status_code == 200
    for file in get(f"/taskmanagers/{manager['id']}/logs").json()["logs"]:
        get(f"/taskmanagers/{manager['id']}/logs/{file['name']}")
    for name, process in cluster_processes(found.state_dir).items():
        for part in (process, *process.children(recursive=True)):
            try:
                found.shown[f"command line of {name} {part.pid}"] = " ".join(part.cmdline())
            except psutil.Error:
                continue


def test_no_secret_is_anywhere_but_in_a_file_of_its_owner(written: Written) -> None:
    """The file that holds it, and for a setting of `cluster start` the files from which processes read it."""
    assert all(len(secret) >= 16 for secret in written.secrets.values()), written.secrets
    own = {
        ("password", "secrets/PASSWORD"),
        ("cluster secret", "cluster-secret"),
        ("key", "cluster-spec.json"),
        ("key", "run/taskmanager-0/engine/spark.properties"),
    }
    assert all(stat.S_IMODE((written.state_dir / path).stat().st_mode) == 0o600 for _, path in own)

    shown = {
        (name, where) for name, secret in written.secrets.items() for where, text in written.shown.items()
        if secret in text and "cluster start" not in where
    }  # fmt: skip
    files = {
        (name, str(path.relative_to(written.state_dir)))
        for path in written.state_dir.rglob("*")
        if path.is_file()
        for content in [path.read_bytes()]
        for name, secret in written.secrets.items()
        if secret.encode() in content
    }

    assert shown == set()
    assert files == own


def test_every_log_line_has_the_same_grammar_and_only_failed_jobs_need_attention(written: Written) -> None:
    lines: list[dict[str, Any]] = []
    known = {name for section in EVENTS.values() for name in section}
    for name in ("jobmanager", "taskmanager-0", "supervisor"):
        for text in (written.state_dir / "log" / f"{name}.log").read_text().splitlines():
            line = json.loads(text)
            assert list(line)[:4] == ["timestamp", "level", "process", "event"], text
            assert line["process"] == name
            assert line["event"] in known
            lines.append(line)

    # A busy machine lets event loops wait: that is about the machine.
    attention = [
        line for line in lines if line["level"] not in {"debug", "info"} and line["event"] != EVENT_LOOP_BLOCKED
    ]
    assert {(line["event"], line["job_id"]) for line in attention} == {
        ("job-failed", job_id) for job_id in written.failed_jobs
    }
    by_name = {line["name"]: line for line in attention}
    assert by_name["p"]["kind"] == "user code"
    assert by_name["p"]["line"].endswith("p.py:8")
    assert by_name["p"]["message"].startswith("ValueError: the program shows what it has")
    assert by_name["database"]["step"] in {"rows", "out"}

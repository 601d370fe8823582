"""`flintlock cluster start|status|stop` with real processes: what is missing is found, said and started again."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import until

from flintlock.host.processes.pid_files import job_managers

JOB = "version: 1\nname: small\nsteps:\n  one: {sql: SELECT 1 AS x}\n  r: {result: {}, inputs: [one]}\n"


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state directory whose processes are ended, whatever the test did."""
    (tmp_path / "job.yaml").write_text(JOB)
    yield tmp_path / "c"
    flintlock("cluster", "stop", "--state-dir", tmp_path / "c", cwd=tmp_path)


def status_of(state_dir: Path, code: int) -> dict[str, Any]:
    found = status_if(state_dir, code)
    assert found is not None
    return found


def status_if(state_dir: Path, code: int) -> dict[str, Any] | None:
    """Return what the command prints; None if it exits with another code."""
    completed = flintlock("cluster", "status", "--json", "--state-dir", state_dir, cwd=state_dir.parent)
    return json.loads(completed.stdout) if completed.returncode == code else None


def start(state_dir: Path, *flags: str) -> list[str]:
    """Start the cluster; return what was started."""
    completed = flintlock(
        "cluster", "start", "--json", "--state-dir", state_dir, *flags, cwd=state_dir.parent, timeout_s=300
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)["started"]


def kill(pid: int) -> None:
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    process.wait(30)


def test_start_starts_what_is_missing_and_run_never_starts_a_cluster_of_its_own(state_dir: Path) -> None:
    settings = ("-D", "rest.port=0", "-D", "taskmanager.numberOfTaskSlots=1", "-D", "cluster.supervise=false")
    assert start(state_dir, *settings) == ["jobmanager", "taskmanager-0"]
    first = status_of(state_dir, 0)["processes"]

    kill(first["taskmanager-0"])
    assert status_of(state_dir, 1)["missing"].keys() == {"taskmanager-0"}
    assert start(state_dir) == ["taskmanager-0"]
    second = status_of(state_dir, 0)["processes"]
    assert second["jobmanager"] == first["jobmanager"]
    assert start(state_dir) == []

    kill(second["jobmanager"])
    assert status_of(state_dir, 3)["missing"].keys() == {"jobmanager"}
    refused = flintlock("run", "-q", "job.yaml", "--state-dir", state_dir, cwd=state_dir.parent)
    assert refused.returncode == 3
    assert f"start it with `flintlock cluster start --state-dir {state_dir}`" in refused.stderr
    assert start(state_dir) == ["jobmanager"]

    third = status_of(state_dir, 0)
    assert third["processes"]["taskmanager-0"] == second["taskmanager-0"]  # with its warm engine
    assert third["overview"]["slots-total"] == 1  # the settings of the first start
    ran = flintlock("run", "-q", "job.yaml", "--state-dir", state_dir, cwd=state_dir.parent)
    assert ran.returncode == 0, ran.stderr

    assert start(state_dir, "-D", "cluster.supervise=true") == ["supervisor"]
    kill(third["processes"]["jobmanager"])
    until("another JobManager leads", lambda: [file.pid for file in job_managers(state_dir) if file.epoch] or None)
    healed = until("everything runs and is registered", lambda: status_if(state_dir, 0))
    assert healed["processes"].keys() == {"jobmanager", "taskmanager-0", "supervisor"}


def failed_start(state_dir: Path, *flags: str) -> list[str]:
    """Start a cluster that cannot start, with five minutes to do so; return what was printed, long before that.

    An idle machine needs a few seconds; the rest of the limit is for one that runs other tests, too.
    """
    completed = flintlock(
        "cluster", "start", "--state-dir", state_dir, "-D", "rest.port=0", *flags, cwd=state_dir.parent, timeout_s=45
    )
    assert completed.returncode == 1, completed.stderr
    assert not (state_dir / "cluster-spec.json").exists()
    return [line for line in completed.stderr.splitlines() if not line.startswith("starting ")]


def test_a_start_that_cannot_succeed_fails_within_seconds_with_the_cause_first(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cause, log = failed_start(state_dir, "-D", f"rest.port={port}")
    assert cause.startswith(f"error: jobmanager has ended: cannot listen on 127.0.0.1:{port}")
    assert log == f"(its log is {state_dir / 'log' / 'jobmanager.log'})"

    cause, *_, log = failed_start(state_dir, "-D", "taskmanager.engine.memory=10m")
    assert cause.startswith("error: taskmanager-0 cannot start its Spark engine: ")
    assert "java.lang.OutOfMemoryError" in cause
    assert log == f"(its log is {state_dir / 'log' / 'taskmanager-0.log'})"

    cause, *_, log = failed_start(state_dir, "-D", "spark.jars=/nope.jar")
    assert cause.startswith("error: taskmanager-0 cannot start its Spark engine: ")
    assert "spark.jars names '/nope.jar', which is not a file on this machine" in cause
    assert log == f"(its log is {state_dir / 'log' / 'taskmanager-0.log'})"

    monkeypatch.setenv("FLINTLOCK_JAVA_HOME", "/nonexistent")
    (cause,) = failed_start(state_dir)
    assert cause.startswith("error: no Spark engine can start: FLINTLOCK_JAVA_HOME is /nonexistent")

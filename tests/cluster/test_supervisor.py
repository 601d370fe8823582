"""The supervisor with real JobManagers; none of these tests needs Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
from tests.cluster.processes import until

from flintlock.client.clusters.cluster_processes import command_of, missing_processes
from flintlock.client.clusters.local_cluster import stop_cluster
from flintlock.host.cluster_spec import SUPERVISOR, ClusterSpec, read_given_up, write_cluster_spec
from flintlock.host.processes.pid_files import (
    Started,
    cluster_processes,
    job_managers,
    read_pid_file,
    running,
    start_recorded,
)

Supervise: TypeAlias = Callable[[], Started]
SETTINGS = {"rest.port": "0", "cluster.supervise.max-failures": "2"}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A state directory in which one JobManager and a supervisor are expected."""
    write_cluster_spec(tmp_path, ClusterSpec(jobmanagers=1, taskmanagers=0, supervise=True, settings=SETTINGS))
    return tmp_path


@pytest.fixture
def supervise(state_dir: Path) -> Iterator[Supervise]:
    """Starts a supervisor; all processes are ended with the test."""
    started: list[Started] = []

    def start() -> Started:
        started.append(start_recorded(state_dir, SUPERVISOR, command_of(state_dir, SUPERVISOR), os.environ))
        return started[-1]

    yield start
    stop_cluster(state_dir)
    for supervisor in started:
        supervisor.process.wait()


def jobmanager(state_dir: Path, *others: int) -> psutil.Process:
    """Wait for a JobManager that listens, and is none of the others."""

    def found() -> psutil.Process | None:
        return next((running(file) for file in job_managers(state_dir) if file.pid not in others), None)

    return until("a JobManager listens", found)


def test_a_jobmanager_that_is_killed_comes_back_and_one_that_is_stopped_does_not(
    state_dir: Path, supervise: Supervise
) -> None:
    supervisor = supervise()
    first = jobmanager(state_dir)
    first.kill()
    second = jobmanager(state_dir, first.pid)

    again = subprocess.run(  # a second supervisor changes nothing
        [sys.executable, "-m", *command_of(state_dir, SUPERVISOR)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert again.returncode == 4
    assert f"is in use by process {supervisor.process.pid}" in again.stderr

    second.terminate()
    assert supervisor.process.wait(60) == 0  # nothing is left to supervise
    assert [process.reason for process in missing_processes(state_dir) if process.name == "jobmanager"] == [
        "it was stopped"
    ]


def test_a_supervisor_that_dies_or_is_paused_takes_no_process_with_it(state_dir: Path, supervise: Supervise) -> None:
    dead = supervise()
    first = jobmanager(state_dir)
    dead.process.kill()
    dead.process.wait()
    assert [process.name for process in missing_processes(state_dir)] == [SUPERVISOR]

    successor = supervise()
    until("it supervises", lambda: running(read_pid_file(state_dir / "run" / "supervisor.json")))
    os.kill(successor.process.pid, signal.SIGSTOP)
    assert jobmanager(state_dir).pid == first.pid  # the successor supervises it, and started no second one
    first.kill()
    first.wait()
    os.kill(successor.process.pid, signal.SIGCONT)
    jobmanager(state_dir, first.pid)

    os.kill(successor.process.pid, signal.SIGSTOP)
    assert stop_cluster(state_dir).keys() == {"jobmanager", SUPERVISOR}
    successor.process.wait()
    assert cluster_processes(state_dir) == {}


def test_a_process_that_cannot_start_is_given_up_and_the_log_says_so(state_dir: Path, supervise: Supervise) -> None:
    (state_dir / "store.db").mkdir()
    supervise()

    until("the JobManager is given up", lambda: read_given_up(state_dir) or None)

    (missing,) = (process for process in missing_processes(state_dir) if process.name == "jobmanager")
    assert missing.reason.endswith("; the supervisor has given it up")
    log = state_dir / "log" / "supervisor.log"
    until(
        "the log says so",
        lambda: '"level":"critical","process":"supervisor","event":"process-given-up"' in log.read_text() or None,
    )
    assert log.read_text().count('"process-lost"') == 2

"""A JobManager that starts its own TaskManagers: real processes, real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from tests.cluster.processes import Processes, until

from flintlock.host.processes.pid_files import end, read_pid_file, running
from flintlock.testing import rest_requests

SETTINGS: Final = {
    "resourcemanager.max-taskmanagers": "1",
    "resourcemanager.taskmanager-timeout": "2 s",
    "resourcemanager.start-worker.retry-interval": "1 s",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.rpc.port": "1",  # of an independently started TaskManager: workers use free ports
    "taskmanager.registration.timeout": "20 s",
}


LONG: Final = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"


class ActiveCluster(Processes):
    """A JobManager without TaskManagers."""

    def start_active(self) -> None:
        """Start it with at most one worker. Its settings are in a file, as in production."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        file = self.state_dir / "flintlock.yaml"
        file.write_text("".join(f"{key}: {value}\n" for key, value in SETTINGS.items()))
        with (self.state_dir / "jobmanager.log").open("ab") as log:
            self.jobmanager = subprocess.Popen(
                [sys.executable, "-m", "flintlock.entrypoints.jobmanager", "--state-dir", str(self.state_dir)],
                stdout=log,
                stderr=log,
                env={**os.environ, "FLINTLOCK_CONF": str(file), "FLINTLOCK_REST_PORT": "0"},
            )
        self.await_leader()

    @property
    def manager(self) -> psutil.Process:
        """The JobManager."""
        assert self.jobmanager is not None
        return psutil.Process(self.jobmanager.pid)

    def workers(self) -> list[psutil.Process]:
        """The TaskManager processes that were started here, by any JobManager."""
        files = [read_pid_file(path) for path in (self.state_dir / "run" / "workers").glob("worker-*.json")]
        return [process for file in files if (process := running(file)) is not None]

    def stop(self) -> None:
        """End the JobManager, and what it has started."""
        super().stop()
        end(self.workers(), 15)

    def worker(self) -> psutil.Process:
        """Wait for one."""
        return until("a worker", self.workers)[0]

    def get(self, path: str) -> Any:
        """Ask REST."""
        return rest_requests.get(self.url + path, timeout=200).json()

    def cancel(self, job_id: str) -> int:
        """Cancel a job; return the status of the answer."""
        return rest_requests.patch(f"{self.url}/jobs/{job_id}", timeout=60).status_code

    def submit(self, query: str = "SELECT 1 AS one") -> str:
        """Submit a job."""
        steps: dict[str, Any] = {"one": {"sql": query}, "rows": {"result": {}, "inputs": ["one"]}}
        answer = rest_requests.post(f"{self.url}/jobs", json={"name": "small", "parallelism": 1, "steps": steps})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["jobid"])

    def end_of(self, job_id: str) -> str:
        """Wait for the job's end."""
        answer = self.get(f"/jobs/{job_id}/execution-result?wait=180s")
        return str(answer["job-execution-result"]["application-status"])


@pytest.fixture
def active(tmp_path: Path) -> Iterator[ActiveCluster]:
    """A cluster of the test's own."""
    cluster = ActiveCluster(tmp_path / "active")
    try:
        cluster.start_active()
        yield cluster
    finally:
        cluster.stop()


def test_a_cluster_without_task_managers_starts_one_gives_it_back_and_replaces_one_that_was_killed(
    active: ActiveCluster,
) -> None:
    """One worker for a job; none once it is idle; another for the next job, though its first one was killed."""
    assert active.workers() == []
    assert active.end_of(active.submit()) == "SUCCEEDED"

    until("the worker's release", lambda: active.get("/overview")["taskmanagers"] == 0, 60)
    until("the end of its process", lambda: not active.workers(), 60)

    waiting = active.submit()
    first = active.worker()
    first.send_signal(signal.SIGKILL)
    until("another worker", lambda: [found for found in active.workers() if found.pid != first.pid])
    assert active.end_of(waiting) == "SUCCEEDED"
    assert len(active.workers()) <= 1


def test_a_worker_and_its_task_outlive_a_killed_leader_and_are_the_next_ones(active: ActiveCluster) -> None:
    """The task goes on with its attempt; the next leader starts no other worker, and releases this one when idle."""
    job_id = active.submit(LONG)
    worker = active.worker()
    until("a running task", lambda: active.get(f"/jobs/{job_id}/attempts")["regions"][0]["attempts"][-1]["activity"])
    active.kill_jobmanager()
    active.start_active()
    until("the running job", lambda: active.get(f"/jobs/{job_id}")["state"] == "RUNNING", 60)
    attempts = active.get(f"/jobs/{job_id}/attempts")["regions"][0]["attempts"]

    assert [(attempt["attempt"], attempt["state"]) for attempt in attempts] == [(0, "RUNNING")]
    assert [found.pid for found in active.workers()] == [worker.pid]
    assert active.cancel(job_id) == 202
    until("the worker's release", lambda: not active.workers(), 60)
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []


def test_a_worker_that_no_leader_takes_ends_with_all_its_processes(active: ActiveCluster) -> None:
    """Also one that has only just been started, and whose engine is not warm."""
    active.submit()
    worker = active.worker()
    configuration = active.state_dir / "run" / "workers" / "flintlock.yaml"
    assert configuration.stat().st_mode & 0o077 == 0
    assert "taskmanager-timeout" not in " ".join(worker.cmdline())

    assert active.jobmanager is not None
    active.jobmanager.terminate()
    assert active.jobmanager.wait(30) == 0
    assert worker.is_running()
    family = [worker, *worker.children(recursive=True)]

    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


def test_nothing_is_left_of_a_cluster_with_a_busy_worker_that_is_shut_down(active: ActiveCluster) -> None:
    """The worker that the leader has started ends, with its engine and its task."""
    job_id = active.submit(LONG)
    until("a running task", lambda: active.get(f"/jobs/{job_id}/attempts")["regions"][0]["attempts"][-1]["activity"])
    worker = active.worker()
    family = [worker, *worker.children(recursive=True)]
    assert len(family) >= 4

    assert rest_requests.delete(f"{active.url}/cluster", timeout=60).status_code == 200
    assert active.jobmanager is not None
    assert active.jobmanager.wait(60) == 0
    _, alive = psutil.wait_procs(family, timeout=60)

    assert alive == []
    assert active.workers() == []
    assert [found for found in psutil.process_iter(["cmdline"]) if _belongs_to(found, active.state_dir)] == []


def _belongs_to(process: psutil.Process, state_dir: Path) -> bool:
    return any(str(state_dir) in argument for argument in process.info["cmdline"] or ())

"""A JobManager that starts its own TaskManagers: real processes, real Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
from tests.cluster.processes import Processes, until

SETTINGS: Final = {
    "resourcemanager.max-taskmanagers": "1",
    "resourcemanager.taskmanager-timeout": "2 s",
    "resourcemanager.start-worker.retry-interval": "1 s",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.rpc.port": "1",  # of an independently started TaskManager: workers use free ports
}


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
        """The TaskManager processes that it started."""
        return [child for child in self.manager.children() if child.status() != psutil.STATUS_ZOMBIE]

    def worker(self) -> psutil.Process:
        """Wait for one."""
        return until("a worker", self.workers)[0]

    def get(self, path: str) -> Any:
        """Ask REST."""
        return httpx.get(self.url + path, timeout=200).json()

    def submit(self) -> str:
        """Submit a small job."""
        steps: dict[str, Any] = {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}}
        answer = httpx.post(f"{self.url}/jobs", json={"name": "small", "parallelism": 1, "steps": steps})
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
    (second,) = until("another worker", lambda: [found for found in active.workers() if found.pid != first.pid])
    assert active.end_of(waiting) == "SUCCEEDED"
    assert len(active.workers()) <= 1

    family = [second, *second.children(recursive=True)]
    assert len(family) >= 3
    active.manager.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_job_manager_that_is_stopped_ends_its_workers(active: ActiveCluster) -> None:
    """Also one that has only just been started, and whose engine is not warm."""
    active.submit()
    worker = active.worker()
    configuration = active.state_dir / "run" / "workers" / "flintlock.yaml"
    assert configuration.stat().st_mode & 0o077 == 0
    assert "taskmanager-timeout" not in " ".join(worker.cmdline())

    assert active.jobmanager is not None
    active.jobmanager.terminate()
    assert active.jobmanager.wait(30) == 0

    _, alive = psutil.wait_procs([worker], timeout=1)
    assert alive == []
    assert list((active.state_dir / "run" / "workers").glob("*.child")) == []

"""One id follows a job from the request through the logs of all processes."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests


def _events(processes: Processes, log: str, cause: str) -> set[str]:
    """Return the events that a process has logged under a cause."""
    lines = (processes.state_dir / f"{log}.log").read_text().splitlines()
    decoded = [msgspec.json.decode(line) for line in lines if cause in line]
    return {line["event"] for line in decoded if line.get("cause") == cause}


def test_a_submission_and_a_cancel_are_found_by_their_request_ids(standing: Processes) -> None:
    long = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"
    steps: dict[str, Any] = {"one": {"sql": long}, "rows": {"result": {}, "inputs": ["one"]}}
    job = {"name": "traced", "parallelism": 1, "steps": steps}
    submitted = rest_requests.post(f"{standing.url}/jobs", json=job, headers={"X-Request-Id": "submit-17"})
    job_url = f"{standing.url}/jobs/{submitted.json()['jobid']}"

    def status() -> str:
        return str(rest_requests.get(f"{job_url}/status").json()["status"])

    def task_runs() -> bool:
        regions = rest_requests.get(f"{job_url}/attempts").json()["regions"]
        return any(attempt["state"] == "RUNNING" for attempt in regions[0]["attempts"])

    assert submitted.headers["x-request-id"] == "submit-17"
    until("a running task", task_runs)
    assert rest_requests.patch(job_url, headers={"X-Request-Id": "cancel-18"}).headers["x-request-id"] == "cancel-18"
    until("the end", lambda: status() == "CANCELED", 30)

    assert {"job-phase-changed", "execution-state-changed"} <= _events(standing, "jobmanager", "submit-17")
    assert "task-deployed" in _events(standing, "taskmanager", "submit-17")
    assert {"job-cancel-requested", "execution-state-changed"} <= _events(standing, "jobmanager", "cancel-18")
    assert "task-commanded" in _events(standing, "taskmanager", "cancel-18")

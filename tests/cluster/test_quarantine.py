"""One artifact that cannot be read concerns its own job only, and can be repaired. Needs no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

from flintlock.testing import rest_requests

STEPS: dict[str, Any] = {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}}


def states(url: str) -> dict[str, str]:
    return {job["name"]: job["state"] for job in rest_requests.get(f"{url}/jobs/overview").json()["jobs"]}


def prepare(cluster: Processes) -> str:
    """Submit a job with an artifact and one without; they wait for a TaskManager. Returns the id of the first one."""
    document = json.dumps({"version": 1, "name": "broken", "artifacts": ["lib.zip"], "steps": STEPS})
    parts = [("request", (None, document)), ("file", ("lib.zip", b"PK\x05\x06" + b"\0" * 18))]
    submitted = rest_requests.post(f"{cluster.url}/jobs", files=parts)
    assert submitted.status_code == 202, submitted.text
    other = {"version": 1, "name": "innocent", "steps": STEPS}
    assert rest_requests.post(f"{cluster.url}/jobs", json=other).status_code == 202
    return str(submitted.json()["jobid"])


def test_an_unreadable_artifact_stops_no_other_job_and_its_job_runs_once_it_is_repaired(tmp_path: Path) -> None:
    cluster = Processes(tmp_path)
    try:
        cluster.start_jobmanager()
        cluster.await_leader()
        job = prepare(cluster)
        cluster.kill_jobmanager()
        (blob,) = (path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
        content = blob.read_bytes()
        blob.unlink()
        blob.mkdir()

        cluster.start_jobmanager()
        cluster.await_leader()

        until("both jobs", lambda: states(cluster.url) == {"broken": "FAILED", "innocent": "RUNNING"}, 30.0)
        assert "Is a directory" in flintlock("quarantine", "list", "-m", cluster.url, cwd=tmp_path).stdout
        blob.rmdir()
        blob.write_bytes(content)
        retried = flintlock("quarantine", "retry", job, "-m", cluster.url, cwd=tmp_path)
        assert retried.returncode == 0, retried.stderr
        until("the job", lambda: states(cluster.url) == {"broken": "RUNNING", "innocent": "RUNNING"}, 30.0)
    finally:
        cluster.stop()

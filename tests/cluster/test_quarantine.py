"""One job that cannot be read, or ends the leaders that work on it, concerns no other job. Needs no Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import HERE, Processes, until
from tests.cluster.test_standby import Masters

from flintlock.host.processes.pid_files import job_managers
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


#: The loop's monitor needs 3 s of CPU time to recognise a job that blocks it; this is enough of a busy machine.
SILENCE_S: Final = 15.0


def named(name: str) -> dict[str, Any]:
    return {"version": 1, "name": name, "steps": STEPS}


@pytest.mark.parametrize("how", ["block", "break"])
def test_a_job_that_ends_leader_after_leader_is_quarantined_and_the_others_go_on(tmp_path: Path, how: str) -> None:
    masters = Masters(
        tmp_path,
        command=(str(HERE / "blocked_jobmanager.py"),),
        environment={"FATAL_JOB": f"fatal:{how}"},
        silence_s=SILENCE_S,
    )
    places = {0: masters.start(0).pid}
    try:
        leader = masters.leader
        places[1] = masters.start(1).pid
        ended: list[int] = []
        submitted = rest_requests.post(f"{leader.rest}/jobs", json=named("innocent"))
        assert submitted.status_code == 202, submitted.text
        with suppress(httpx.TransportError):  # the job may end the leader before it answers
            rest_requests.post(f"{leader.rest}/jobs", json=named("fatal"))

        def serving() -> str | None:
            """Start what has ended again, as a service manager does; return the address of a leader that serves."""
            for index, pid in places.items():
                process = next(each for each in masters.all if each.pid == pid)
                if process.poll() is not None:
                    ended.append(process.returncode)
                    places[index] = masters.start(index).pid
            for file in job_managers(tmp_path):
                try:
                    if file.epoch and states(file.rest) == {"innocent": "RUNNING", "fatal": "FAILED"}:
                        return file.rest
                except (httpx.HTTPError, KeyError):
                    continue
            return None

        url = until("the other job under a leader that stays", serving, 240.0)
        assert len(ended) == 2, "two leaders are lost, and the third one knows why"
        listed = flintlock("quarantine", "list", "-m", url, cwd=tmp_path).stdout
        assert "2 leaders were lost" in listed
    finally:
        masters.stop()

"""Real JobManager processes on ZooKeeper: what one has acknowledged, the next one knows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest
from tests.cluster.processes import until
from tests.zookeeper.servers import Ensemble

ROOT: Final = Path(__file__).parents[2]


class JobManager:
    """One JobManager process with a state directory of its own."""

    def __init__(self, state_dir: Path, settings: dict[str, str]) -> None:
        self._state_dir: Final = state_dir
        flags = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
        command = [sys.executable, "-m", "flintlock.entrypoints.jobmanager", "--state-dir", str(state_dir)]
        state_dir.mkdir()
        with (state_dir / "out").open("wb") as out:
            self.process: Final = subprocess.Popen(
                [*command, "--die-with-parent", str(os.getpid()), *flags], cwd=ROOT, stdout=out, stderr=out
            )

    def get(self, path: str) -> Any:
        """Return an answer of its REST endpoint, None if there is none."""
        with suppress(OSError, httpx.HTTPError, msgspec.DecodeError):
            url = msgspec.json.decode((self._state_dir / "cluster.json").read_bytes())["rest"]
            answer = httpx.get(f"{url}{path}", timeout=5)
            return answer.json() if answer.is_success else None
        return None

    def post(self, path: str, body: object) -> httpx.Response:
        """Send something to its REST endpoint."""
        url = msgspec.json.decode((self._state_dir / "cluster.json").read_bytes())["rest"]
        return httpx.post(f"{url}{path}", json=body, timeout=30)

    @property
    def said(self) -> str:
        """What it has printed."""
        return (self._state_dir / "out").read_text()


@pytest.fixture
def settings(zookeeper: Ensemble, tmp_path: Path) -> dict[str, str]:
    return {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper.quorum,
        "high-availability.zookeeper.client.session-timeout": "3 s",
        "high-availability.cluster-id": uuid.uuid4().hex,
        "high-availability.storageDir": str(tmp_path / "ha"),
        "rest.port": "0",
    }


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(running: ExitStack, state_dir: Path, settings: dict[str, str]) -> JobManager:
    jobmanager = JobManager(state_dir, settings)

    def end() -> None:
        jobmanager.process.kill()
        jobmanager.process.wait()

    running.callback(end)
    return jobmanager


def test_a_standby_leads_when_the_leader_is_killed_and_knows_its_jobs(
    tmp_path: Path, settings: dict[str, str], running: ExitStack
) -> None:
    first = start(running, tmp_path / "one", settings)
    until("a leader", lambda: first.get("/readyz"))
    second = start(running, tmp_path / "two", settings)
    job_id = "ab" * 16
    steps: dict[str, dict[str, Any]] = {"n": {"sql": "SELECT 1"}, "top": {"result": {}, "inputs": ["n"]}}
    waits = {"name": "waits for slots", "steps": steps}
    used, unused = [first.post("/blobs", content).json()["blob"] for content in ("used", "not used yet")]
    named = {"name": "data.txt", "blob": used}
    submitted = first.post("/jobs", {**waits, "jobId": job_id, "artifacts": [named]})

    first.process.send_signal(signal.SIGKILL)
    until("the standby to lead", lambda: second.get("/readyz"))

    assert submitted.is_success, submitted.text
    assert [job["jid"] for job in second.get("/jobs/overview")["jobs"]] == [job_id]
    for blob in (used, unused):  # uploaded to another machine
        again = second.post("/jobs", {**waits, "artifacts": [{"name": "data.txt", "blob": blob}]})
        assert again.is_success, again.text


def test_settings_that_are_missing_are_named_all_at_once(tmp_path: Path, running: ExitStack) -> None:
    jobmanager = start(running, tmp_path / "one", {"high-availability.type": "zookeeper"})

    assert jobmanager.process.wait(30) == 2
    assert "high-availability.zookeeper.quorum has to be set" in jobmanager.said
    assert "high-availability.storageDir has to be set" in jobmanager.said

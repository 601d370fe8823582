"""JobManagers whose state directory, and whose logs, are on a disk that is full for a while. Needs no Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.processes import until

SILENCE_S = 1.0
JOB: dict[str, Any] = {
    "version": 1,
    "name": "waits for a TaskManager",
    "steps": {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}},
}


class SmallDisk:
    """A file system of 16 MB, in a mount namespace of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        script = f"mount -t tmpfs -o size=16m none '{path}' && echo up && exec sleep infinity"
        self.holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script],
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        with self.holder.stdout as output:
            self.mounted = output.readline() == b"up\n"

    @property
    def inside(self) -> Path:
        """The same directory, as it is seen from outside the namespace."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")

    def command(self, *command: str) -> list[str]:
        """Return a command that runs in the namespace."""
        return ["nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials", *command]

    def fill(self) -> None:
        """Leave no room."""
        with (self.inside / "fill").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        """Make room again."""
        (self.inside / "fill").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Generator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    try:
        if not disk.mounted:
            pytest.skip("no file system can be mounted here")
        yield disk
    finally:
        disk.holder.kill()
        disk.holder.wait()


class Member:
    """A JobManager with its state directory on the disk."""

    def __init__(self, disk: SmallDisk, index: int, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                disk.command(
                    sys.executable, "-m", "flintlock.entrypoints.jobmanager", "--state-dir", str(disk.path / "state"),
                    "--index", str(index), "-D", "rest.port=0", "-D", "security.authentication=none",
                    "-D", f"high-availability.embedded.silence-timeout={SILENCE_S:g}s",
                ),
                stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self.url = until("a JobManager that listens", self._url, 60.0)

    def _url(self) -> str:
        assert self.process.poll() is None, self.text()[-4000:]
        found = re.search(r'"rest":"(http://[^"]+)"', self.text())
        return found[1] if found else ""

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def dropped(self) -> float:
        """How many log lines it has dropped."""
        found = re.search(
            r"^flintlock_log_lines_dropped_total (\S+)$", httpx.get(f"{self.url}/metrics").text, re.MULTILINE
        )
        assert found is not None
        return float(found[1])


def test_on_a_full_disk_the_leader_leads_on_no_process_ends_and_all_goes_on_when_there_is_room(
    disk: SmallDisk, tmp_path: Path
) -> None:
    (disk.inside / "state").mkdir()
    leader = Member(disk, 0, disk.inside / "leader.log")  # on the disk that will be full
    try:
        until("a leader", lambda: httpx.get(f"{leader.url}/readyz").status_code == 200, 60.0)
        standby = Member(disk, 1, tmp_path / "standby.log")
        try:
            disk.fill()

            def is_refused_without_a_line() -> bool:
                """The last block of the log may have room for some lines."""
                refused = httpx.post(f"{leader.url}/jobs", json=JOB)
                assert refused.status_code == 503, refused.text
                return leader.dropped() > 0

            until("lines that cannot be written", is_refused_without_a_line, 60.0)
            until("a verdict", lambda: "silent-leader-spared" in standby.text(), 60.0)
            assert leader.process.poll() is None
            assert standby.process.poll() is None
            assert httpx.get(f"{leader.url}/jobs/overview").status_code == 200

            disk.empty()
            until(
                "a job that is accepted",
                lambda: httpx.post(f"{standby.url}/jobs", json=JOB).status_code == 202,
                60.0,
            )
            until("a report of the missing lines", lambda: "log-lines-dropped" in leader.text(), 60.0)
            assert leader.process.poll() is None
            assert '"event":"leader-silent"' not in standby.text()
            assert "leadership-not-taken" not in standby.text()
        finally:
            standby.process.kill()
            standby.process.wait()
    finally:
        leader.process.kill()
        leader.process.wait()

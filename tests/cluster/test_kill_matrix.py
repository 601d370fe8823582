"""SIGKILL of the JobManager at every step of a job: nothing acknowledged is lost, nothing is doubled or left.

One TaskManager with its engine runs through all of it, as it would in a service; each case starts a JobManager that
kills itself at one point, starts it again, and looks at everything that a user or an operator could see.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pyarrow.dataset
import pytest
from tests.cluster.processes import Processes, running_processes, until

from flintlock.testing import rest_requests

#: Every step, in the order in which a job meets them. `published` is a report of moved or removed files.
POINTS = (
    "blobs.put:before",  # body read
    "blobs.put:after",  # blob written
    "graphs.put:before",
    "graphs.put:after",  # graph written, not acknowledged
    "progress.record.DEPLOYED:before",  # acknowledged
    "progress.record.DEPLOYED:after",
    "TaskManagerGateway.deploy:after",  # deployed
    "JobMasterGateway.report.TaskRunning:before",  # runner started
    "JobMasterGateway.report.TaskFinished:before",
    "progress.record.ACCEPTED:before",
    "progress.record.ACCEPTED:after",  # accepted
    "TaskManagerGateway.publish:after",
    "JobMasterGateway.report.published.first:before",  # each file moved
    "JobMasterGateway.report.published.further:before",
    "JobMasterGateway.report.published.all:before",  # moved but not recorded
    "progress.record.FINISHED:before",
    "progress.record.FINISHED:after",  # finished
    "ended.put:after",
    "results.create_dirty:before",
    "results.create_dirty:after",  # dirty
    "graphs.remove:after",
    "results.mark_clean:before",
    "results.mark_clean:after",  # cleaned
)

LIBRARY = b"""
def doubled(numbers):
    return numbers.selectExpr("id", "2 * id AS twice")
"""


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A state directory with a TaskManager that outlives its JobManagers."""
    with running_processes(tmp_path_factory.mktemp("matrix")) as running:
        running.kill_jobmanager()
        running.settings = ("blob.ended-jobs.max-size=0",)  # else the files of ended jobs would be left over
        yield running


@pytest.fixture
def processes(survivor: Processes) -> Iterator[Processes]:
    """The same without a JobManager; one that a failed test leaves behind would lead on into the next."""
    yield survivor
    survivor.kill_jobmanager()


@pytest.mark.parametrize("point", POINTS)
def test_a_job_survives_the_jobmanagers_death_at(point: str, processes: Processes, tmp_path: Path) -> None:
    """It is there after a restart, ends exactly once, and its output is whole and not doubled."""
    target = _target_with_old_files(tmp_path)
    (processes.state_dir / "killed").unlink(missing_ok=True)
    processes.start_jobmanager(kill_at=point)
    processes.await_leader()
    processes.await_slots()

    acknowledged = _submit(processes, point, target)
    assert processes.jobmanager is not None
    until(f"death at {point}", lambda: processes.jobmanager is not None and processes.jobmanager.poll() is not None)
    processes.start_jobmanager()
    processes.await_leader()
    job_id = _submit(processes, point, target)
    assert acknowledged in (None, job_id)

    ended = rest_requests.get(f"{processes.url}/jobs/{job_id}/execution-result?wait=100s", timeout=120).json()
    assert ended["job-execution-result"]["application-status"] == "SUCCEEDED", processes.logs()
    rows = rest_requests.get(f"{processes.url}/jobs/{job_id}/results/rows").json()["rows"]
    assert sorted(rows) == [[0, 0], [1, 2], [2, 4]]
    _assert_published_once(target)
    jobs = rest_requests.get(f"{processes.url}/jobs/overview").json()["jobs"]
    assert [job["jid"] for job in jobs if job["name"] == point] == [job_id]
    until("nothing left over", lambda: not _left_over(processes.state_dir, target))

    assert processes.jobmanager is not None
    processes.jobmanager.terminate()
    assert processes.jobmanager.wait(30) == 0


def _submit(processes: Processes, key: str, target: Path) -> str | None:
    """Submit under a key of its own; None if the JobManager died before it answered."""
    document: dict[str, Any] = {
        "name": key,
        "parallelism": 1,
        "artifacts": ["doubling.py"],
        "steps": {
            "numbers": {"sql": "SELECT id FROM range(3)"},
            "twice": {"function": "doubling:doubled", "inputs": ["numbers"], "exchange": "blocking"},
            "files": {
                "sink": {"format": "parquet", "path": str(target), "mode": "overwrite"},
                "inputs": ["twice"],
            },
            "rows": {"result": {}, "inputs": ["twice"]},
        },
    }
    try:
        answer = rest_requests.post(
            f"{processes.url}/jobs",
            data={"request": msgspec.json.encode(document).decode()},
            files={"file": ("doubling.py", LIBRARY)},
            headers={"Idempotency-Key": key},
            timeout=30,
        )
    except httpx.TransportError:
        return None
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobid"])


def _target_with_old_files(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    (target / "part-old.parquet").write_bytes(b"replaced")
    return target


def _assert_published_once(target: Path) -> None:
    visible = sorted(path.name for path in target.iterdir() if path.name[0] not in "._")
    assert "part-old.parquet" not in visible
    assert (target / "_SUCCESS").exists()
    table = cast("Any", pyarrow.dataset).dataset([str(target / name) for name in visible]).to_table()
    assert sorted(table.column("twice").to_pylist()) == [0, 2, 4]


def _left_over(state_dir: Path, target: Path) -> list[str]:
    """Name what is still there of a job that has ended."""
    left = [str(path) for path in target.glob(".flintlock-*")]
    left += [str(path) for path in (state_dir / "work").glob("*")]
    left += [str(path) for path in (state_dir / "blobs").glob("*/*")]
    store = sqlite3.connect(f"file:{state_dir / 'store.db'}?mode=ro", uri=True)
    try:
        for query in (
            "SELECT job_id FROM job_graphs",
            "SELECT job_id FROM region_records",
            "SELECT job_id FROM job_results WHERE dirty",
        ):
            left += [str(row) for row in store.execute(query)]
    finally:
        store.close()
    return left

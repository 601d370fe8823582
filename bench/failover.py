"""How long a loss is felt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.figures import Bound, Figure, spread
from bench.servers import Cluster, cluster
from flintlock.testing.rest_requests import OWN_CREDENTIAL

KILLS = 5
#: Runs for minutes; what is measured is how soon it runs elsewhere.
LONG = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"


def task_manager_killed() -> Iterator[Figure]:
    """SIGKILL the TaskManager that runs a task; wait until the next attempt runs on the other one."""
    times: list[float] = []
    with (
        cluster(taskmanagers=2, slots=1) as running,
        httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=60) as client,
    ):
        processes = dict(enumerate(running.taskmanagers))
        for _ in range(KILLS):
            steps: dict[str, Any] = {"one": {"sql": LONG}, "rows": {"result": {}, "inputs": ["one"]}}
            job = client.post("/jobs", json={"name": "long", "parallelism": 1, "steps": steps}).json()["jobid"]
            index = int(_running(client, job, 0)["taskmanager-id"].rpartition("-")[2])
            begun = time.perf_counter()
            processes[index].kill()
            _running(client, job, 1)
            times.append(time.perf_counter() - begun)
            processes[index].wait()
            client.patch(f"/jobs/{job}", params={"mode": "cancel"})
            processes[index] = _replaced(running, index)
    seconds = spread(times)
    yield Figure(
        name="taskmanager-killed", what="TaskManager process killed -> its task runs on another, warm",
        value=seconds.median, low=seconds.low, high=seconds.high, samples=seconds.samples, unit="s",
        bound=Bound(limit=3.0), against="absolute; default heartbeat timeout (50 s)",
        flink="up to 50 s by default heartbeat timeout",
    )  # fmt: skip


def _running(client: httpx.Client, job: str, attempt: int) -> dict[str, Any]:
    """Wait until that attempt runs, with work for Spark where it is the first; polled often: the time is a figure."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        attempts = client.get(f"/jobs/{job}/attempts").json()["regions"][0]["attempts"]
        found = [item for item in attempts if item["attempt"] == attempt and item["state"] == "RUNNING"]
        if found and (attempt or found[0]["metrics"]["tasks-total"] > 0):
            return found[0]
        time.sleep(0.02)  # noqa: TID251 REST has no notification of it
    raise TimeoutError(f"attempt {attempt} of job {job} does not run")


def _replaced(running: Cluster, index: int) -> Any:
    process = running.start_taskmanager(index)
    running.await_slots(2)
    return process

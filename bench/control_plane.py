"""Figures of the control plane alone: acknowledgements, memory, listings."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from bench.figures import Bound, Figure, percentile, spread
from bench.load import closed_loop, http
from bench.servers import Cluster, cluster
from flintlock.testing.rest_requests import OWN_CREDENTIAL

CLIENTS = 8
SMALL_JOB: dict[str, Any] = {
    "name": "small",
    "steps": {"one": {"sql": "SELECT 1 AS one"}, "rows": {"result": {}, "inputs": ["one"]}},
}


def acknowledgement() -> Iterator[Figure]:
    """Submission to durable acknowledgement, one client, warm, with an engine that runs the jobs."""
    body = msgspec.json.encode({**SMALL_JOB, "parallelism": 1})
    with cluster() as running, httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url) as client:
        times: list[float] = []
        for number in range(60):
            begun = time.perf_counter()
            answer = client.post("/jobs", content=body, headers={"content-type": "application/json"})
            elapsed = time.perf_counter() - begun
            job_id = answer.raise_for_status().json()["jobid"]
            client.get(f"/jobs/{job_id}/execution-result", params={"wait": "30s"})
            if number >= 10:
                times.append(elapsed * 1000)
        bare = _bare_route(running)
    found = spread(times)
    yield Figure(
        name="acknowledgement",
        what="submission -> acknowledged (durable), warm, p50",
        value=found.median,
        low=found.low,
        high=found.high,
        samples=found.samples,
        unit="ms",
        bound=Bound(limit=15),
        against=f"calibration: GET /healthz {bare:.2f} ms; one raw SQLite commit {_commit_ms():.2f} ms",
        flink="65-70 ms",
    )


def durable_acknowledgements() -> Iterator[Figure]:
    """Submissions of eight clients to a JobManager without TaskManagers: every job is stored and queued."""
    body = msgspec.json.encode(SMALL_JOB)
    with cluster(taskmanagers=0) as running:
        raw = _raw_commits()
        closed_loop(running.port, lambda _: http("POST", "/jobs", body), connections=CLIENTS, requests=200, status=202)
        load = closed_loop(
            running.port, lambda _: http("POST", "/jobs", body), connections=CLIENTS, requests=2000, status=202
        )
        raw = (raw + _raw_commits()) / 2
    if load.failures:
        raise RuntimeError(f"{load.failures} submissions were not acknowledged")
    beside = f"raw SQLite commits in the same run: {raw:.0f} a second; 8 clients, one core shared with them"
    yield Figure(
        name="durable-acknowledgements", what="durable acknowledgements, jobs queued, 8 clients", value=load.rate,
        unit="a second", bound=Bound(limit=500, at_least=True), against=beside, samples=2000, flink="~20 a second",
    )  # fmt: skip
    yield Figure(
        name="durable-acknowledgements-of-raw", what="the same as a share of raw SQLite commits", value=load.rate / raw,
        unit="x", bound=Bound(limit=0.2, at_least=True), against=beside, samples=2000,
    )  # fmt: skip
    yield Figure(
        name="durable-acknowledgements-p99", what="the same, p99", value=percentile(load.latencies_s, 0.99) * 1000,
        unit="ms", bound=Bound(limit=100), against=beside, samples=2000,
    )  # fmt: skip


def idle_jobmanager() -> Iterator[Figure]:
    """Memory and start of a JobManager; memory again after a thousand jobs have ended."""
    starts: list[float] = []
    idle = 0.0
    for _ in range(3):
        with cluster(taskmanagers=0) as running:
            starts.append(running.rest_after_s)
            idle = _rss_mb(running)
    with cluster() as running, httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=60) as client:
        body = msgspec.json.encode({**SMALL_JOB, "parallelism": 1})
        closed_loop(running.port, lambda _: http("POST", "/jobs", body), connections=2, requests=1000, status=202)
        _until_all_ended(client)
        after = _rss_mb(running)
    begun = spread(starts)
    yield Figure(
        name="idle-memory", what="idle JobManager, RSS", value=idle, unit="MB", bound=Bound(limit=120),
        against="absolute", flink="261 MiB",
    )  # fmt: skip
    yield Figure(
        name="rest-after", what="JobManager start -> REST answers and leads", value=begun.median, low=begun.low,
        high=begun.high, samples=begun.samples, unit="s", bound=Bound(limit=1.5),
        against=f"calibration: `python -c pass` {_python_start_s():.2f} s", flink="2.6 s",
    )  # fmt: skip
    yield Figure(
        name="memory-after-1000", what="JobManager after 1,000 jobs, RSS", value=after, unit="MB",
        bound=Bound(limit=160), against="absolute", flink="950 MiB after 386 jobs",
    )  # fmt: skip


def jobs_overview() -> Iterator[Figure]:
    """GET /jobs/overview with 60 and with 400 jobs, eight connections."""
    body = msgspec.json.encode(SMALL_JOB)
    listing = http("GET", "/jobs/overview")
    with cluster(taskmanagers=0) as running:
        stored = 0
        for jobs, bound, flink in ((60, 10_000, "8,600 a second"), (400, 3_000, "1,500 a second")):
            closed_loop(
                running.port, lambda _: http("POST", "/jobs", body), connections=1, requests=jobs - stored, status=202
            )
            stored = jobs
            requests = bound * 2
            closed_loop(running.port, lambda _: listing, connections=CLIENTS, requests=requests // 4, status=200)
            load = closed_loop(running.port, lambda _: listing, connections=CLIENTS, requests=requests, status=200)
            bare = _bare_uvicorn(jobs * 400)
            yield Figure(
                name=f"jobs-overview-{jobs}", what=f"GET /jobs/overview, {jobs} jobs, 8 connections", value=load.rate,
                unit="a second", bound=Bound(limit=bound, at_least=True), samples=requests, flink=flink,
                against=f"calibration: bare uvicorn with ready bytes of that size {bare:.0f} a second",
            )  # fmt: skip


def _rss_mb(running: Cluster) -> float:
    return psutil.Process(running.jobmanager_pid).memory_info().rss / 1e6


def _until_all_ended(client: httpx.Client) -> None:
    while True:
        seen = client.get("/overview").json()
        if not seen["jobs-running"]:
            return
        newest = client.get("/jobs").json()["jobs"][0]["id"]
        client.get(f"/jobs/{newest}/execution-result", params={"wait": "30s"})


def _bare_route(running: Cluster) -> float:
    get = http("GET", "/healthz")
    load = closed_loop(running.port, lambda _: get, connections=1, requests=300, status=200)
    return spread(load.latencies_s).median * 1000


def _raw_commits(seconds: float = 1.0) -> float:
    """Count one-row commits a second, WAL and FULL, on the file system that state directories are on."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        store = sqlite3.connect(Path(scratch) / "raw.db", isolation_level=None)
        store.execute("PRAGMA journal_mode=WAL").fetchall()
        store.execute("PRAGMA synchronous=FULL").fetchall()
        store.execute("CREATE TABLE t (id TEXT PRIMARY KEY, payload BLOB) STRICT")
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            store.execute("INSERT INTO t VALUES (?, ?)", (uuid.uuid4().hex, b"x" * 500))
            count += 1
        rate = count / (time.perf_counter() - begun)
        store.close()
    return rate


def _commit_ms() -> float:
    return 1000 / _raw_commits(0.5)


def _python_start_s() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - begun


def _bare_uvicorn(size: int) -> float:
    """The rate of a uvicorn that sends ready bytes of that size."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bare_uvicorn", str(size)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("no pipe")
            port = int(process.stdout.readline())
            get = http("GET", "/")
            closed_loop(port, lambda _: get, connections=CLIENTS, requests=500, status=200)
            return closed_loop(port, lambda _: get, connections=CLIENTS, requests=5000, status=200).rate
        finally:
            process.kill()  # it has nothing to finish

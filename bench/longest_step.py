"""The longest step of the JobManager's event loop, under what is expensive and under what is hostile.

Each part has a JobManager of its own, over a store with 100,000 ended jobs: what it measures begins with its start. An
idle loop beside it shows how long the machine itself lets a process wait.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from bench.control_plane import CLIENTS, SMALL_JOB
from bench.figures import Bound, Figure
from bench.idle_loop import idle_loop
from bench.load import closed_loop, http
from bench.loop_delays import longest_delay_ms
from bench.many_jobs import read_whole, with_ended_jobs
from bench.servers import Cluster, cluster
from flintlock.testing import rest_requests
from flintlock.testing.rest_requests import OWN_CREDENTIAL

BOUND: Final = Bound(limit=50)
ENDED: Final = 100_000
QUEUED: Final = 10_000
_PATIENT_S: Final = 300.0


def longest_step() -> Iterator[Figure]:
    """How late the event loop's timers are at worst, while it serves what is expensive, and hostile documents."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch:
        prepared = Path(scratch)
        with_ended_jobs(ENDED)(prepared)

        def copy_prepared(state_dir: Path) -> None:
            shutil.copytree(prepared, state_dir, dirs_exist_ok=True)

        for name, what, work in (
            ("documents", "hostile documents of up to 10 MB", _hostile_documents),
            ("control-plane", "submissions, listings and event streams", _control_plane),
            ("queue", f"{QUEUED:,} jobs queued by {CLIENTS} clients, and their listing", _queue),
        ):
            with (
                cluster(taskmanagers=0, prepare=copy_prepared) as running,
                idle_loop() as end_idle_loop,
                httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=_PATIENT_S) as client,
            ):
                if read_whole(client) != ENDED:
                    raise RuntimeError("not all ended jobs are listed")
                work(running, client)
                value, idle_ms = longest_delay_ms(client.get("/metrics").text), end_idle_loop()
            yield Figure(
                name=f"longest-step-{name}", what=f"longest step of the loop: {what}, {ENDED:,} ended jobs",
                value=value, unit="ms", bound=BOUND, against=f"an idle loop beside it: {idle_ms:.1f} ms",
            )  # fmt: skip


def _hostile_documents(_: Cluster, client: httpx.Client) -> None:
    names = [f"a_step_with_a_long_name_{number:04}" for number in range(1000)]
    misspelt: dict[str, Any] = {
        "name": "x",
        "config": {f"restart-strateqy.attempts.{number}": "1" for number in range(1000)},
        "steps": {name: {"sql": "SELECT 1", "inputs": [name.replace("long", "lonq")]} for name in names},
    }
    many: dict[str, Any] = {"name": "x", "steps": {f"s{n}": {"sql": "SELECT 1"} for n in range(60_000)}}
    bodies = [
        msgspec.json.encode(misspelt),
        msgspec.json.encode(many),
        msgspec.json.encode({f"key{number}": number for number in range(150_000)}),
        b'{"name":"x","steps":{"a":{"sql":"","inputs":[' + b'"a",' * 190_000 + b'"a"]}}}',
        b"[" + b"[]," * 3_400_000 + b"[]]",
        b'{"name":"' + b"x" * 10_000_000 + b'"}',
        b'{"name":"' + b"x" * 4_000_000 + b'"}',
    ]
    for body in bodies:
        answer = client.post("/jobs", content=body, headers={"content-type": "application/json"})
        if not 400 <= answer.status_code < 500:
            raise RuntimeError(f"a hostile document was answered with {answer.status_code}")


def _control_plane(running: Cluster, client: httpx.Client) -> None:
    body, page = msgspec.json.encode(SMALL_JOB), http("GET", "/jobs/overview?limit=100")
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(_follow_events, running.url, 6.0) for _ in range(4)]
        closed_loop(running.port, lambda _: http("POST", "/jobs", body), connections=CLIENTS, requests=1000, status=202)
        closed_loop(running.port, lambda _: page, connections=CLIENTS, requests=2000, status=200)
        read_whole(client)
        for stream in streams:
            stream.result()


def _queue(running: Cluster, client: httpx.Client) -> None:
    """Submit jobs that wait: there is no TaskManager."""
    body = msgspec.json.encode(SMALL_JOB)
    load = closed_loop(
        running.port, lambda _: http("POST", "/jobs", body), connections=CLIENTS, requests=QUEUED, status=202
    )
    if load.failures:
        raise RuntimeError(f"{load.failures} submissions were not acknowledged")
    read_whole(client)


def _follow_events(url: str, seconds: float) -> None:
    end = time.perf_counter() + seconds
    with rest_requests.stream("GET", f"{url}/events", timeout=30) as response:
        for _ in response.iter_raw():
            if time.perf_counter() > end:
                return

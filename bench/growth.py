"""Figures of a real JobManager through which many jobs go: what it needs after all of them, against after the first.

Jobs are submitted, cancelled and, a few seconds later, expired: REST, Dispatcher, store and retention all take part. No
TaskManager is needed. What restarts and changes of leader leave behind is measured in the simulated cluster
(`python -m flintlock.testing.growth`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
from msgspec import Struct

from bench.control_plane import CLIENTS, SMALL_JOB
from bench.figures import Bound, Figure
from bench.servers import Cluster, cluster
from flintlock.testing.rest_requests import OWN_CREDENTIAL

JOBS = 10_000
TENTHS = 10
SETTINGS = ("job-result-store.retention=5 s",)
_EXPIRED_S = 60.0
_LIMITS = (("rss_mb", "MB", 1.15), ("descriptors", "", 1.15), ("files", "", 1.0), ("store_mb", "MB", 1.5))


class Needs(Struct, frozen=True, kw_only=True):
    """What the JobManager needs when all jobs so far have expired."""

    rss_mb: float
    descriptors: int
    files: int  # in the state directory
    store_mb: float


def growth() -> Iterator[Figure]:
    """Memory, descriptors, files and store of a JobManager after the last tenth of 10,000 jobs, against the first."""
    with cluster(taskmanagers=0, settings=SETTINGS) as running:
        seen: list[Needs] = []
        for tenth in range(TENTHS):
            _run_jobs(running, JOBS // TENTHS)
            seen.append(_needs(running))
            sys.stderr.write(f"  after {(tenth + 1) * JOBS // TENTHS} jobs: {seen[-1]}\n")
    first, last = seen[0], seen[-1]
    for name, unit, most in (
        ("rss_mb", "MB", 1.15),
        ("descriptors", "", 1.1),
        ("files", "", 1.0),
        ("store_mb", "MB", 1.5),
    ):
        before, after = float(getattr(first, name)), float(getattr(last, name))
        yield Figure(
            name=f"growth-{name.removesuffix('_mb')}", what=f"growth of {name.removesuffix('_mb')} after {JOBS:,} jobs",
            value=after / max(before, 1e-9), unit="x", bound=Bound(limit=most), samples=JOBS,
            against=f"after the first tenth {before:.4g} {unit}, after the last {after:.4g} {unit}",
        )  # fmt: skip


def _run_jobs(running: Cluster, count: int) -> None:
    """Submit and cancel jobs; return once all have expired."""

    def one_client(jobs: int) -> None:
        with httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=60) as client:
            for _ in range(jobs):
                job_id = client.post("/jobs", json=SMALL_JOB).raise_for_status().json()["jobid"]
                client.patch(f"/jobs/{job_id}").raise_for_status()

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(one_client, [count // CLIENTS] * CLIENTS))
    with httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=60) as client:
        limit_s = time.monotonic() + _EXPIRED_S
        while client.get("/jobs/overview").raise_for_status().json()["jobs"]:
            if time.monotonic() > limit_s:
                raise TimeoutError("the jobs have not expired")
            time.sleep(0.5)  # noqa: TID251 (there is no event for the expiry of all jobs)


def _needs(running: Cluster) -> Needs:
    process = psutil.Process(running.jobmanager_pid)
    store = [path.stat().st_size for path in running.state_dir.glob("store.db*")]
    return Needs(
        rss_mb=process.memory_info().rss / 1e6,
        descriptors=process.num_fds(),
        files=sum(path.is_file() for path in running.state_dir.rglob("*")),
        store_mb=sum(store) / 1e6,
    )

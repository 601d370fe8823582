"""Figures of a cluster with very many ended jobs, and of the longest step of the JobManager's event loop."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import msgspec
import psutil

from bench.control_plane import CLIENTS, SMALL_JOB
from bench.figures import Bound, Figure, spread
from bench.load import closed_loop, http
from bench.servers import Cluster, cluster
from flintlock.ha import payloads
from flintlock.ha.embedded.sqlite_file import open_writer
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobResult, JobSnapshot
from flintlock.model.states import JobStatus
from flintlock.testing import rest_requests
from flintlock.testing.rest_requests import OWN_CREDENTIAL

_LONGEST = re.compile(r"^flintlock_event_loop_longest_delay_seconds (\S+)$", re.MULTILINE)
_PATIENT_S = 300.0


def ended_jobs() -> Iterator[Figure]:
    """A leader over a store with ended jobs: when it is ready, its memory, the first page, the whole list."""
    for count, ready_s, rss_mb in ((100_000, 5.0, 300.0), (1_000_000, 15.0, 1000.0)):
        with (
            cluster(taskmanagers=0, prepare=with_ended_jobs(count)) as running,
            httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=_PATIENT_S) as client,
        ):
            begun = time.perf_counter()
            client.get("/jobs/overview", params={"limit": 100}).raise_for_status()
            first_after_s = time.perf_counter() - begun
            listed = _read_whole(client)
            complete_after_s = time.perf_counter() - begun
            pages = [_page_ms(client) for _ in range(50)]
            begun = time.perf_counter()
            _read_whole(client)
            whole_s = time.perf_counter() - begun
            rss = psutil.Process(running.jobmanager_pid).memory_info().rss / 1e6
        if listed != count:
            raise RuntimeError(f"{listed} of {count} jobs are listed")
        found, name = spread(pages), f"{count:,} ended jobs"
        yield Figure(
            name=f"ready-with-{count}", what=f"JobManager start -> leads, {name}", value=running.rest_after_s, unit="s",
            bound=Bound(limit=ready_s),
            against=f"first page {first_after_s:.2f} s, whole list {complete_after_s:.1f} s after that",
        )  # fmt: skip
        yield Figure(
            name=f"memory-with-{count}", what=f"JobManager, RSS, {name} listed", value=rss, unit="MB",
            bound=Bound(limit=rss_mb), against="absolute",
        )  # fmt: skip
        yield Figure(
            name=f"first-page-with-{count}", what=f"GET /jobs/overview?limit=100, {name}, p50", value=found.median,
            low=found.low, high=found.high, samples=found.samples, unit="ms", bound=Bound(limit=5),
            against=f"the whole list in {whole_s:.1f} s",
        )  # fmt: skip


def longest_step() -> Iterator[Figure]:
    """How late the event loop's timers are at worst, while it serves what is expensive, and hostile documents."""
    with (
        cluster(taskmanagers=0, prepare=with_ended_jobs(100_000)) as running,
        httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=_PATIENT_S) as client,
    ):
        _read_whole(client)
        quiet = _quiet_longest_ms(client)
        for name, what, work in (
            ("documents", "hostile documents of up to 10 MB", _hostile_documents),
            ("control-plane", "submissions, listings and event streams, 100,000 ended jobs", _control_plane),
        ):
            _await_new_window(client)
            work(running, client)
            yield Figure(
                name=f"longest-step-{name}", what=f"longest step of the loop: {what}", value=_longest_ms(client),
                unit="ms", bound=Bound(limit=50), against=f"idle, on the same machine: {quiet:.1f} ms",
            )  # fmt: skip


def with_ended_jobs(count: int) -> Callable[[Path], None]:
    """Return what stores so many jobs that ended one after the other, up to now."""

    def prepare(state_dir: Path) -> None:
        now_ms = time.time_ns() // 1_000_000
        with closing(open_writer(state_dir / "store.db")) as store:
            store.execute("BEGIN")
            for number in range(count):
                job_id, at_ms = JobId(uuid.uuid4().hex), now_ms - (count - number) * 100
                snapshot = _ended(job_id, at_ms)
                result = JobResult(
                    job_id=job_id, name="nightly revenue", status=JobStatus.FINISHED, start_ms=at_ms, end_ms=at_ms + 90
                )
                summary = payloads.JOB_SUMMARY.encode(snapshot.summary())
                store.execute("INSERT INTO ended_jobs VALUES (?, ?, ?)", (job_id, at_ms + 90, summary))
                store.execute(
                    "INSERT INTO job_results (job_id, dirty, end_ms, payload) VALUES (?, 0, ?, ?)",
                    (job_id, at_ms + 90, payloads.JOB_RESULT.encode(result)),
                )
            store.execute("COMMIT")

    return prepare


def _ended(job_id: JobId, at_ms: int) -> JobSnapshot:
    return JobSnapshot(
        graph=JobGraph(job_id=job_id, name="nightly revenue"),
        regions=(),
        status=JobStatus.FINISHED,
        timestamps={JobStatus.INITIALIZING: at_ms, JobStatus.FINISHED: at_ms + 90},
        end_ms=at_ms + 90,
        last_modified_ms=at_ms + 90,
        executions=(),
    )


def _page_ms(client: httpx.Client) -> float:
    begun = time.perf_counter()
    client.get("/jobs/overview", params={"limit": 100}).raise_for_status()
    return (time.perf_counter() - begun) * 1000


def _read_whole(client: httpx.Client) -> int:
    """Read the whole list, and return how many jobs it has; nothing of it is kept."""
    count = 0
    with client.stream("GET", "/jobs/overview") as response:
        for piece in response.iter_raw():
            count += piece.count(b'"jid"')  # a piece may end within it: that is rare enough for a figure
    return count


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
        client.post("/jobs", content=body, headers={"content-type": "application/json"})


def _control_plane(running: Cluster, client: httpx.Client) -> None:
    body, page = msgspec.json.encode(SMALL_JOB), http("GET", "/jobs/overview?limit=100")
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(_follow_events, running.url, 6.0) for _ in range(4)]
        closed_loop(running.port, lambda _: http("POST", "/jobs", body), connections=CLIENTS, requests=1000, status=202)
        closed_loop(running.port, lambda _: page, connections=CLIENTS, requests=2000, status=200)
        _read_whole(client)
        for stream in streams:
            stream.result()


def _follow_events(url: str, seconds: float) -> None:
    end = time.perf_counter() + seconds
    with rest_requests.stream("GET", f"{url}/events", timeout=30) as response:
        for _ in response.iter_raw():
            if time.perf_counter() > end:
                return


def _quiet_longest_ms(client: httpx.Client) -> float:
    _await_new_window(client)
    return _longest_ms(client)


def _await_new_window(client: httpx.Client) -> None:
    """Wait until the gauge, which shows the last minute or two, knows nothing of what was before."""
    client.get("/healthz")
    Event().wait(125)


def _longest_ms(client: httpx.Client) -> float:
    found = _LONGEST.search(client.get("/metrics").text)
    if found is None:
        raise RuntimeError("the JobManager does not measure its event loop")
    return float(found[1]) * 1000

"""Figures of a cluster with very many ended jobs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil

from bench.figures import Bound, Figure, spread
from bench.job_events import job_events
from bench.servers import cluster
from flintlock.ha import payloads
from flintlock.ha.embedded.sqlite_file import open_writer
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobResult, JobSnapshot
from flintlock.model.states import JobStatus
from flintlock.testing.rest_requests import OWN_CREDENTIAL

_PATIENT_S = 300.0


def ended_jobs() -> Iterator[Figure]:
    """A leader over a store with ended jobs: when it is ready, its memory, the first page, the whole list, events."""
    for count, ready_s, rss_mb in ((100_000, 5.0, 300.0), (1_000_000, 15.0, 1000.0)):
        yield from leader_with(count, ready_s, rss_mb)


def leader_with(count: int, ready_s: float, rss_mb: float) -> Iterator[Figure]:
    """Measure a leader over so many ended jobs, with the bounds of what depends on their number."""
    with (
        cluster(taskmanagers=0, prepare=with_ended_jobs(count)) as running,
        httpx.Client(auth=OWN_CREDENTIAL, base_url=running.url, timeout=_PATIENT_S) as client,
    ):
        begun = time.perf_counter()
        client.get("/jobs/overview", params={"limit": 100}).raise_for_status()
        first_after_s = time.perf_counter() - begun
        listed = read_whole(client)
        complete_after_s = time.perf_counter() - begun
        pages = [_page_ms(client) for _ in range(50)]
        begun = time.perf_counter()
        read_whole(client)
        whole_s = time.perf_counter() - begun
        rss = psutil.Process(running.jobmanager_pid).memory_info().rss / 1e6
        events = list(job_events(client, f"with-{count}", f"{count:,} ended jobs"))
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
    yield from events


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


def read_whole(client: httpx.Client) -> int:
    """Read the whole list, and return how many jobs it has; nothing of it is kept."""
    count, key, rest = 0, b'"jid"', b""
    with client.stream("GET", "/jobs/overview") as response:
        for piece in response.iter_raw():
            count += (rest + piece).count(key)
            rest = (rest + piece)[-len(key) + 1 :]  # a piece may end within it
    return count

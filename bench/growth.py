"""Figures of a real JobManager through which many jobs go: what it needs after all of them, against after the first.

Three of four jobs are submitted and cancelled; the others run on a TaskManager without Spark, where attempts fail and
are restarted. A few seconds after their end all of them expire: REST, Dispatcher, JobMasters, RPC, store and retention
take part. This is done twice: with one JobManager that lives through all jobs, whose memory shows what is never given
back, and with one that is killed and started again in the middle of each tenth, which shows what changes of leader
leave behind in the store and in the files, and what a leader loads of it.

`make bench ONLY=growth JOBS=100000` is the soak of a release. After less than some thousand jobs the store has not
reached its size yet: the log of SQLite grows up to 4 MB before it is written again from its beginning. What the
simulated cluster counts besides, such as objects and records, is measured there (`python -m flintlock.testing.growth`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from msgspec import Struct
from tests.chaos.deployment import Deployment, embedded_deployment
from tests.cluster.processes import until

from bench.control_plane import CLIENTS, SMALL_JOB
from bench.figures import Bound, Figure
from bench.idle_loop import idle_loop
from bench.longest_step import BOUND
from bench.member_delays import record_loop_delays
from bench.servers import loop_delays_ms

JOBS: Final = 10_000
TENTHS: Final = 10
SETTINGS: Final = {"job-result-store.retention": "5 s", "heartbeat.interval": "1 s"}
SLOTS: Final = 8
RUNNING: Final = 4  # every so many jobs, one runs to its end
#: Attempts fail with `sparkless_taskmanager.FAILURES`: nearly all of these jobs finish, after restarts.
FAILING_JOB: Final[dict[str, Any]] = {
    **SMALL_JOB,
    "name": "failing",
    "parallelism": 1,
    "config": {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 10,
        "restart-strategy.fixed-delay.delay": "100 ms",
    },
}
_EXPIRED_S: Final = 600.0
_RETRY_S: Final = 60.0  # a leader that was killed is back within it
_RESTARTS: Final = re.compile(r"^flintlock_task_restarts_total (\S+)$", re.MULTILINE)
#: By how much each need may grow after the first tenth.
_LIMITS: Final = (("rss_mb", "MB", 1.15), ("descriptors", "", 1.1), ("files", "", 1.0), ("store_mb", "MB", 1.5))


class Needs(Struct, frozen=True, kw_only=True):
    """What the JobManager needs when all jobs so far have expired."""

    rss_mb: float
    descriptors: int
    files: int  # in the state directory
    store_mb: float
    restarts: int = 0  # of tasks, since the process began


def growth() -> Iterator[Figure]:
    """Memory, descriptors, files and store of a JobManager after the last tenth of all jobs, against the first."""
    jobs = int(os.environ.get("JOBS", JOBS))
    for killed in (False, True):
        known = len(loop_delays_ms)
        with idle_loop() as end_idle_loop:
            seen = list(_needs_after_tenths(jobs, killed=killed))
            idle_ms = end_idle_loop()
        if not any(needs.restarts for needs in seen):
            raise RuntimeError("no task was restarted: the jobs have not failed")
        yield from figures(seen[0], seen[-1], jobs, killed=killed)
        yield loop_figure(loop_delays_ms[known:], jobs, killed=killed, idle_ms=idle_ms)


def figures(first: Needs, last: Needs, jobs: int = JOBS, *, killed: bool = False) -> Iterator[Figure]:
    """Compare what the JobManager needs after the first tenth and after the last one."""
    leader = f", leader killed {TENTHS} times" if killed else ""
    for name, unit, most in _LIMITS:
        before, after = float(getattr(first, name)), float(getattr(last, name))
        need = name.removesuffix("_mb")
        yield Figure(
            name=f"growth-{need}{'-killed' if killed else ''}", what=f"growth of {need} after {jobs:,} jobs{leader}",
            value=after / max(before, 1e-9), unit="x", bound=Bound(limit=most), samples=jobs,
            against=f"after the first tenth {before:.4g} {unit}, after the last {after:.4g} {unit}",
        )  # fmt: skip


def loop_figure(delays_ms: list[float], jobs: int, *, killed: bool, idle_ms: float) -> Figure:
    """Return the longest step of the loop of each JobManager process that the jobs went through."""
    leader = f", leader killed {TENTHS} times" if killed else ""
    return Figure(
        name=f"growth-loop{'-killed' if killed else ''}", what=f"longest step of the loop during {jobs:,} jobs{leader}",
        value=max(delays_ms), unit="ms", bound=BOUND, samples=len(delays_ms),
        against=f"an idle loop beside it, in the last minute or two: {idle_ms:.1f} ms",
    )  # fmt: skip


def _needs_after_tenths(jobs: int, *, killed: bool) -> Iterator[Needs]:
    """Run the jobs; yield what the JobManager needs after each tenth. `killed`: in the middle of each."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, _running(Path(scratch)) as deployment:
        for tenth in range(1, TENTHS + 1):
            _run_jobs(deployment, jobs // TENTHS // 2)
            if killed:
                _kill(deployment)
            _run_jobs(deployment, jobs // TENTHS - jobs // TENTHS // 2)
            _await_expiry(deployment)
            needs = _needs(deployment)
            sys.stderr.write(f"  after {tenth * jobs // TENTHS} jobs: {needs}\n")
            yield needs
        record_loop_delays(deployment)


@contextmanager
def _running(state_dir: Path) -> Generator[Deployment]:
    """Start a JobManager and a TaskManager without Spark; yield when its slots are there."""
    deployment = embedded_deployment(state_dir, 1, settings=SETTINGS)
    with ExitStack() as cleanup:
        cleanup.callback(deployment.close)
        cleanup.callback(deployment.jobmanagers[0].end)
        deployment.jobmanagers[0].start()
        until("the leader", lambda: deployment.answering() == 1, 60)
        log = cleanup.enter_context((state_dir / "taskmanager.log").open("ab"))
        flags = [part for key, value in SETTINGS.items() for part in ("-D", f"{key}={value}")]
        task_manager = subprocess.Popen(
            [sys.executable, "-m", "bench.sparkless_taskmanager", "--state-dir", str(state_dir), "--die-with-parent",
             str(os.getpid()), "-D", f"taskmanager.numberOfTaskSlots={SLOTS}", *flags],
            stdout=log, stderr=log,
        )  # fmt: skip
        cleanup.callback(task_manager.wait, 30)
        cleanup.callback(task_manager.terminate)
        until("the slots", lambda: deployment.available_slots() == SLOTS, 60)
        yield deployment


def _kill(deployment: Deployment) -> None:
    """Kill the leader while jobs run, and start it again."""
    leader = deployment.jobmanagers[0]
    record_loop_delays(deployment)
    leader.kill()
    leader.start()
    until("the leader", lambda: deployment.answering() == 1, _RETRY_S)


def _run_jobs(deployment: Deployment, count: int) -> None:
    """Submit jobs and cancel three of four; some may not have ended yet."""
    url = deployment.jobmanagers[0].url

    def one_client(jobs: int) -> None:
        with httpx.Client(auth=deployment.client.auth, base_url=url, timeout=60) as client:
            for number in range(jobs):
                cancelled = number % RUNNING != 0
                job = SMALL_JOB if cancelled else FAILING_JOB
                job_id = client.post("/jobs", json=job).raise_for_status().json()["jobid"]
                if cancelled:
                    client.patch(f"/jobs/{job_id}").raise_for_status()

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(one_client, [(count + client) // CLIENTS for client in range(CLIENTS)]))


def _await_expiry(deployment: Deployment) -> None:
    """Return once no job is known any more."""

    def gone() -> bool:
        return not deployment.get("/jobs/overview?limit=1").raise_for_status().json()["jobs"]

    until("the expiry of all jobs", gone, _EXPIRED_S, pause_s=0.5)


def _needs(deployment: Deployment) -> Needs:
    leader, state_dir = deployment.jobmanagers[0].process, deployment.home
    assert leader is not None
    process = psutil.Process(leader.pid)
    restarts = _RESTARTS.search(deployment.get("/metrics").text)
    store = [path.stat().st_size for path in state_dir.glob("store.db*")]
    return Needs(
        rss_mb=process.memory_info().rss / 1e6,
        descriptors=process.num_fds(),
        files=sum(path.is_file() for path in state_dir.rglob("*")),
        store_mb=sum(store) / 1e6,
        restarts=0 if restarts is None else round(float(restarts[1])),
    )

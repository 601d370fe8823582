"""Twenty jobs at once while everything around them is killed or frozen: each ends as its strategy says."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
import pytest
from tests.cluster.processes import Processes, running_processes, until

from flintlock.testing import rest_requests

JOBS = 20
SLEEPS = "SELECT java_method('java.lang.Thread', 'sleep', bigint(1500)) AS s, count(*) AS n FROM range(10)"
RETRY = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "50",
    "restart-strategy.fixed-delay.delay": "200 ms",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    """Two TaskManagers with short leases."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLINTLOCK_HEARTBEAT_INTERVAL", "500 ms")
        environment.setenv("FLINTLOCK_HEARTBEAT_TIMEOUT", "6 s")
        environment.setenv("FLINTLOCK_HIGH_AVAILABILITY_EMBEDDED_SILENCE_TIMEOUT", "2 s")
        environment.setenv("FLINTLOCK_HIGH_AVAILABILITY_RECOVERY_TIME", "2 s")
        with running_processes(tmp_path / "turmoil") as processes:
            processes.start_another_taskmanager(1)
            processes.await_slots(4)
            yield processes


def _submit(url: str, number: int) -> str:
    steps: dict[str, Any] = {"one": {"sql": SLEEPS}, "rows": {"result": {}, "inputs": ["one"]}}
    config = RETRY if number % 2 else {}
    job = {"name": f"job-{number}", "parallelism": 1, "steps": steps, "config": config}
    answer = rest_requests.post(f"{url}/jobs", json=job)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobid"])


def _children(process: Popen[bytes], name: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if name in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def _runners(process: Popen[bytes]) -> list[psutil.Process]:
    """Return the runners of a TaskManager, the oldest first: those have tasks."""
    templates = _children(process, "flintlock.spark.runner.template")
    runners = [child for template in templates for child in template.children()]
    return sorted(runners, key=lambda runner: runner.create_time())


def _signal_a_runner(process: Popen[bytes], number: signal.Signals) -> None:
    """Send it to a runner that has a task; runners start and end during the search."""

    def sent() -> bool:
        try:
            _runners(process)[0].send_signal(number)
        except (psutil.NoSuchProcess, IndexError):
            return False
        return True

    until("a runner", sent)


def test_every_job_ends_as_its_strategy_says_whatever_is_killed_or_frozen(cluster: Processes) -> None:
    """Runners, engines, watchdogs and TaskManagers are killed and stopped under twenty running jobs."""
    url, first, second = cluster.url, cluster.taskmanager, cluster.others[0]
    assert first is not None
    jobs = [_submit(url, number) for number in range(JOBS)]

    def ended() -> int:
        states = [job["state"] for job in rest_requests.get(f"{url}/jobs/overview").json()["jobs"]]
        return sum(state in ("FINISHED", "FAILED", "CANCELED") for state in states)

    def after(count: int, what: str, act: Callable[[], object]) -> None:
        until(what, lambda: ended() >= count, 240)
        act()

    after(1, "first end", lambda: _signal_a_runner(first, signal.SIGKILL))
    after(2, "a second end", lambda: _signal_a_runner(second, signal.SIGSTOP))
    after(3, "a third end", lambda: [w.kill() for w in _children(first, "flintlock.host.processes.watchdog")])
    after(5, "a fifth end", lambda: [jvm.kill() for jvm in _children(first, "org.apache.spark.deploy.SparkSubmit")])
    after(8, "an eighth end", lambda: second.send_signal(signal.SIGSTOP))
    until("the loss", lambda: rest_requests.get(f"{url}/overview").json()["taskmanagers"] <= 1, 60)
    second.send_signal(signal.SIGCONT)
    after(11, "an eleventh end", first.kill)
    first.wait()
    cluster.start_taskmanager()
    until("all ends", lambda: ended() == JOBS, 300)

    for number, job_id in enumerate(jobs):
        seen = rest_requests.get(f"{url}/jobs/{job_id}/attempts").json()
        kinds = [failure["kind"] for failure in seen["failures"]]
        if seen["status"] != "FINISHED":
            assert number % 2 == 0, f"{job_id} has a strategy, and ended {seen['status']}: {kinds}"
            own = [kind for kind in kinds if kind not in ("engine lost", "TaskManager lost")]
            assert own or len(kinds) > 3, f"{job_id} had no reason to end {seen['status']}: {kinds}"
    assert (
        sum(rest_requests.get(f"{url}/jobs/{job_id}/status").json()["status"] == "FINISHED" for job_id in jobs)
        >= JOBS - 4
    )

    family = [child for tm in (cluster.taskmanager, second) if tm for child in psutil.Process(tm.pid).children(True)]
    cluster.stop()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []

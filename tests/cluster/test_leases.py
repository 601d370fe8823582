"""Leases with real processes and real Spark: whatever is frozen or killed, no work goes on that its leader gave up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, running_processes, until

from flintlock.testing import rest_requests

LEASE_S = 6.0
JVM = "org.apache.spark.deploy.SparkSubmit"
WATCHDOG = "flintlock.host.processes.watchdog"
LOST, REGISTERED = "taskmanager-lost", "taskmanager-registered"
LONG = "SELECT count(*) AS n FROM range(1000000000000000) WHERE sqrt(id) < 0"
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "5"}

#: A script whose own child has left its session: only its mark in the environment shows where it came from.
DAEMON = """
import subprocess, threading
subprocess.Popen(["sleep", "4321"], start_new_session=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A cluster with a short lease; each test leaves it serving."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLINTLOCK_HEARTBEAT_INTERVAL", "500 ms")
        environment.setenv("FLINTLOCK_HEARTBEAT_TIMEOUT", f"{LEASE_S} s")
        environment.setenv("FLINTLOCK_HIGH_AVAILABILITY_EMBEDDED_SILENCE_TIMEOUT", "2 s")
        environment.setenv("FLINTLOCK_HIGH_AVAILABILITY_RECOVERY_TIME", "2 s")
        with running_processes(tmp_path_factory.mktemp("leases")) as processes:
            yield processes
            if processes.taskmanager is not None and processes.taskmanager.poll() is None:
                processes.taskmanager.send_signal(signal.SIGCONT)


def _submit(url: str, query: str, **config: str) -> str:
    steps: dict[str, Any] = {"one": {"sql": query}, "rows": {"result": {}, "inputs": ["one"]}}
    answer = rest_requests.post(f"{url}/jobs", json={"name": "job", "parallelism": 1, "steps": steps, "config": config})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["jobid"])


def _attempts(url: str, job_id: str) -> list[dict[str, Any]]:
    return list(rest_requests.get(f"{url}/jobs/{job_id}/attempts").json()["regions"][0]["attempts"])


def _await_spark_work(url: str, job_id: str, attempt: int = 1) -> None:
    """Wait until Spark works for at least so many attempts' last one."""

    def working() -> bool:
        attempts = _attempts(url, job_id)
        return len(attempts) >= attempt and attempts[-1]["metrics"]["tasks-total"] > 0

    until("Spark's work", working, 180)


def _cancel(url: str, job_id: str) -> None:
    rest_requests.patch(f"{url}/jobs/{job_id}")
    until("the end", lambda: rest_requests.get(f"{url}/jobs/{job_id}/status").json()["status"] == "CANCELED", 60)


def _family(own: Processes, name: str = "") -> list[psutil.Process]:
    """Return the TaskManager's processes whose command line has this in it."""
    assert own.taskmanager is not None
    children = psutil.Process(own.taskmanager.pid).children(recursive=True)
    return [child for child in children if name in " ".join(child.cmdline())]


def _runners(own: Processes) -> list[psutil.Process]:
    (template,) = _family(own, "flintlock.spark.runner.template")[:1]
    return template.children()


def _watchdog(own: Processes) -> psutil.Process:
    return _family(own, WATCHDOG)[0]


def _instance(own: Processes) -> str:
    """Return the instance that the TaskManager has registered under last."""
    return str(own.log_events("taskmanager", "registered-with-leader")[-1]["instance"])


def _is_gone(process: psutil.Process) -> bool:
    """Return whether it has ended; it stays a zombie while its parent is frozen."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _serves(own: Processes) -> None:
    """A small job runs to its end."""
    job_id = _submit(own.url, "SELECT 1 AS one", **RETRY)
    ended = rest_requests.get(f"{own.url}/jobs/{job_id}/execution-result?wait=120s", timeout=130).json()
    assert ended["job-execution-result"]["application-status"] == "SUCCEEDED", own.logs()


def _busy_runner(own: Processes) -> psutil.Process:
    """Return the runner that has a task: it is the oldest, the others wait."""
    return min(_runners(own), key=lambda runner: runner.create_time())


def test_a_frozen_taskmanager_loses_its_work_before_the_leader_gives_it_up(own: Processes) -> None:
    """Engine and runners are killed from outside; awake again, it serves as a new instance with a fresh engine."""
    assert own.taskmanager is not None
    job_id = _submit(own.url, LONG, **RETRY)
    _await_spark_work(own.url, job_id)
    instance, watchdog = _instance(own), _watchdog(own)
    work = [child for child in _family(own) if child.pid != watchdog.pid]
    assert len(work) >= 4

    own.taskmanager.send_signal(signal.SIGSTOP)
    until("the end of its work", lambda: all(map(_is_gone, work)), LEASE_S + 30)
    lost = until("the loss", lambda: own.log_events("jobmanager", LOST), 60)
    own.taskmanager.send_signal(signal.SIGCONT)

    (killed,) = until("the line of the watchdog", lambda: own.log_events("taskmanager", "watchdog-killed"), 60)
    assert datetime.fromisoformat(killed["timestamp"]) < datetime.fromisoformat(lost[-1]["timestamp"])
    assert "silent" in lost[-1]["reason"]
    own.await_slots()
    until("a new instance", lambda: _instance(own) != instance, 60)
    _await_spark_work(own.url, job_id, attempt=2)
    assert len(_attempts(own.url, job_id)) == 2
    assert _watchdog(own).pid == watchdog.pid
    _cancel(own.url, job_id)
    _serves(own)


def _await_idleness(own: Processes) -> None:
    """Wait for two heartbeats that name no task: what has finished is then cleared away as well."""
    seen: set[int] = set()

    def idle() -> bool:
        (one,) = rest_requests.get(f"{own.url}/taskmanagers").json()["taskmanagers"]
        metrics = rest_requests.get(f"{own.url}/taskmanagers/{one['id']}/metrics?get=running_tasks").json()
        if any(float(metric["value"]) for metric in metrics):
            seen.clear()
        else:
            seen.add(one["timeSinceLastHeartbeat"])
        return len(seen) > 3

    until("idleness", idle, 60)


def test_an_idle_engine_is_not_killed_without_a_leader(own: Processes) -> None:
    """Frozen for longer than a lease with nothing to do, it comes back with the same engine."""
    assert own.taskmanager is not None
    own.await_slots()
    _await_idleness(own)
    engine, registered = _family(own, JVM)[0].pid, len(own.log_events("jobmanager", REGISTERED))
    own.taskmanager.send_signal(signal.SIGSTOP)
    until("silence", lambda: rest_requests.get(f"{own.url}/overview").json()["slots-total"] == 0, LEASE_S + 30)
    own.taskmanager.send_signal(signal.SIGCONT)
    own.await_slots()

    again = until("the line of it", lambda: own.log_events("jobmanager", REGISTERED)[registered:], 60)
    assert len(again) == 1
    assert _family(own, JVM)[0].pid == engine
    _serves(own)


def test_a_killed_watchdog_is_replaced_and_nothing_else_happens(own: Processes) -> None:
    """Nor by one that is stopped while work goes on."""
    job_id = _submit(own.url, LONG)
    _await_spark_work(own.url, job_id)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        former = _watchdog(own)
        former.send_signal(number)
        until("another", lambda former=former: _is_gone(former) and bool(_family(own, WATCHDOG)), 30)

    assert len(_attempts(own.url, job_id)) == 1
    _cancel(own.url, job_id)


def test_a_stopped_runner_is_killed_and_its_task_runs_again(own: Processes) -> None:
    """By the job's strategy, and with the cause in its history."""
    job_id = _submit(own.url, LONG, **RETRY)
    _await_spark_work(own.url, job_id)
    runner = _busy_runner(own)
    runner.send_signal(signal.SIGSTOP)
    _await_spark_work(own.url, job_id, attempt=2)

    assert _is_gone(runner)
    assert "was stopped" in str(rest_requests.get(f"{own.url}/jobs/{job_id}/exceptions").json())
    _cancel(own.url, job_id)


def test_a_forced_cancel_ends_a_job_whose_runner_and_taskmanager_are_stopped(own: Processes) -> None:
    """At once, with a report of what may be left; awake again, the TaskManager ends it and serves."""
    assert own.taskmanager is not None
    job_id = _submit(own.url, LONG)
    _await_spark_work(own.url, job_id)
    runner = _busy_runner(own)
    runner.send_signal(signal.SIGSTOP)
    own.taskmanager.send_signal(signal.SIGSTOP)
    try:
        assert rest_requests.patch(f"{own.url}/jobs/{job_id}").status_code == 202
        assert rest_requests.get(f"{own.url}/jobs/{job_id}/status").json()["status"] == "CANCELLING"
        assert rest_requests.patch(f"{own.url}/jobs/{job_id}?force=true").status_code == 202
        until(
            "the end", lambda: rest_requests.get(f"{own.url}/jobs/{job_id}/status").json()["status"] == "CANCELED", 60
        )
        assert psutil.Process(own.taskmanager.pid).status() == psutil.STATUS_STOPPED
    finally:
        own.taskmanager.send_signal(signal.SIGCONT)

    assert "given up by force: TaskManager" in str(rest_requests.get(f"{own.url}/jobs/{job_id}/exceptions").json())
    until("the runner's end", lambda: _is_gone(runner), 60)
    own.await_slots()
    _serves(own)


def test_a_stopped_engine_is_restarted_and_its_task_runs_again(own: Processes) -> None:
    """Its JVM is killed; the failure says that it was stopped."""
    job_id = _submit(own.url, LONG, **RETRY)
    _await_spark_work(own.url, job_id)
    (jvm,) = _family(own, JVM)
    jvm.send_signal(signal.SIGSTOP)
    _await_spark_work(own.url, job_id, attempt=2)

    assert _is_gone(jvm)
    assert f"process {jvm.pid} was stopped" in str(rest_requests.get(f"{own.url}/jobs/{job_id}/exceptions").json())
    _cancel(own.url, job_id)


def test_a_second_taskmanager_with_the_same_index_says_so_and_disturbs_nothing(own: Processes) -> None:
    assert own.taskmanager is not None
    family = _family(own)

    second = own.start_another_taskmanager(0)

    assert second.wait(60) == 4
    assert f"is in use by process {own.taskmanager.pid}: give each process" in own.logs()
    assert not any(map(_is_gone, family))
    own.await_slots()


def test_nothing_is_left_of_a_killed_taskmanager(own: Processes, tmp_path: Path) -> None:
    """Not its watchdog, even if that was stopped, and not what user code has started and hidden."""
    assert own.taskmanager is not None
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    assert flintlock("run", "-m", own.url, "-d", script, cwd=tmp_path).returncode == 0
    until("the daemon", lambda: _family(own, "4321"), 60)
    family = _family(own)
    assert len(family) >= 6
    _watchdog(own).send_signal(signal.SIGSTOP)
    os.kill(own.taskmanager.pid, signal.SIGKILL)
    own.taskmanager.wait()

    until("their end", lambda: all(map(_is_gone, family)), 10)

"""Processes are inspected, identified and killed, alone and in whole trees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import psutil
import pytest

from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes.process import LocalProcesses, start_time_of
from flintlock.host.processes.process_tree import kill_trees

#: Forks a hundred times, each child leaving its parent with one of its own; prints a line when it has begun.
GROWING_TREE = """
import os, sys, time
print("begun", flush=True)
for _ in range(100):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            time.sleep(60)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.001)
time.sleep(60)
"""


def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    end_s, pause = time.monotonic() + limit_s, Event()
    while not condition():
        assert time.monotonic() < end_s, "the condition did not become true"
        pause.wait(0.02)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_stopped_process_is_seen_and_one_that_goes_on_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    processes = LocalProcesses()
    assert not processes.is_stopped(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: processes.is_stopped(sleeper.pid))
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: not processes.is_stopped(sleeper.pid))


def test_a_stopped_process_can_be_killed(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    LocalProcesses().kill(sleeper.pid)

    assert sleeper.wait(10) == -signal.SIGKILL


def test_a_process_that_has_ended_is_harmless(sleeper: subprocess.Popen[bytes]) -> None:
    processes = LocalProcesses()
    sleeper.kill()
    sleeper.wait()

    assert not processes.is_stopped(sleeper.pid)
    assert processes.resident_bytes(sleeper.pid) == 0
    processes.kill(sleeper.pid)


def test_memory_is_what_the_system_says() -> None:
    own = os.getpid()

    assert LocalProcesses().resident_bytes(own) == pytest.approx(psutil.Process(own).memory_info().rss, rel=0.2)


def test_all_processes_see_the_same_time() -> None:
    """The watchdog compares it with a deadline that the TaskManager computed."""
    before_s = boot_time_s()
    command = "from flintlock.host.boot_clock import boot_time_s as b; print(b())"
    there = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True, text=True)

    assert before_s < float(there.stdout) < boot_time_s()


def test_a_tree_that_grows_while_it_is_killed_is_killed_whole(tmp_path: Path) -> None:
    """All are stopped before one is killed, and the search is repeated until it finds no new one."""
    script = tmp_path / f"growing-{os.getpid()}.py"
    script.write_text(GROWING_TREE)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"begun\n"
        until(lambda: len(psutil.Process(first.pid).children(recursive=True)) > 5)
        start_time = start_time_of(first.pid)
        assert start_time is not None

        killed = kill_trees({first.pid: start_time})

        assert first.wait(10) == -signal.SIGKILL
    assert len(killed) > 5
    assert not [one for one in psutil.process_iter() if script.name in " ".join(_command(one))]


def test_only_the_recorded_tree_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    """A recorded pid that another process has by now is left alone, and so are those that are excluded."""
    start_time = start_time_of(sleeper.pid)
    assert start_time is not None

    assert kill_trees({sleeper.pid: "another boot:1"}) == frozenset()
    assert kill_trees({sleeper.pid: start_time}, exclude=(sleeper.pid,)) == frozenset()
    assert sleeper.poll() is None
    assert kill_trees({sleeper.pid: start_time}) == frozenset({sleeper.pid})


def _command(process: psutil.Process) -> list[str]:
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.Error:
        return []

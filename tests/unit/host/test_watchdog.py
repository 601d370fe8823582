"""The watchdog as a process: what it kills, when, and that it ends with its TaskManager."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import psutil
import pytest

from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes.children import record_child
from flintlock.host.processes.process import LocalProcesses
from flintlock.host.processes.process_tree import TAG_VARIABLE
from flintlock.host.processes.watchdog import DEADLINE, DeadlineReader

#: A process tree: a child in a session of its own, which outlives its parent.
TREE = """
import subprocess, sys, threading
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(child.pid, flush=True)
threading.Event().wait()
"""

#: Stands for a TaskManager: starts a watchdog, arms it, and waits to be killed.
OWNER = """
import os, struct, subprocess, sys
watchdog = subprocess.Popen(
    [sys.executable, "-m", "flintlock.host.processes.watchdog", sys.argv[1], "", str(os.getpid())],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
)
watchdog.stdin.write(struct.pack("<d", float("inf")))
watchdog.stdin.flush()
watchdog.stdout.read(8)
print(watchdog.pid, flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    end_s, pause = boot_time_s() + limit_s, Event()
    while not condition():
        assert boot_time_s() < end_s, "the condition did not become true"
        pause.wait(0.02)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Watched:
    """A watchdog, and this process in the place of a TaskManager."""

    def __init__(self, run_dir: Path, tag: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flintlock.host.processes.watchdog", str(run_dir), tag, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def send(self, *deadlines_s: float) -> None:
        """Send all of these at once, and wait for the acknowledgement of the last."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"".join(map(DEADLINE.pack, deadlines_s)))
        self.process.stdin.flush()
        assert self.process.stdout.read(DEADLINE.size) == DEADLINE.pack(deadlines_s[-1])

    def close(self) -> None:
        """Close its pipe and wait for its end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        assert self.process.wait(30) == 0
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def sleeper(run_dir: Path, name: str = "engine") -> Generator[subprocess.Popen[bytes]]:
    """A recorded process in a session of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        record_child(run_dir, name, process.pid)
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.process.kill()
    watched.process.wait()
    for pipe in (watched.process.stdin, watched.process.stdout):
        if pipe is not None:
            pipe.close()


def test_what_is_recorded_is_killed_when_the_lease_ends(watched: Watched, tmp_path: Path) -> None:
    """Not before, and only once: the watchdog goes on, and the next engine is safe until its own lease ends."""
    with sleeper(tmp_path) as first:
        deadline_s = boot_time_s() + 0.5
        watched.send(deadline_s)
        assert first.wait(30) == -signal.SIGKILL
        assert boot_time_s() >= deadline_s
    with sleeper(tmp_path) as second:
        watched.send(math.inf)
        assert second.poll() is None
        watched.send(boot_time_s())
        assert second.wait(30) == -signal.SIGKILL


def test_a_renewal_keeps_everything_alive(watched: Watched, tmp_path: Path) -> None:
    """Only the newest deadline counts, also of those that were read late."""
    with sleeper(tmp_path) as engine:
        watched.send(boot_time_s() - 1, boot_time_s() + 600)
        watched.send(boot_time_s() - 1, math.inf)
        watched.send(math.inf)  # it acknowledges only after it has handled the ones before

        assert engine.poll() is None


def test_everything_is_killed_when_the_taskmanager_is_gone(watched: Watched, tmp_path: Path) -> None:
    """It notices the end of the pipe; then the watchdog ends too."""
    with sleeper(tmp_path, "engine") as engine, sleeper(tmp_path, "template") as template:
        watched.send(math.inf)
        watched.close()

        assert [engine.wait(30), template.wait(30)] == [-signal.SIGKILL] * 2
    assert list(tmp_path.iterdir()) == []


def test_stopped_processes_are_killed_too(watched: Watched, tmp_path: Path) -> None:
    """SIGKILL ends a frozen engine, too."""
    with sleeper(tmp_path) as engine:
        engine.send_signal(signal.SIGSTOP)
        until(lambda: LocalProcesses().is_stopped(engine.pid))
        watched.send(boot_time_s())

        assert engine.wait(30) == -signal.SIGKILL


def test_a_whole_tree_is_killed(watched: Watched, tmp_path: Path) -> None:
    """Processes that left their parent's session included."""
    command = [sys.executable, "-c", TREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        record_child(tmp_path, "template", parent.pid)
        watched.send(boot_time_s())

        assert parent.wait(30) == -signal.SIGKILL
        until(lambda: is_gone(child))


def test_a_tagged_process_is_found_when_its_parent_is_dead(tmp_path: Path) -> None:
    """The kernel has killed the recorded process; what it had started is a child of init by now."""
    watched = Watched(tmp_path, tag="one-of-a-kind")
    environment = {**os.environ, TAG_VARIABLE: "one-of-a-kind"}
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, TAG_VARIABLE: "another"})
    try:
        command = [sys.executable, "-c", TREE]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.kill()
        assert not is_gone(child)
        watched.close()

        until(lambda: is_gone(child))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_watchdog_never_outlives_its_taskmanager(tmp_path: Path) -> None:
    """Not even one that was stopped: the kernel wakes it, and it kills what is left."""
    with (
        sleeper(tmp_path) as engine,
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner,
    ):
        assert owner.stdout is not None
        watchdog = int(owner.stdout.readline())
        os.kill(watchdog, signal.SIGSTOP)
        until(lambda: LocalProcesses().is_stopped(watchdog))
        owner.kill()

        assert engine.wait(30) == -signal.SIGKILL
        until(lambda: is_gone(watchdog))


def test_signals_meant_for_the_taskmanager_do_not_end_it(watched: Watched, tmp_path: Path) -> None:
    """A service manager signals every process of a service; the watchdog stays until the end."""
    watched.send(math.inf)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        watched.process.send_signal(number)
    with sleeper(tmp_path) as engine:
        watched.send(boot_time_s())
        assert engine.wait(30) == -signal.SIGKILL


def test_deadlines_are_read_from_pieces_of_any_size() -> None:
    """Only whole ones count, and of several the newest."""
    reader, data = DeadlineReader(), DEADLINE.pack(1.0) + DEADLINE.pack(2.0) + DEADLINE.pack(3.0)

    assert reader.feed(data[:3]) is None
    assert reader.feed(data[3:20]) == 2.0
    assert reader.feed(b"") is None
    assert reader.feed(data[20:]) == 3.0

"""Children that end with their parent, and leftovers that are found again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from flintlock.host.processes.children import ChildRecord, forget_child, reap_leftovers, record_child
from flintlock.host.processes.process import start_time_of

#: Starts a child that is bound to it and prints its pid, then waits to be killed.
PARENT = """
import os, sys
from pathlib import Path
from flintlock.host.processes.children import spawn
child = spawn(["sleep", "600"], environment=os.environ, directory=Path("/"), output=2)
print(child.pid, flush=True)
sys.stdin.read()
"""

#: A process of our own that binds itself to its parent; run without an argument it is the parent of one.
OWN = """
import os, subprocess, sys, threading
if sys.argv[1:]:
    from flintlock.host.processes.parent_death import die_with_parent
    die_with_parent(int(sys.argv[1]))
    print(os.getpid(), flush=True)
else:
    subprocess.Popen([sys.executable, __file__, str(os.getpid())])
threading.Event().wait()
"""


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


def test_a_spawned_program_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)

    assert psutil.wait_procs([child], timeout=5)[1] == []


def test_a_process_that_binds_itself_dies_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)

    assert psutil.wait_procs([child], timeout=5)[1] == []


def test_a_process_whose_parent_has_died_before_ends_at_once() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    bound = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from flintlock.host.processes.parent_death import die_with_parent as d; d({gone.pid}); print(1)",
        ],
        capture_output=True,
        timeout=30,
        check=True,
    )

    assert bound.stdout == b""


def test_leftovers_are_killed_and_forgotten(tmp_path: Path) -> None:
    left, other = sleeper(), sleeper()
    try:
        assert record_child(tmp_path, "engine", left.pid) is not None

        assert [record.pid for record in reap_leftovers(tmp_path)] == [left.pid]

        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None
        assert list(tmp_path.iterdir()) == []
        assert reap_leftovers(tmp_path) == ()
    finally:
        other.kill()
        other.wait()


def test_a_pid_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    process = sleeper()
    try:
        stale = ChildRecord(name="engine", pid=process.pid, start_time="another boot:1")
        (tmp_path / f"engine-{process.pid}.child").write_bytes(msgspec.json.encode(stale))

        assert reap_leftovers(tmp_path) == ()

        assert process.poll() is None
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()


def test_records_of_processes_that_have_ended_are_cleared(tmp_path: Path) -> None:
    process = sleeper()
    record_child(tmp_path, "jvm", process.pid)
    process.kill()
    process.wait()
    (tmp_path / "torn.child").write_text('{"name": "jv')

    assert reap_leftovers(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_record_can_be_forgotten_twice(tmp_path: Path) -> None:
    path = record_child(tmp_path, "jvm", os.getpid())

    forget_child(path)
    forget_child(path)

    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_directory_has_no_leftovers(tmp_path: Path) -> None:
    assert reap_leftovers(tmp_path / "never") == ()


def test_a_start_time_lasts_as_long_as_its_process() -> None:
    process = sleeper()
    first = start_time_of(process.pid)

    assert first is not None
    assert start_time_of(process.pid) == first
    process.kill()
    process.wait()
    assert start_time_of(process.pid) is None

"""The machines of `make chaos`: cuts, full and stalled disks do what they say, and nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.faults import PROCESS_FAULTS, kinds
from tests.chaos.machines import Permissions, find_permissions, isolated
from tests.cluster.processes import ROOT, until

_PERMITTED = """
import sys
from pathlib import Path
from tests.chaos.machines import find_permissions
permissions = find_permissions(Path(sys.argv[1]))
sys.exit(str(permissions.missing[sys.argv[2]]) if sys.argv[2] in permissions.missing else 0)
"""
_CUT = """
import subprocess, sys
from tests.chaos.network import bridged_network

RECEIVE = '''
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind((sys.argv[1], 5000))
    own.settimeout(float(sys.argv[2]))
    print("ready", flush=True)
    try:
        print(own.recv(100).decode())
    except TimeoutError:
        print("nothing")
'''
SEND = '''
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.sendto(b"packet", (sys.argv[1], 5000))
'''

def delivered(sender, receiver, limit_s):
    command = [*receiver.enter, sys.executable, "-c", RECEIVE, receiver.address, str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout.readline() == "ready\\n"
        subprocess.run([*sender.enter, sys.executable, "-c", SEND, receiver.address], check=True)
        return receiving.stdout.read() == "packet\\n"

with bridged_network() as network:
    first, second = network.add_host("first"), network.add_host("second")
    assert delivered(first, second, 10)
    first.stop_sending(second)
    assert not delivered(first, second, 0.5)
    assert delivered(second, first, 10)
    first.resume_sending(second)
    assert delivered(first, second, 10)
"""
_FULL = """
import errno, sys
from pathlib import Path
from tests.chaos import disks

with getattr(disks, sys.argv[2])(Path(sys.argv[1], "disk")) as disk:
    file = disk.path / "file"
    disk.fill()
    try:
        file.write_bytes(b"x" * 8192)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        raise AssertionError("there was room")
    disk.empty()
    file.write_bytes(b"x" * 8192)
"""
_STALLED = """
import subprocess, sys
from pathlib import Path
from tests.chaos.disks import ext4_disk

with ext4_disk(Path(sys.argv[1], "disk")) as disk:
    disk.stall()
    writing = subprocess.Popen(["sh", "-c", 'echo written > "$1"', "sh", str(disk.path / "file")])
    print(writing.pid, flush=True)
    try:
        writing.wait(0.5)
    except subprocess.TimeoutExpired:
        pass
    else:
        raise AssertionError("it was written")
    if sys.argv[2] == "wait":
        sys.stdin.read()
    disk.resume()
    assert writing.wait() == 0
    assert (disk.path / "file").read_text() == "written\\n"
"""


def command_inside(script: str, *arguments: str) -> list[str]:
    command, reason = isolated([sys.executable, "-c", script, *arguments])
    if reason:
        pytest.skip(reason)
    return command


def run_inside(script: str, *arguments: str) -> None:
    done = subprocess.run(command_inside(script, *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def require(what: str, scratch: Path) -> None:
    command = command_inside(_PERMITTED, str(scratch), what)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())


def test_a_one_way_cut_loses_the_packets_of_one_direction_until_it_ends(tmp_path: Path) -> None:
    require("cuts", tmp_path)
    run_inside(_CUT)


@pytest.mark.parametrize(("kind", "what"), [("tmpfs_disk", "full disks"), ("ext4_disk", "stalled disks")])
def test_a_full_disk_refuses_what_is_written_until_it_is_emptied(tmp_path: Path, kind: str, what: str) -> None:
    require(what, tmp_path)
    run_inside(_FULL, str(tmp_path), kind)


def test_a_stalled_disk_lets_writes_wait_until_it_is_resumed(tmp_path: Path) -> None:
    require("stalled disks", tmp_path)
    run_inside(_STALLED, str(tmp_path), "resume")


def test_a_harness_that_is_killed_leaves_no_process_no_mount_and_no_loop_device(tmp_path: Path) -> None:
    """The disk is stalled at that moment: the write that waits ends, and so the disk is released."""
    require("stalled disks", tmp_path / "tried")
    home = tmp_path / "home"
    home.mkdir()
    command = command_inside(_STALLED, str(home), "wait")
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        writing = int(harness.stdout.readline())
        until("the write that waits", lambda: _state(writing) == "D", 10)
        os.kill(harness.pid, signal.SIGKILL)
        harness.wait()
    until("the end of the write", lambda: _state(writing) == "", 10)
    until("the end of the loop device", lambda: str(home) not in _loop_devices(), 10)
    assert list(home.iterdir()) == [home / "disk"]
    assert list((home / "disk").iterdir()) == []


def test_what_is_not_permitted_is_left_out_with_its_reason(tmp_path: Path) -> None:
    permissions = find_permissions(tmp_path, "Operation not permitted")

    assert set(permissions.missing) == {"cuts", "full disks", "stalled disks"}
    assert set(permissions.missing.values()) == {"Operation not permitted"}
    assert kinds(permissions) == PROCESS_FAULTS
    without_root = kinds(Permissions("", "", "no loop device"))
    assert len(PROCESS_FAULTS) < len(without_root) < len(kinds(Permissions("", "", "")))
    assert not any("stalled" in str(fault) for fault in without_root)


def _state(pid: int) -> str:
    """Return the state of a process, as `ps` shows it; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _loop_devices() -> str:
    return subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True).stdout

"""Log files are replaced when they are full, and only so many remain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flintlock.host.logs.log_rotation import RotationTime, log_of, rotate_copied, rotate_own


def append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def contents(path: Path) -> dict[str, str]:
    return {found.name: found.read_text() for found in sorted(path.parent.glob(f"{path.name}*"))}


def test_own_log_continues_in_a_new_file_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobmanager.log"
    descriptor = append(path)
    for number in range(4):
        os.write(descriptor, f"{number}".encode() * 10)
        assert rotate_own(path, [descriptor], max_bytes=10, keep=2)
    os.write(descriptor, b"last")
    os.close(descriptor)

    assert contents(path) == {"jobmanager.log": "last", "jobmanager.log.1": "3" * 10, "jobmanager.log.2": "2" * 10}
    assert path.stat().st_mode & 0o777 == 0o600


def test_log_of_another_process_is_copied_and_emptied_under_it(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    descriptor = append(path)
    for number in range(3):
        os.write(descriptor, f"{number}".encode() * 10)
        assert rotate_copied(path, max_bytes=10, keep=1)
    os.write(descriptor, b"last")
    os.close(descriptor)

    assert contents(path) == {"engine.log": "last", "engine.log.1": "2" * 10}


def test_a_log_is_replaced_after_the_interval_whatever_its_size(tmp_path: Path) -> None:
    path = tmp_path / "jobmanager.log"
    path.write_text("short")
    age = RotationTime(60.0, now_s=1000.0)
    assert not rotate_copied(path, max_bytes=age.limit(100, 1059.0), keep=2)

    assert rotate_copied(path, max_bytes=age.limit(100, 1060.0), keep=2)
    age.rotated(1060.0)

    path.write_text("more")
    assert not rotate_copied(path, max_bytes=age.limit(100, 1100.0), keep=2)
    path.write_text("")
    assert not rotate_copied(path, max_bytes=age.limit(100, 2000.0), keep=2), "an empty file is not replaced"
    assert contents(path) == {"jobmanager.log": "", "jobmanager.log.1": "short"}
    assert RotationTime(0.0, now_s=0.0).limit(100, 1e9) == 100


def test_log_that_is_not_full_or_not_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert not rotate_own(path, [], max_bytes=10, keep=3)
    assert not rotate_copied(path, max_bytes=10, keep=3)
    path.write_text("short")
    assert not rotate_own(path, [], max_bytes=10, keep=3)
    assert not rotate_copied(path, max_bytes=10, keep=3)

    assert contents(path) == {"a.log": "short"}


def test_without_former_files_a_full_log_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    descriptor = append(path)
    os.write(descriptor, b"x" * 10)
    assert rotate_own(path, [descriptor], max_bytes=10, keep=0)
    os.write(descriptor, b"y" * 10)
    assert rotate_copied(path, max_bytes=10, keep=0)
    os.close(descriptor)

    assert contents(path) == {"a.log": ""}


def test_files_of_a_larger_number_are_removed_once_fewer_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for name, text in {"a.log": "new" * 10, "a.log.1": "1", "a.log.2": "2", "a.log.3": "3", "a.log.4": "4"}.items():
        (tmp_path / name).write_text(text)

    rotate_copied(path, max_bytes=10, keep=2)

    assert contents(path) == {"a.log": "", "a.log.1": "new" * 10, "a.log.2": "1"}


def test_only_a_file_of_the_directory_is_a_log(tmp_path: Path) -> None:
    logs = tmp_path / "log"
    logs.mkdir()
    inside, outside = append(logs / "a.log"), append(tmp_path / "b.log")
    reader, writer = os.pipe()
    try:
        assert log_of(logs, inside) == logs / "a.log"
        assert log_of(logs, outside) is None
        assert log_of(logs, writer) is None
        assert log_of(tmp_path / "missing", inside) is None
    finally:
        for descriptor in (inside, outside, reader, writer):
            os.close(descriptor)


def test_a_server_process_rotates_what_it_prints(tmp_path: Path) -> None:
    """A real process with its output in a file, as `flintlock cluster start` starts it."""
    program = """
import asyncio, sys
from pathlib import Path
from flintlock.config.configuration import Configuration
from flintlock.entrypoints.log_files import rotating_logs

async def main():
    directory = Path(sys.argv[1])
    print("x" * 5000, flush=True)
    configuration = Configuration({"env.log.size": "4 kb", "env.log.max": "1"})
    async with rotating_logs(configuration, directory):
        while not (directory / "a.log.1").exists():
            await asyncio.sleep(0.01)
        print("after", flush=True)

asyncio.run(main())
"""
    with (tmp_path / "a.log").open("ab") as output:
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=output, stderr=output, check=True)

    assert contents(tmp_path / "a.log") == {"a.log": "after\n", "a.log.1": "x" * 5000 + "\n"}

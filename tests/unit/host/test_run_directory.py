"""A run directory has one process at a time, and an id that outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flintlock.host.files.run_directory import locked_run_directory, permanent_id
from flintlock.model.errors import Refused

HOLDER = """
import sys
from pathlib import Path
from flintlock.host.files.run_directory import locked_run_directory
with locked_run_directory(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_directory_that_another_process_holds_is_refused_with_its_pid_and_not_changed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        before = {path.name: path.read_bytes() for path in run_dir.iterdir()}

        with (
            pytest.raises(Refused, match=f"is in use by process {holder.pid}: .* --index"),
            locked_run_directory(run_dir),
        ):
            pytest.fail("it was locked twice")

        assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before
        holder.kill()
    with locked_run_directory(run_dir):  # the kernel has released it
        assert (run_dir / "lock").read_text() == str(os.getpid())


def test_children_do_not_hold_the_directory(tmp_path: Path) -> None:
    with locked_run_directory(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with child, locked_run_directory(tmp_path):
        assert child.stdin is not None
        child.stdin.close()


def test_the_id_is_random_and_stays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (permanent_id(tmp_path / name) for name in ("a", "b"))

    assert first != second
    assert permanent_id(tmp_path / "a") == first


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe", b"../../../etc"])
def test_a_damaged_id_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "id").write_bytes(damaged)
    assert permanent_id(tmp_path).isalnum()

"""A log line that cannot be written is dropped and counted; it ends nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from flintlock.host.logs.log_output import LogOutput, QueuedLogOutput

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def fill(writer: int) -> None:
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            continue


def lines(reader: int) -> list[str]:
    return os.read(reader, 1 << 20).decode().lstrip(".").split("\n")


def test_lines_are_written_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output = LogOutput(writer)
    output.write("one")
    output.info("two \ud800")
    assert lines(reader) == ["one", "two \\ud800", ""]
    assert output.dropped == 0


@full
def test_a_line_that_cannot_be_written_is_dropped_and_counted() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        output = LogOutput(descriptor)
        output.write("one")
        output.write("two")
    finally:
        os.close(descriptor)
    assert output.dropped == 2


def test_once_writing_works_again_one_line_says_how_many_are_missing(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output = LogOutput(writer)
    fill(writer)
    for number in range(5):
        output.write(f"lost {number}")
    lines(reader)
    output.write("here")
    output.write("again")
    report, here, again, _ = lines(reader)
    found = json.loads(report)
    assert (found["event"], found["lines"], found["level"]) == ("log-lines-dropped", 5, "warning")
    assert "unavailable" in found["reason"]
    assert (here, again) == ("here", "again")
    assert output.dropped == 5


def test_a_line_that_was_cut_off_does_not_run_into_the_next_one(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output = LogOutput(writer)
    fill(writer)
    os.read(reader, 4096)  # room for a part of the line, only
    output.write("x" * 10_000)
    lines(reader)
    output.write("next")
    cut, report, following, _ = lines(reader)
    assert cut == ""
    assert json.loads(report)["lines"] == 1
    assert following == "next"


@pytest.fixture
def slow_pipe() -> Generator[tuple[int, int]]:
    """A pipe whose writer waits for its reader, as for a disk that stalls."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fill(writer)
    os.set_blocking(writer, True)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_log_that_takes_no_line_does_not_hold_up_its_writer(slow_pipe: tuple[int, int]) -> None:
    """Lines wait in their order; those that find the queue full are dropped, counted, and reported where they miss."""
    reader, writer = slow_pipe
    output = QueuedLogOutput(LogOutput(writer), max_lines=3)
    for number in range(8):
        output.write(f"line {number}")
    assert output.dropped == 5
    assert not output.flush(0.0)

    read = ""
    while "line 2\n" not in read:
        read += os.read(reader, 1 << 20).decode()
    assert output.flush(30)
    output.write("next")
    assert output.flush(30)
    report, following, _ = lines(reader)
    assert read.lstrip(".").split() == ["line", "0", "line", "1", "line", "2"]
    assert json.loads(report)["lines"] == 5
    assert following == "next"
    assert output.dropped == 5


def test_a_process_whose_log_takes_no_line_works_and_ends(tmp_path: Path, slow_pipe: tuple[int, int]) -> None:
    program = """
import sys, structlog
from flintlock.entrypoints.process import start
async def main(settings):
    structlog.get_logger().info("test-event")
    print("worked", flush=True)
sys.exit(start("test", main))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, "--state-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=slow_pipe[1], text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "worked\n")


@full
def test_a_process_whose_log_is_on_a_full_disk_goes_on_and_ends_as_it_should(tmp_path: Path) -> None:
    program = """
import sys, structlog
from flintlock.entrypoints.process import ProcessSettings, start
async def main(settings):
    for number in range(1000):
        structlog.get_logger().info("test-event", number=number)
    assert settings.log_output.flush(30)
    print(settings.log_output.dropped)
sys.exit(start("test", main))
"""
    with Path("/dev/full").open("wb") as nowhere:
        ended = subprocess.run(
            [sys.executable, "-c", program, "--state-dir", str(tmp_path)],
            stdout=subprocess.PIPE, stderr=nowhere, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 0
    assert int(ended.stdout) >= 1000


@full
def test_the_reason_of_a_failed_start_does_not_change_its_exit_code_when_it_cannot_be_written(tmp_path: Path) -> None:
    program = """
import sys
from flintlock.entrypoints.process import start
from flintlock.model.errors import Unavailable
async def main(settings):
    raise Unavailable("the port is taken")
sys.exit(start("test", main))
"""
    with Path("/dev/full").open("wb") as nowhere:
        ended = subprocess.run(
            [sys.executable, "-c", program, "--state-dir", str(tmp_path)], stderr=nowhere, check=False
        )
    assert ended.returncode == 4

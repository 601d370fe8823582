"""What Python functions print reaches the log of their own attempt, and never blocks or fails their task."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flintlock.spark.engine.python.worker_output import (
    PIPES_VARIABLE,
    AttemptPipes,
    WorkerStream,
    pipe_name,
    user_of_tags,
)
from flintlock.spark.runner.output_pipe import OutputPipe, name_pipe, remove_pipe

APPLE = "flintlock-00000000-0000-0000-0000-00000000000a"
PEAR = "flintlock-00000000-0000-0000-0000-00000000000b"


class Worker:
    """A stream of a worker whose current task belongs to `user`; the engine's log is a pipe, too."""

    def __init__(self, directory: Path) -> None:
        self.user: str | None = None
        self._engine_log, log = os.pipe()
        os.set_blocking(self._engine_log, False)
        self.stream = WorkerStream(AttemptPipes(str(directory), wait_s=0.01), log, lambda: self.user)

    def prints(self, user: str | None, text: str) -> None:
        self.user = user
        assert self.stream.write(text.encode()) == len(text)

    def engine_log(self) -> bytes:
        return read(self._engine_log)

    def close(self) -> None:
        os.close(self._engine_log)
        os.close(self.stream.fileno())


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""


@pytest.fixture
def worker(tmp_path: Path) -> Generator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.close()


@contextmanager
def attempt(directory: Path, user: str) -> Generator[int]:
    """Yield the descriptor from which the output of an attempt is read."""
    path = directory / pipe_name(user)
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield reader
    finally:
        os.close(reader)


def test_the_operation_of_a_task_names_its_attempt() -> None:
    tag = f"SparkConnect_OperationTag_User_{APPLE}_Session_s_Operation_o"
    assert user_of_tags(f"mine,{tag}") == APPLE
    assert user_of_tags(f"mine{tag}") is None
    assert user_of_tags(None) is None


def test_each_attempt_gets_the_lines_of_its_own_tasks(worker: Worker, tmp_path: Path) -> None:
    with attempt(tmp_path, APPLE) as apple, attempt(tmp_path, PEAR) as pear:
        worker.prints(APPLE, "one")
        worker.prints(APPLE, "\ntwo\nincom")
        assert read(apple) == b"one\ntwo\n"
        worker.prints(PEAR, "three\n")
        assert (read(apple), read(pear)) == (b"incom\n", b"three\n")
        worker.prints(APPLE, "last")
        worker.stream.end_line()
        assert read(apple) == b"last\n"
    assert worker.engine_log() == b""


def test_output_that_belongs_to_no_attempt_is_in_the_engines_log(worker: Worker, tmp_path: Path) -> None:
    worker.prints(None, "between tasks\n")
    worker.prints(APPLE, "no pipe\n")
    (tmp_path / pipe_name(PEAR)).write_bytes(b"")
    worker.prints(PEAR, "a file\n")
    assert worker.engine_log() == b"between tasks\nno pipe\na file\n"
    assert (tmp_path / pipe_name(PEAR)).read_bytes() == b""


def test_an_attempt_that_has_ended_fails_no_task(worker: Worker, tmp_path: Path) -> None:
    with attempt(tmp_path, APPLE):
        worker.prints(APPLE, "one\n")
    worker.prints(APPLE, "two\n")
    worker.prints(APPLE, "three\n")
    assert worker.engine_log() == b"three\n"


def test_a_full_pipe_blocks_no_task_and_the_log_says_what_is_missing(worker: Worker, tmp_path: Path) -> None:
    line = "x" * 999 + "\n"
    with attempt(tmp_path, APPLE) as apple:
        for _ in range(100):
            worker.prints(APPLE, line)
        printed = len(read(apple))
        assert printed % len(line) == 0
        worker.prints(APPLE, "again\n")
        missing = 100 * len(line) - printed
        expected = f"\n[flintlock: {missing} bytes of a Python function's output are left out here]\nagain\n"
        assert read(apple) == expected.encode()


def test_long_lines_are_not_held_back(worker: Worker, tmp_path: Path) -> None:
    with attempt(tmp_path, APPLE) as apple:
        worker.prints(APPLE, "x" * 70_000)
        assert read(apple)[:10] == b"x" * 10


def test_a_runners_pipe_is_found_by_its_workers_and_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIPES_VARIABLE, str(tmp_path))
    pipe, other = OutputPipe(1), OutputPipe(2)
    name_pipe(pipe.path, APPLE)
    found = tmp_path / pipe_name(APPLE)
    assert stat.S_ISFIFO(found.stat().st_mode)
    assert APPLE not in found.name, "with the user id one could join the session"
    remove_pipe(pipe.reader)
    assert [path.name for path in tmp_path.iterdir()] == ["runner-2"]
    for one in (pipe, other):
        os.close(one.reader)
        os.close(one.writer)


def test_a_runner_without_a_place_for_its_pipe_prints_into_one_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIPES_VARIABLE, str(tmp_path / "absent"))
    pipe = OutputPipe(1)
    assert pipe.path == ""
    os.write(pipe.writer, b"hello")
    assert os.read(pipe.reader, 10) == b"hello"
    remove_pipe(pipe.reader)
    os.close(pipe.reader)
    os.close(pipe.writer)

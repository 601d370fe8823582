"""What streaming queries print on a shared engine: functions of foreachBatch, and rows for a console."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.connect import proto

from flintlock.spark.engine.python.worker_output import PIPES_VARIABLE
from flintlock.spark.region.streaming.batch_output import ConsoleSinks, printing, show_batches
from flintlock.spark.runner.output_pipe import OutputPipe, name_pipe

USER = "flintlock-00000000-0000-0000-0000-00000000000a"
NOTE = "rows that are written to 'console' are printed by the shared engine into its own log"


class Batch:
    """A DataFrame that prints its name, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def persist(self) -> None:
        self.calls.append("persist")

    def count(self) -> None:
        self.calls.append("count")

    def show(self, rows: int, truncate: bool) -> None:
        self.calls.append((rows, truncate))
        sys.stdout.write("| n|\n")

    def unpersist(self) -> None:
        self.calls.append("unpersist")


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """The descriptor from which the template reads what the attempt of `USER` prints."""
    monkeypatch.setenv(PIPES_VARIABLE, str(tmp_path))
    pipe = OutputPipe(1)
    name_pipe(pipe.path, USER)
    yield pipe.reader
    os.close(pipe.reader)
    os.close(pipe.writer)


def stream(name: str, **options: str) -> Any:
    command = proto.Command()
    command.write_stream_operation_start.format = name
    command.write_stream_operation_start.options.update(options)
    return command


def batch(name: str) -> Any:
    command = proto.Command()
    command.write_operation.source = name
    return command


def redirected(command: Any) -> Any:
    ConsoleSinks(USER).redirect(command)
    return command.write_stream_operation_start


def test_what_a_function_of_foreach_batch_prints_is_output_of_its_attempt(
    output: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(rows: str, batch_id: int) -> None:
        sys.stdout.write(f"{rows} of {batch_id}\n")
        sys.stderr.write("no end")

    call = printing(write, USER)
    sys.stdout.write("before\n")
    call("rows", 1)
    call("more", 2)
    sys.stdout.write("after\n")

    assert os.read(output, 1000).decode() == "rows of 1\nno end\nmore of 2\nno end\n"
    assert capsys.readouterr().out == "before\nafter\n", "what Spark prints between batches is no output of a job"


def test_a_failing_function_fails_as_before(output: int, capsys: pytest.CaptureFixture[str]) -> None:
    def write(_rows: str, _batch_id: int) -> None:
        sys.stdout.write("last words")
        raise ValueError("not writable")

    with pytest.raises(ValueError, match="not writable"):
        printing(write, USER)("rows", 0)

    sys.stdout.write("after\n")
    assert os.read(output, 1000) == b"last words\n"
    assert capsys.readouterr().out == "after\n"


def test_without_pipes_a_function_prints_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PIPES_VARIABLE, raising=False)

    printing(lambda rows, _: sys.stdout.write(rows), USER)("rows", 0)

    assert capsys.readouterr().out == "rows"


@pytest.mark.parametrize(
    ("options", "shown"),
    [({}, (20, True)), ({"numRows": "3", "Truncate": "false"}, (3, False)), ({"truncate": "TRUE"}, (20, True))],
)
def test_a_stream_to_a_console_is_printed_by_batches(
    output: int, options: dict[str, str], shown: tuple[int, bool]
) -> None:
    start, rows = redirected(stream("Console", **options)), Batch()

    assert not start.format
    cloudpickle.loads(start.foreach_batch.python_function.command)(rows, 7)

    rule = "-" * 43
    assert os.read(output, 1000).decode() == f"{rule}\nBatch: 7\n{rule}\n| n|\n"
    # All of a batch is computed: a state of which only a part is computed is lost.
    assert rows.calls == ["persist", "count", shown, "unpersist"]


def test_a_batch_that_cannot_be_printed_is_released() -> None:
    class Broken(Batch):
        def count(self) -> None:
            raise ValueError("no rows")

    rows = Broken()
    with pytest.raises(ValueError, match="no rows"):
        show_batches(20, truncate=True)(rows, 0)
    assert rows.calls == ["persist", "unpersist"]


def test_where_there_is_no_batch_the_output_says_once_where_the_rows_are(capsys: pytest.CaptureFixture[str]) -> None:
    continuous, real_time = stream("console"), stream("console")
    continuous.write_stream_operation_start.continuous_checkpoint_interval = "1 second"
    real_time.write_stream_operation_start.real_time_batch_duration = "1 second"
    sinks = ConsoleSinks(USER)
    for command in (continuous, real_time, batch("Console")):
        given = command.SerializeToString()
        sinks.redirect(command)
        assert command.SerializeToString() == given

    assert capsys.readouterr().err.count(NOTE) == 1


@pytest.mark.parametrize("message", [stream("parquet"), batch("noop"), proto.Command(), proto.Relation()])
def test_other_plans_pass(message: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = message.SerializeToString()
    ConsoleSinks(USER).redirect(message)
    assert message.SerializeToString() == given
    assert not capsys.readouterr().err

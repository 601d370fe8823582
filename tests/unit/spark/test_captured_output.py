"""What a runner prints reaches its log up to a limit, and never stops the runner."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flintlock.host.logs.stderr_spans import stderr_spans
from flintlock.spark.runner import captured_output
from flintlock.spark.runner.captured_output import LAST_BYTES, CapturedOutput


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def pumped(log: Path, limit: int, *, text: bytes) -> str:
    """Return the log of a process whose output was read while it printed this text."""
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    output.open(str(log), limit)

    def printing() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write(text)

    thread = threading.Thread(target=printing)
    thread.start()
    while output.pump():
        pass
    thread.join()
    output.close()
    return log.read_text()


def test_output_within_the_limit_is_written_unchanged(log: Path) -> None:
    assert pumped(log, 1 << 20, text=b"one\ntwo\n" * 1000) == "one\ntwo\n" * 1000


def test_the_end_of_output_beyond_the_limit_is_written_and_the_rest_counted(log: Path) -> None:
    lines = [f"{number:07}\n" for number in range(100_000)]
    kept = pumped(log, 800, text="".join(lines).encode())
    head, note, tail = kept[:800], kept[800:].split("\n", 2)[1], kept[800:].split("\n", 2)[2]
    assert head == "".join(lines[:100])
    assert tail.endswith("0099999\n")
    assert len(tail) <= LAST_BYTES
    assert note == f"[flintlock: {800_000 - 800 - len(tail)} bytes are left out here]"
    assert tail.split("\n")[0] in {line.strip() for line in lines}, "the tail begins with a whole line"


def test_output_slightly_beyond_the_limit_is_written_completely(log: Path) -> None:
    assert pumped(log, 10, text=b"0123456789abc").split("\n")[-1] == "abc"


def test_what_a_dead_process_left_in_its_pipe_is_read_even_if_another_has_it_open(log: Path) -> None:
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    output.open(str(log), 100)
    os.write(writer, b"last line")
    output.close()  # would wait for ever if it waited for the end of the stream
    assert log.read_text() == "last line"
    os.close(writer)


def test_a_log_that_cannot_be_written_costs_the_output_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    output.open(str(tmp_path / "no" / "such" / "directory"), 100)
    os.write(writer, b"x" * 1000)
    os.close(writer)
    while output.pump():
        pass
    output.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_does_not_stop_the_reader() -> None:
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    output.open("/dev/full", 1 << 20)
    for _ in range(10):
        os.write(writer, b"x" * 60_000)
        assert output.pump()
    os.close(writer)
    output.close()


def test_output_goes_on_once_the_disk_takes_it_again_and_says_how_much_is_missing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    log = tmp_path / "made-later" / "log"
    output.open(str(log), 1 << 20)
    os.write(writer, b"lost\n")
    assert output.pump()
    log.parent.mkdir()
    os.write(writer, b"kept\n")
    assert output.pump()
    os.close(writer)
    output.close()
    assert log.read_text() == "\n[flintlock: 5 bytes could not be written here]\nkept\n"


def test_a_log_that_was_opened_by_another_process_is_written(log: Path) -> None:
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    output.open("/a/place/that/this/process/cannot/open", 100, opened)
    os.write(writer, b"printed")
    os.close(writer)
    output.close()
    assert log.read_text() == "printed"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened)


def test_a_forked_process_forgets_the_output_of_others(log: Path) -> None:
    """Otherwise a runner could write to the log of each attempt that began before it."""
    reader, writer = os.pipe()
    output = CapturedOutput(reader)
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    output.open(str(log), 100, opened)
    os.write(writer, b"of another runner")
    os.close(writer)
    output.forget()
    for descriptor in (reader, opened):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert log.read_text() == ""


def test_standard_error_is_recorded_beside_the_log(log: Path) -> None:
    """Both streams are in one log; a part of it knows which of its bytes are standard error."""
    (out_reader, out), (error_reader, error) = os.pipe(), os.pipe()
    output = CapturedOutput(out_reader, error_reader)
    output.open(str(log), 1 << 20)
    for stream, reader, text in (
        (out, out_reader, b"one\n"), (error, error_reader, b"two\n"), (error, error_reader, b"three\n"),
        (out, out_reader, b"four\n"),
    ):  # fmt: skip
        os.write(stream, text)
        assert output.pump(reader)
    os.write(error, b"last\n")
    os.close(out)
    os.close(error)
    output.close()

    assert log.read_text() == "one\ntwo\nthree\nfour\nlast\n"
    assert stderr_spans(str(log), 0, 1000) == ((4, 14), (19, 24))
    assert stderr_spans(str(log), 6, 20) == ((6, 14), (19, 20))
    assert stderr_spans(str(log), 14, 19) == ()
    assert stderr_spans(str(log.with_name("other")), 0, 1000) == ()


def test_the_record_of_standard_error_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes single bytes in turn would have a record that is larger than its log."""
    monkeypatch.setattr(captured_output, "MOST_SPANS", 2)
    (printed, printing), (failed, failing) = os.pipe(), os.pipe()
    output = CapturedOutput(printed, failed)
    output.open(str(log), 1 << 20)
    for _ in range(4):
        os.write(printing, b"o")
        output.pump(printed)
        os.write(failing, b"e")
        output.pump(failed)
    os.close(printing)
    os.close(failing)
    output.close()

    assert log.read_text() == "oeoeoeoe"
    assert stderr_spans(str(log), 0, 1000) == ((1, 2), (3, 4))

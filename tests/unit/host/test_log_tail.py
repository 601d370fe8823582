"""The end of a log file, for messages."""

from __future__ import annotations

from pathlib import Path

from flintlock.host.logs.log_tail import size_of, tail


def test_the_last_lines_are_those_of_the_latest_process(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert (size_of(log), tail(log)) == (0, "")
    log.write_text("an error of an earlier engine\n")
    before = size_of(log)
    assert tail(log, after=before) == ""
    with log.open("a") as file:
        file.write("starting\nwaiting\n")
    assert tail(log, after=before) == "starting\nwaiting"
    assert tail(log, 1, after=before) == "waiting"
    assert tail(log).startswith("an error of an earlier engine")


def test_a_file_that_was_replaced_meanwhile_is_all_of_the_latest_process(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("a long line of an earlier engine\n")
    before = size_of(log)
    log.write_text("starting\n")
    assert tail(log, after=before) == "starting"

"""How the status of a cluster becomes the exit code of a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flintlock.config.configuration import WORKER_VARIABLES, Configuration
from flintlock.entrypoints.process import (
    EXIT_CODES,
    EXIT_FATAL,
    EXIT_UNUSABLE,
    ProcessSettings,
    set_variables,
    start,
)
from flintlock.host.processes.pid_files import read_exit
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Corrupt, InvariantBroken, Unavailable


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restored_process: None) -> None:
    """Give each test a state directory."""
    monkeypatch.setattr(sys, "argv", ["test", "--state-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ApplicationStatus.SUCCEEDED, 0),
        (ApplicationStatus.CANCELED, 0),
        (ApplicationStatus.FAILED, 6),
        (ApplicationStatus.UNKNOWN, 0),
        (None, 0),
    ],
)
def test_status_decides_the_exit_code(status: ApplicationStatus | None, code: int) -> None:
    async def main(_: ProcessSettings) -> ApplicationStatus | None:
        return status

    assert start("test", main) == code


def test_every_status_has_an_exit_code() -> None:
    assert EXIT_CODES.keys() == set(ApplicationStatus)
    assert [status for status in ApplicationStatus if not status.is_final] == [ApplicationStatus.UNKNOWN]


def test_an_error_has_a_code_of_its_own() -> None:
    async def unusable(_: ProcessSettings) -> ApplicationStatus:
        raise Unavailable("the port is taken")

    async def fatal(_: ProcessSettings) -> ApplicationStatus:
        raise InvariantBroken("a bug")

    async def damaged(_: ProcessSettings) -> ApplicationStatus:
        raise Corrupt("the store is damaged")

    assert start("test", unusable) == EXIT_UNUSABLE
    assert start("test", damaged) == EXIT_UNUSABLE
    assert start("test", fatal) == EXIT_FATAL


def test_a_signal_cancels_the_process_which_then_ends_without_failure() -> None:
    closed: list[str] = []

    async def main(_: ProcessSettings) -> ApplicationStatus:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            closed.append("closed")
        return ApplicationStatus.FAILED

    assert start("test", main) == 0
    assert closed == ["closed"]


_LOGGING_PROCESS = """
import structlog
from flintlock.entrypoints.process import start
from flintlock.model.errors import Unavailable
from flintlock.model.log_events import WATCHDOG_REPLACED

async def main(settings):
    structlog.get_logger().warning(WATCHDOG_REPLACED, reason="it had ended")
    raise Unavailable("the port is taken")

raise SystemExit(start("taskmanager", main))
"""


def test_every_line_begins_with_time_level_process_and_event(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LOGGING_PROCESS, "--state-dir", str(tmp_path), "--index", "7"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == EXIT_UNUSABLE
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [list(line)[:4] for line in lines] == [["timestamp", "level", "process", "event"]] * len(lines)
    assert {line["process"] for line in lines} == {"taskmanager-7"}
    assert [(line["level"], line["event"], line.get("reason")) for line in lines if line["level"] != "info"] == [
        ("warning", "watchdog-replaced", "it had ended"),
        ("critical", "process-not-started", "the port is taken"),
    ]


def test_a_process_records_how_it_ends(tmp_path: Path) -> None:
    async def fine(_: ProcessSettings) -> None:
        assert read_exit(tmp_path, "jobmanager") is None

    async def unusable(_: ProcessSettings) -> None:
        raise Unavailable("the port is taken")

    for main, code, reason in ((unusable, 4, "the port is taken"), (fine, 0, "")):
        start("jobmanager", main)
        found = read_exit(tmp_path, "jobmanager")
        assert found is not None
        assert (found.pid, found.code, found.reason) == (os.getpid(), code, reason)


def test_a_process_in_a_container_of_yarn_sets_the_variables_of_its_kind() -> None:
    values = {"containerized.taskmanager.env.SECRET_DB": "hidden", "containerized.master.env.OTHER": "x"}
    inside, outside = {"PATH": "/bin"}, {"PATH": "/bin"}

    set_variables(Configuration({**values, "yarn.application.id": "application_1_0001"}), WORKER_VARIABLES, inside)
    set_variables(Configuration(values), WORKER_VARIABLES, outside)

    assert inside == {"PATH": "/bin", "SECRET_DB": "hidden"}
    assert outside == {"PATH": "/bin"}

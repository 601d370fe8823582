"""Ctrl-C while a job runs: real processes, with and without a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.client.answering import Server, serving, wait_for

from flintlock.client.connection.versions import own_versions

JOB = "0123456789abcdef" * 2
PATIENCE_S = 30.0


def attempts(status: str) -> tuple[int, Any]:
    return 200, {"jobid": JOB, "name": "small", "status": status, "regions": []}


@pytest.fixture
def server() -> Generator[Server]:
    """Serve a job that runs until it is cancelled."""
    answers: dict[str, list[tuple[int, Any]]] = {
        "GET /versions": [(200, msgspec.to_builtins(own_versions()))],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [attempts("RUNNING")],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
        f"PATCH /jobs/{JOB}": [(202, {})],
        f"PATCH /jobs/{JOB}/clientHeartbeat": [(202, {})],
    }
    with serving(answers) as serving_:
        yield serving_


def command(server: Server, folder: Path, *flags: str) -> list[str]:
    (folder / "job.yaml").write_text("name: small\nsteps: {a: {sql: SELECT 1}, r: {result: {}, inputs: [a]}}\n")
    return [sys.executable, "-m", "flintlock", "run", "-m", server.url, *flags, "job.yaml"]


def test_without_a_terminal_ctrl_c_detaches_and_prints_how_to_cancel(server: Server, tmp_path: Path) -> None:
    with subprocess.Popen(command(server, tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "small: RUNNING" not in run.stderr.readline():
            assert run.poll() is None
        run.send_signal(signal.SIGINT)
        errors = run.stderr.read()

    assert run.returncode == 0
    assert f"job {JOB} keeps running; cancel it with: flintlock cancel {JOB}" in errors
    assert not any(seen.method == "PATCH" for seen in server.seen)


def cancels(server: Server) -> int:
    return sum((seen.method, seen.path.partition("?")[0]) == ("PATCH", f"/jobs/{JOB}") for seen in server.seen)


def test_without_a_terminal_ctrl_c_cancels_an_attached_job(server: Server, tmp_path: Path) -> None:
    arguments = command(server, tmp_path, "--attached")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "small: RUNNING" not in run.stderr.readline():
            assert run.poll() is None
        run.send_signal(signal.SIGINT)
        wait_for(lambda: cancels(server) == 1)
        server.answers[f"GET /jobs/{JOB}/attempts"][0] = attempts("CANCELED")
        run.stderr.read()

    assert run.returncode == 1


def test_sigterm_cancels_an_attached_job(server: Server, tmp_path: Path) -> None:
    arguments = command(server, tmp_path, "--attached")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "small: RUNNING" not in run.stderr.readline():
            assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        run.stderr.read()

    assert run.returncode == 128 + signal.SIGTERM
    assert cancels(server) == 1


def test_a_killed_client_stops_sending_heartbeats(server: Server, tmp_path: Path) -> None:
    """It cannot cancel its job: the cluster does, when heartbeats are missing."""
    arguments = command(server, tmp_path, "-D", "client.heartbeat.timeout=90 ms")
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.DEVNULL) as run:
        wait_for(lambda: sum(seen.path.endswith("clientHeartbeat") for seen in server.seen) >= 3)
        run.kill()

    assert cancels(server) == 0


@contextmanager
def on_a_terminal(arguments: list[str], folder: Path, environ: Mapping[str, str]) -> Generator[Terminal]:
    main, side = pty.openpty()
    with subprocess.Popen(
        arguments, cwd=folder, stdin=side, stdout=side, stderr=side, env=dict(environ), start_new_session=True
    ) as process:
        os.close(side)
        try:
            yield Terminal(main, process)
        finally:
            process.kill()
            os.close(main)


class Terminal:
    """The other side of a process's terminal."""

    def __init__(self, main: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen = ""
        self._main = main

    def wait_for(self, text: str) -> None:
        """Read until the text has come."""
        while text not in self.seen:
            ready, _, _ = select.select([self._main], [], [], PATIENCE_S)
            assert ready, f"nothing more after: {self.seen}"
            self.seen += os.read(self._main, 65536).decode(errors="replace")

    def type(self, text: str) -> None:
        """Answer; what was seen before no longer counts."""
        self.seen = ""
        os.write(self._main, text.encode())


def test_on_a_terminal_ctrl_c_asks_what_to_do(server: Server, tmp_path: Path) -> None:
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with on_a_terminal(command(server, tmp_path), tmp_path, environ) as terminal:
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("[d]etach, [c]ancel, [r]esume")
        terminal.type("r\n")
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("[r]esume")
        assert not any(seen.method == "PATCH" for seen in server.seen)
        server.answers[f"GET /jobs/{JOB}/attempts"][0] = attempts("CANCELED")
        terminal.type("c\n")
        terminal.wait_for("small CANCELED")
        assert terminal.process.wait(PATIENCE_S) == 1

    assert sum(seen.method == "PATCH" for seen in server.seen) == 1

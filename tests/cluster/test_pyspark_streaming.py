"""Streaming programs of others: examples of PySpark's own distribution, unchanged, with a plain `flintlock run`.

Two of them each time, one on the shared engine and one with a driver of its own; with `ALL_EXAMPLES=1` all of them.
"""

from __future__ import annotations

import itertools
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until
from tests.cluster.pyspark_examples import SCRIPTS, STREAMING, write_inputs

ALL_EXAMPLES = bool(os.environ.get("ALL_EXAMPLES"))
EACH_TIME = ("sql/streaming/structured_network_wordcount.py", "streaming/network_wordcount.py")
LINE = "apache spark apache good\n"


class Lines(socketserver.BaseRequestHandler):
    """Sends one line to whoever connects, and leaves the connection open."""

    def handle(self) -> None:
        self.request.sendall(LINE.encode())
        self.server.closing.wait()  # pyright: ignore[reportAttributeAccessIssue]


class LineServer(socketserver.ThreadingTCPServer):
    """A server for socket sources."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Lines)
        self.closing = threading.Event()


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that sends `LINE`."""
    with LineServer() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        serving.start()
        yield server.server_address[1]
        server.closing.set()
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("script", STREAMING if ALL_EXAMPLES else EACH_TIME)
def test_pysparks_streaming_examples_print_what_they_have_read(
    standing: Processes, tmp_path: Path, script: str, port: int
) -> None:
    write_inputs(tmp_path)
    incoming, numbers = tmp_path / "incoming", itertools.count()
    incoming.mkdir()
    arguments, printed = STREAMING[script]
    given = [argument.format(port=port, directory=incoming) for argument in arguments]
    # DStreams: one core for the receiver, and one for its rows.
    submitted = flintlock("run", "-m", standing.url, "-d", "-p", "2", SCRIPTS / script, *given, cwd=tmp_path)
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    job_id = submitted.stdout.split()[-1]

    def output() -> str | None:
        """Return what it has printed, once that is what it has read: files are only seen if they are new."""
        written = tmp_path / f"{next(numbers)}"
        written.write_text(LINE)
        written.rename(incoming / written.name)
        text = flintlock("logs", job_id, "-m", standing.url, cwd=tmp_path).stdout
        return text if printed in text else None

    try:
        until(f"{printed} of {script}", output, 180, pause_s=0.5)
    finally:
        cancelled = flintlock("cancel", job_id, "-m", standing.url, cwd=tmp_path)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr

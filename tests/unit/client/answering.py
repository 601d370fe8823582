"""A real HTTP server with prepared responses, which records its requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from msgspec import Struct

from flintlock.model.states import ExecutionState


class Seen(Struct):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server(ThreadingHTTPServer):
    """Answers each request with the next of the answers for its path; the last one stays."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, list[tuple[int, Any]]]) -> None:
        self.answers = answers
        self.seen: list[Seen] = []
        self.ahead_s = 0.0  # how far its clock is ahead of ours
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        server = cast("Server", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        answers = server.answers[f"{self.command} {self.path.partition('?')[0]}"]
        status, content = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:  # the server goes away in the middle of the call
            self.close_connection = True
            return
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 http.server's names

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + cast("Server", self.server).ahead_s)

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 http.server's name


def job_entry(jid: str, name: str, state: str, **tasks: int) -> dict[str, Any]:
    """Return an entry of `GET /jobs/overview`, complete."""
    counts = dict.fromkeys(map(str.lower, ExecutionState), 0)
    return {
        "jid": jid, "name": name, "state": state, "start-time": 1_700_000_000_000, "end-time": -1, "duration": 61_000,
        "last-modification": 0, "jobType": "BATCH", "schedulerType": "Default", "pending-operators": 0,
        "tasks": {"total": 0, **counts, **tasks},
    }  # fmt: skip


def wait_for(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    """Return once the condition holds."""
    deadline, tick = time.monotonic() + patience_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        tick.wait(0.005)


@contextmanager
def serving(answers: Mapping[str, list[tuple[int, Any]]]) -> Generator[Server]:
    with Server(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

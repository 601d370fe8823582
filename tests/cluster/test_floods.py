"""A real JobManager under clients that want too much of it: it refuses them, stays small, and serves the others."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tests.cluster.processes import Processes

from flintlock.testing import rest_requests

CONNECTIONS = 10_000
MEGABYTE = 1 << 20


@pytest.fixture
def connections() -> Iterator[int]:
    """How many connections this process can open: 10,000, unless the machine allows fewer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = CONNECTIONS if hard == resource.RLIM_INFINITY else min(CONNECTIONS, hard - 200)
    yield allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def alone(connections: int, tmp_path: Path) -> Iterator[Processes]:
    """A JobManager that may have as many files open as this process."""
    processes = Processes(tmp_path)
    try:
        processes.start_jobmanager()
        processes.await_leader()
        yield processes
    finally:
        processes.stop()


def memory(processes: Processes) -> int:
    assert processes.jobmanager is not None
    return psutil.Process(processes.jobmanager.pid).memory_info().rss


def connect(processes: Processes) -> socket.socket:
    found = urlsplit(processes.url)
    assert found.hostname is not None
    assert found.port is not None
    return socket.create_connection((found.hostname, found.port), timeout=30)


def test_idle_connections_neither_fill_the_memory_nor_keep_others_out(alone: Processes, connections: int) -> None:
    before = memory(alone)
    with ExitStack() as opened:
        for number in range(connections):
            idle = opened.enter_context(connect(alone))
            if number % 2:
                idle.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n")
            if number % (connections // 5) == 0:
                assert rest_requests.get(f"{alone.url}/jobs", timeout=30).status_code == 200
        assert rest_requests.get(f"{alone.url}/jobs", timeout=30).status_code == 200
        grown = memory(alone) - before
    assert grown < connections * 20_000, f"{grown >> 20} MiB for {connections} connections"


@pytest.mark.parametrize(("path", "kind"), [("/jobs", "application/json"), ("/blobs", "application/octet-stream")])
def test_a_body_of_a_gigabyte_is_refused_and_never_in_memory(alone: Processes, path: str, kind: str) -> None:
    credential = rest_requests.header(alone.url)["Authorization"]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credential}\r\nContent-Type: {kind}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    piece = b"100000\r\n" + b" " * MEGABYTE + b"\r\n"
    before = memory(alone)
    with connect(alone) as client, suppress(ConnectionError):  # closed before the end of the body: as well
        client.sendall(head.encode())
        for number in range(1024):
            client.sendall(piece)
            if number % 256 == 0:
                assert rest_requests.get(f"{alone.url}/jobs", timeout=30).status_code == 200
        assert client.recv(1024).startswith(b"HTTP/1.1 413")
    assert memory(alone) - before < 100 * MEGABYTE
    assert rest_requests.get(f"{alone.url}/jobs", timeout=30).status_code == 200

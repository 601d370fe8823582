"""A load generator that costs less than what it measures: plain sockets, one loop, keep-alive connections.

Each connection sends its next request when the answer to the last one is whole (a closed loop), so the rate is what
the server can do with that many clients, and the latencies are what those clients see.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

from msgspec import Struct

from flintlock.testing import rest_requests


class Load(Struct, frozen=True):
    """What came of it."""

    seconds: float
    latencies_s: list[float]
    failures: int

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.seconds


def closed_loop(port: int, request: Callable[[int], bytes], *, connections: int, requests: int, status: int) -> Load:
    """Send `requests` requests over `connections` connections; answers of another status are failures."""
    selector = selectors.DefaultSelector()
    sent = failures = 0
    latencies: list[float] = []
    wanted = f" {status} ".encode()
    credential = rest_requests.header(f"http://127.0.0.1:{port}")  # none where no cluster listens
    fields = "".join(f"{name}: {value}\r\n" for name, value in credential.items()).encode()

    def authorised(number: int) -> bytes:
        head, _, rest = request(number).partition(b"\r\n")
        return head + b"\r\n" + fields + rest

    clients = [_Client(port) for _ in range(connections)]
    begun = time.perf_counter()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.send(authorised(sent))
        sent += 1
    while len(latencies) < requests:
        for key, _ in selector.select(timeout=30):
            client: _Client = key.data
            answer = client.receive()
            if answer is None:
                continue
            latencies.append(time.perf_counter() - client.sent_at)
            failures += wanted not in answer[:20]
            if sent < requests:
                client.send(authorised(sent))
                sent += 1
    seconds = time.perf_counter() - begun
    for client in clients:
        client.socket.close()
    return Load(seconds, latencies, failures)


def http(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Write a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class _Client:
    """One connection with one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = 0.0
        self._buffer = bytearray()
        self._whole = 0  # length of the answer, once its head is there

    def send(self, request: bytes) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """Return the answer's beginning once it is whole."""
        piece = self.socket.recv(1 << 20)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self._buffer += piece
        if not self._whole:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            head = bytes(self._buffer[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            self._whole = end + 4 + length
        if len(self._buffer) < self._whole:
            return None
        head = bytes(self._buffer[:64])
        self._buffer.clear()
        self._whole = 0
        return head

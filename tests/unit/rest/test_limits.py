"""Bounds: too much at once is refused with the time to try again, and a slow client does not hold a place."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import structs
from tests.unit.rest.rest_harness import A, RestHarness, running

from flintlock.config.configuration import Configuration
from flintlock.model.access.principals import Principal, Role
from flintlock.rest.server.connections import BODY_ARRIVED, TimedHttpProtocol
from flintlock.rest.server.http import PRINCIPAL, ROUTE
from flintlock.rest.server.limits import RequestBounds, RequestLimits
from flintlock.rest.server.routes import TABLE
from flintlock.testing.virtual_time import run_virtual

LIMITS = RequestLimits(concurrent=2, waiting=1, uploads=1, upload_bytes=1 << 30, largest_upload=1 << 29, rate=2)
LOCAL = Principal(name="maria", role=Role.ADMIN, kind="local")
TOKEN = Principal(name="airflow", role=Role.VIEWER, kind="token", token="t")


class Slow:
    """An application that answers when it is allowed to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.received: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            more = True
            while more:
                message = await receive()
                self.received.append(message)
                more = message.get("more_body", False)
        else:
            await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def request(
    app: Any, method: str = "GET", path: str = "/jobs", *, who: Principal = LOCAL, query: bytes = b"", length: int = 0,
    receive: Any = None,
) -> tuple[int, dict[bytes, bytes]]:  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"%d" % length)] if length else []
    route = TABLE.find(method, path)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
        PRINCIPAL: who,
        ROUTE: route,
    }
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


async def _until_idle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_too_many_requests_at_once_are_refused_and_long_polls_are_counted_apart() -> None:
    async def main() -> None:
        inner = Slow()
        app = RequestBounds(inner, LIMITS, lambda: 0.0)
        async with asyncio.TaskGroup() as tasks:
            served = [tasks.create_task(request(app)) for _ in range(2)]
            await _until_idle()
            status, headers = await request(app)
            assert (status, headers[b"retry-after"]) == (503, b"1")
            result = f"/jobs/{A}/execution-result"
            served.append(tasks.create_task(request(app, path=result, query=b"wait=10s")))
            await _until_idle()
            assert (await request(app, path=result, query=b"wait=10s"))[0] == 503
            assert (await request(app, path="/events"))[0] == 503
            inner.go.set()
        assert [task.result()[0] for task in served] == [200, 200, 200]
        assert (await request(app))[0] == 200

    asyncio.run(main())


def test_a_token_has_a_rate_and_the_clusters_own_user_has_none() -> None:
    now_s = 100.0

    async def main() -> None:
        nonlocal now_s
        inner = Slow()
        inner.go.set()
        app = RequestBounds(inner, LIMITS, lambda: now_s)
        assert [(await request(app, who=TOKEN))[0] for _ in range(3)] == [200, 200, 429]
        status, headers = await request(app, who=TOKEN)
        assert (status, headers[b"retry-after"]) == (429, b"1")
        assert [(await request(app))[0] for _ in range(10)] == [200] * 10
        now_s += 0.5
        assert [(await request(app, who=TOKEN))[0] for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_large_bodies_are_bounded() -> None:
    async def main() -> None:
        inner, last = Slow(), asyncio.Event()
        app = RequestBounds(inner, LIMITS, lambda: 0.0)

        async def receive() -> Any:
            await last.wait()
            return {"type": "http.request", "body": b"x", "more_body": False}

        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(request(app, "POST", "/blobs", length=2 << 20, receive=receive))
            await _until_idle()
            assert (await request(app, "POST", "/blobs", length=2 << 20, receive=receive))[0] == 503
            last.set()
        assert first.result()[0] == 200

    asyncio.run(main())


def test_large_bodies_are_bounded_by_their_size_together() -> None:
    async def main() -> None:
        inner, last = Slow(), asyncio.Event()
        limits = structs.replace(LIMITS, uploads=10, upload_bytes=5 << 20, largest_upload=4 << 20, concurrent=10)
        app = RequestBounds(inner, limits, lambda: 0.0)

        async def receive() -> Any:
            await last.wait()
            return {"type": "http.request", "body": b"x", "more_body": False}

        def send(size: int) -> Any:
            return request(app, "POST", "/blobs", length=size, receive=receive)

        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(send(3 << 20))
            await _until_idle()
            assert (await send(3 << 20))[0] == 503
            second = tasks.create_task(send(2 << 20))
            small = tasks.create_task(send(1000))
            await _until_idle()
            last.set()
        assert [task.result()[0] for task in (first, second, small)] == [200, 200, 200]
        assert (await send(100 << 20))[0] == 200  # one alone is served: its own limit is that of the route

    asyncio.run(main())


@pytest.mark.parametrize(("pause_s", "size", "status"), [(1.0, 1, 408), (31.0, 1 << 20, 408), (10.0, 20_000, 200)])
def test_a_body_that_trickles_is_given_up(pause_s: float, size: int, status: int) -> None:
    async def main() -> int:
        inner = Slow()
        app = RequestBounds(inner, LIMITS, lambda: 0.0)
        pieces = iter(range(60))

        async def receive() -> Any:
            await asyncio.sleep(pause_s)
            return {"type": "http.request", "body": b"x" * size, "more_body": next(pieces) < 50}

        return (await request(app, "POST", "/blobs", length=10 << 20, receive=receive))[0]

    assert run_virtual(main()) == status


def test_only_a_body_that_has_arrived_as_a_whole_is_read_without_a_timeout() -> None:
    head = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
    known: asyncio.Queue[bool] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await known.put(BODY_ARRIVED in scope)
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> None:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", http=TimedHttpProtocol))
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            reader, writer = await asyncio.open_connection(host, port)
            for pieces, arrived in (((head + b"{}",), True), ((head, b"{", b"}"), False), ((head + b"{", b"}"), False)):
                writer.write(pieces[0])
                assert await known.get() is arrived
                for piece in pieces[1:]:
                    writer.write(piece)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(main())


def test_white_space_around_the_value_of_a_header_is_no_part_of_it() -> None:
    rest = RestHarness()
    rest.dispatcher.put(running(A))

    async def main() -> bytes:
        config = uvicorn.Config(rest.app, port=0, log_config=None, lifespan="off", http=TimedHttpProtocol)
        server = uvicorn.Server(config)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname()[:2])
            given = {
                "Host": "flintlock", "Origin": "http://flintlock", "Sec-Fetch-Site": "same-origin",
                "Connection": "close", **rest.auth,
            }  # fmt: skip
            head = "".join(f"{name}: \t {value} \t \r\n" for name, value in given.items())
            writer.write(f"GET /jobs HTTP/1.1\r\n{head}\r\n".encode())
            answer = await reader.read()
            writer.close()
            server.should_exit = True
            await serving
        return answer

    answer = asyncio.run(main())

    assert answer.startswith(b"HTTP/1.1 200"), answer


def test_a_connection_that_does_not_send_its_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedHttpProtocol, "head_timeout_s", 0.2)
    rest = RestHarness()
    rest.dispatcher.put(running(A))

    async def main() -> None:
        config = uvicorn.Config(rest.app, port=0, log_config=None, lifespan="off", http=TimedHttpProtocol)
        server = uvicorn.Server(config)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            silent = [await asyncio.open_connection(host, port) for _ in range(3)]
            silent[1][1].write(b"GET /jobs HT")
            silent[2][1].write(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n")
            async with httpx.AsyncClient(
                base_url=f"http://{host}:{port}", headers=rest.auth, trust_env=False
            ) as client:
                assert (await client.get("/jobs")).status_code == 200  # meanwhile
                for reader, writer in silent:
                    assert await reader.read() == b""
                    writer.close()
                assert (await client.get("/jobs")).status_code == 200  # on a connection that was used before
            server.should_exit = True
            await serving

    asyncio.run(main())


def test_a_body_that_is_not_read_any_more_keeps_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedHttpProtocol, "unread_body_timeout_s", 0.2)
    rest = RestHarness()
    head = f"POST /jobs HTTP/1.1\r\nHost: flintlock\r\nAuthorization: {rest.auth['Authorization']}\r\n"

    async def main() -> None:
        config = uvicorn.Config(
            rest.app, port=0, log_config=None, lifespan="off", http=TimedHttpProtocol, timeout_keep_alive=75
        )
        server = uvicorn.Server(config)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"{head}Content-Type: text/plain\r\nContent-Length: 3\r\n\r\n12".encode())
            assert (await reader.readuntil(b"]}")).startswith(b"HTTP/1.1 415")
            assert await reader.read() == b""  # closed
            writer.close()
            monkeypatch.setattr(TimedHttpProtocol, "unread_body_timeout_s", 20.0)
            reader, writer = await asyncio.open_connection(host, port)
            for _ in range(2):  # the end of the body comes after the response: the connection is used again
                writer.write(f"{head}Content-Type: text/plain\r\nContent-Length: 3\r\n\r\n12".encode())
                assert (await reader.readuntil(b"]}")).startswith(b"HTTP/1.1 415")
                writer.write(b"3")
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(main())


def test_a_head_without_an_end_is_refused_and_others_are_served() -> None:
    rest = RestHarness()

    async def main() -> None:
        config = uvicorn.Config(rest.app, port=0, log_config=None, lifespan="off", http=TimedHttpProtocol)
        server = uvicorn.Server(config)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
                await asyncio.sleep(0.01)
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            for flood in (b"x-a: b\r\n" * 1000, b"x" * 8000):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nx-long: ")
                answer = asyncio.ensure_future(reader.read())  # noqa: TID251 awaited below, within the test
                with suppress(ConnectionError):
                    while not answer.done():
                        writer.write(flood)
                        await writer.drain()
                        await asyncio.sleep(0)
                with suppress(ConnectionError):
                    assert (await answer).startswith(b"HTTP/1.1 431")
                writer.close()
            url = f"http://{host}:{port}"
            async with httpx.AsyncClient(base_url=url, headers=rest.auth, trust_env=False) as client:
                assert (await client.get("/jobs")).status_code == 200
                large = await client.post("/blobs", content=b"x" * 300_000)
                assert large.status_code == 201
            server.should_exit = True
            await serving

    asyncio.run(main())


def test_limits_are_configured() -> None:
    limits = RequestLimits.of(Configuration({"rest.max-concurrent-requests": "7", "security.rate-limit": "0"}))
    assert (limits.concurrent, limits.rate) == (7, 0.0)

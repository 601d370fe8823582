"""A standby before a leader, both on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp
from tests.unit.rest.rest_harness import A, RestHarness, running

from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.rest.server.forwarding import Forwarding
from flintlock.rest.server.upstream import Upstream

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "x",
    "steps": {"a": {"sql": "SELECT 1"}, "r": {"result": {}, "inputs": ["a"]}},
}


class Leaders(KnownLeader):
    """Says whatever the test says."""

    def lead(self, url: str | None, epoch: int = 1, *, confirmed: bool = True) -> None:
        token = FencingToken(Epoch(epoch), "s")
        self.update(None if url is None else LeaderInfo(rest=url, rpc="", token=token, confirmed=confirmed))


@asynccontextmanager
async def serving(app: ASGIApp, listening: socket.socket | None = None) -> AsyncGenerator[str]:
    listening = listening or bound()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]), name="uvicorn")
        while not server.started:  # noqa: ASYNC110 uvicorn gives no other sign
            await asyncio.sleep(0.01)
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True


def bound() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


class JobManager:
    """One JobManager's REST endpoint."""

    def __init__(self, leaders: Leaders, upstream: Upstream, *, epoch: int | None) -> None:
        self.rest = RestHarness(**{"rest.server.max-content-length": "2m"})
        self.epoch = epoch
        self.paused = ""  # why it must not answer
        self.clock_s = 0.0  # copies age only when the test says so
        self._listening = bound()
        self.url = url_of(self._listening)
        self.forwarding = Forwarding(
            self.rest.app,
            leading=self.leading,
            leaders=leaders,
            upstream=upstream,
            clock_s=lambda: self.clock_s,
            own_url=self.url,
        )

    def leading(self) -> Epoch | None:
        if self.paused:
            raise Unavailable(self.paused)
        return None if self.epoch is None else Epoch(self.epoch)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.forwarding.run())
            with self._listening:
                async with serving(self.forwarding, self._listening):
                    yield
            watching.cancel()


class Stage:
    """Two JobManagers, the first of which leads, and a client of each."""

    def __init__(self, upstream: Upstream) -> None:
        self.leaders = Leaders()
        self.first = JobManager(self.leaders, upstream, epoch=1)
        self.second = JobManager(self.leaders, upstream, epoch=None)
        self.leaders.lead(self.first.url)


Story = Callable[[Stage, httpx.AsyncClient], Awaitable[None]]


def play(story: Story) -> None:
    """Run a story with a client of the standby."""

    async def run() -> None:
        async with asyncio.timeout(30), Upstream() as upstream:
            stage = Stage(upstream)
            async with (
                stage.first.serving(),
                stage.second.serving(),
                httpx.AsyncClient(base_url=stage.second.url, trust_env=False, timeout=20) as client,
            ):
                await story(stage, client)

    asyncio.run(run())


def errors(response: httpx.Response) -> str:
    (line,) = response.json()["errors"]
    return line


def test_a_standby_answers_as_the_leader_does_and_names_its_epoch() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.first.rest.dispatcher.put(running(A))
        for path in (f"/jobs/{A}", f"/v1/jobs/{A}/status", "/jobs", "/taskmanagers", "/readyz", f"/jobs/{'f' * 32}"):
            direct = await client.get(stage.first.url + path)
            through = await client.get(path)
            assert (through.status_code, through.content) == (direct.status_code, direct.content), path
            assert through.headers["content-type"] == direct.headers["content-type"]
            assert through.headers["flintlock-leader-epoch"] == direct.headers["flintlock-leader-epoch"] == "1"
            assert len(through.headers.get_list("date")) == 1

    play(story)


def test_a_submission_through_a_standby_is_the_leaders() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        files = [("request", (None, json.dumps({**SPEC, "artifacts": ["lib.py"]}), "application/json")),
                 ("file", ("lib.py", b"x = 1\n" * 300_000, "application/octet-stream"))]  # fmt: skip
        response = await client.post("/jobs", files=files, headers={"Idempotency-Key": "mine"})
        assert response.status_code == 202, response.text
        again = await client.post("/jobs", files=files, headers={"Idempotency-Key": "mine"})
        assert (again.json(), again.headers["idempotent-replay"]) == (response.json(), "true")
        assert (await client.get("/jobs")).json()["jobs"][0]["id"] == response.json()["jobid"]
        assert (await client.post("/jobs", content=b"{", headers={"Content-Type": "application/json"})).is_client_error

    play(story)


def test_a_body_of_unknown_length_is_streamed() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"y" * 100_000

    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        response = await client.post("/blobs", content=pieces())
        assert (response.status_code, response.json()["size"]) == (201, 2_000_000)
        assert not stage.second.rest.blobs.content
        assert stage.first.rest.blobs.content

    play(story)


def test_routes_of_the_process_are_served_by_any_jobmanager() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.leaders.lead(None)
        for path in ("/healthz", "/config", "/versions", "/openapi.json", "/jobmanager/config", "/v1/healthz"):
            response = await client.get(path)
            assert response.status_code == 200, path
            assert "flintlock-leader-epoch" not in response.headers

    play(story)


def test_overviews_are_cached_and_marked_with_their_age() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.first.rest.dispatcher.put(running(A))
        first = await client.get("/jobs/overview")
        assert first.json() == (await client.get(stage.first.url + "/jobs/overview")).json()
        assert (first.headers["age"], first.headers["flintlock-leader-epoch"]) == ("0", "1")

        stage.first.epoch = 2  # whoever is asked now says so
        assert (await client.get("/v1/jobs/overview")).headers["flintlock-leader-epoch"] == "1"
        fresh = await client.get("/jobs/overview", headers={"Cache-Control": "no-cache"})
        assert fresh.headers["flintlock-leader-epoch"] == "2"
        assert "age" not in fresh.headers
        stage.second.clock_s += 0.51
        assert (await client.get("/jobs/overview")).headers["flintlock-leader-epoch"] == "2"

    play(story)


def test_a_submission_through_a_standby_is_in_its_next_overview() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        assert (await client.get("/jobs/overview")).json() == {"jobs": []}
        job = (await client.post("/jobs", json=SPEC)).json()["jobid"]
        assert [line["jid"] for line in (await client.get("/jobs/overview")).json()["jobs"]] == [job]

    play(story)


def test_without_a_leader_a_standby_responds_503() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        gone = bound()  # nobody accepts there
        for url in (None, stage.second.url, url_of(gone)):
            stage.leaders.lead(url)
            for method, path in (("GET", "/jobs"), ("GET", "/jobs/overview"), ("POST", "/jobs"), ("POST", "/blobs")):
                response = await client.request(method, path, content=b"x" if method == "POST" else None)
                assert (response.status_code, response.headers["retry-after"]) == (503, "1"), (url, path)
        gone.close()
        assert not stage.second.rest.blobs.content

    play(story)


def test_a_request_is_forwarded_once() -> None:
    """Two that each take the other for the leader."""

    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.first.epoch = None  # the first steps down, and nobody has told yet
        stage.leaders.lead(stage.first.url)
        response = await client.get("/jobs")
        assert response.status_code == 503
        assert (await client.get("/taskmanagers")).status_code == 503
        marked = await client.get("/jobs", headers={"Flintlock-Forwarded": "1"})
        assert marked.status_code == 503
        assert "does not lead" in errors(marked)

    play(story)


@asynccontextmanager
async def silent(answer: bytes = b"") -> AsyncGenerator[tuple[str, asyncio.Queue[bytes]]]:
    """Something that takes requests, says `answer` and no more: a leader that was stopped."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    open_ends: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ends.append(writer)
        writer.write(answer)
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                heard.put_nowait(data)
        heard.put_nowait(b"")

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()
        for writer in open_ends:
            writer.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/taskmanagers", {}, 503),
        ("GET", "/jobs/overview", {}, 503),
        ("GET", f"/jobs/{A}/execution-result?wait=60s", {}, 503),
        ("POST", "/jobs", {"Idempotency-Key": "mine"}, 503),
        ("POST", "/jobs", {}, 502),
        ("POST", "/blobs", {}, 503),
    ],
)
def test_what_waits_for_a_frozen_leader_ends_when_another_leads(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """Only a submission without a key is not to be sent again blindly."""

    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        async with silent() as (url, heard), asyncio.TaskGroup() as tasks:
            stage.leaders.lead(url, 2)
            waiting = tasks.create_task(client.request(method, path, headers=headers, content=b"{}"))
            await heard.get()
            stage.leaders.lead(stage.first.url, 3)
            response = await waiting
        assert response.status_code == status
        assert ("retry-after" in response.headers) == (status == 503)
        assert ("not known" in errors(response)) == (status == 502)

    play(story)


def test_an_aborted_response_is_not_taken_for_a_complete_one() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        begun = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
        async with silent(begun) as (url, _):
            stage.leaders.lead(url, 2)
            async with client.stream("GET", "/taskmanagers") as response:
                pieces = response.aiter_raw()
                assert await anext(pieces) == b"{"
                stage.leaders.lead(stage.first.url, 3)
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(pieces)

    play(story)


def test_a_stream_of_events_ends_when_another_leads() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.first.rest.dispatcher.put(running(A))
        lines: list[str] = []
        async with client.stream("GET", "/events") as response:
            async for line in response.aiter_lines():
                lines.append(line)
                stage.leaders.lead("http://127.0.0.1:1", 2)
        assert any(A in line for line in lines)

    play(story)


def test_the_request_of_a_client_that_disconnects_is_cancelled() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        async with silent() as (url, heard):
            stage.leaders.lead(url, 2)
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"/jobs/{A}/execution-result?wait=60s", timeout=0.2)
            assert await heard.get()
            assert await heard.get() == b""  # the connection to the leader is closed

    play(story)


def test_what_is_too_large_is_refused_through_a_standby_too() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        begun = time.monotonic()
        response = await client.post("/blobs", content=b"x" * 3_000_000)
        assert response.status_code == 413
        assert time.monotonic() - begun < 10

    play(story)


def test_a_leader_that_is_cut_off_serves_only_routes_of_its_process() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.first.paused = "ZooKeeper is out of reach"
        for response in (await client.get(stage.first.url + "/jobs"), await client.get("/taskmanagers")):
            assert (response.status_code, errors(response)) == (503, "ZooKeeper is out of reach")
            assert response.headers["retry-after"] == "1"
        assert (await client.get(stage.first.url + "/healthz")).status_code == 200

        stage.first.paused = ""
        assert (await client.get("/taskmanagers")).status_code == 200

    play(story)


def test_nothing_is_forwarded_to_a_leader_that_does_not_serve_yet() -> None:
    async def story(stage: Stage, client: httpx.AsyncClient) -> None:
        stage.leaders.lead(stage.first.url, 2, confirmed=False)
        response = await client.get("/taskmanagers")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        stage.leaders.lead(stage.first.url, 2)
        assert (await client.get("/taskmanagers")).status_code == 200

    play(story)

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
from tests.unit.rest.rest_harness import A, RestHarness, ended, running

from flintlock.ha.leader_info import KnownLeader, LeaderInfo
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.model.states import JobStatus
from flintlock.rest.jobs.listing import MAX_CACHED
from flintlock.rest.server.forwarding import Forwarding
from flintlock.rest.server.remote_principals import LeadersVerdict
from flintlock.rest.server.upstream import Upstream

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "x",
    "steps": {"a": {"sql": "SELECT 1"}, "r": {"result": {}, "inputs": ["a"]}},
}


class Leaders(KnownLeader):
    """A KnownLeader that the test sets."""

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
        if epoch is None:
            self.rest.ask_leader = LeadersVerdict(upstream, leaders, self.url).principal
        self.forwarding = Forwarding(
            self.rest.bare_app,
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
                async with serving(self.rest.protected(self.forwarding), self._listening):
                    yield
            watching.cancel()


class JobManagerPair:
    """Two JobManagers, the first of which leads."""

    def __init__(self, upstream: Upstream) -> None:
        self.leaders = Leaders()
        self.first = JobManager(self.leaders, upstream, epoch=1)
        self.second = JobManager(self.leaders, upstream, epoch=None)
        self.leaders.lead(self.first.url)


def own_upstream(max_connections: int = 100, max_waiting: int = 4000) -> Upstream:
    """Connections to the leader, with the credential of a JobManager of the cluster."""
    return Upstream(lambda: RestHarness().credential, max_connections=max_connections, max_waiting=max_waiting)


Scenario = Callable[[JobManagerPair, httpx.AsyncClient], Awaitable[None]]


def run_scenario(scenario: Scenario, connections: Upstream | None = None) -> None:
    """Run a scenario with two JobManagers and a client of the standby."""

    async def run() -> None:
        async with asyncio.timeout(30), connections or own_upstream() as upstream:
            pair = JobManagerPair(upstream)
            async with (
                pair.first.serving(),
                pair.second.serving(),
                httpx.AsyncClient(
                    base_url=pair.second.url,
                    trust_env=False,
                    timeout=20,
                    limits=httpx.Limits(max_connections=None),
                    headers=pair.second.rest.auth,
                ) as client,
            ):
                await scenario(pair, client)

    asyncio.run(run())


def errors(response: httpx.Response) -> str:
    (line,) = response.json()["errors"]
    return line


def test_a_standby_answers_as_the_leader_does_and_names_its_epoch() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.first.rest.dispatcher.put(running(A))
        for path in (f"/jobs/{A}", f"/v1/jobs/{A}/status", "/jobs", "/taskmanagers", "/readyz", f"/jobs/{'f' * 32}"):
            direct = await client.get(pair.first.url + path)
            through = await client.get(path)
            assert (through.status_code, through.content) == (direct.status_code, direct.content), path
            assert through.headers["content-type"] == direct.headers["content-type"]
            assert through.headers["flintlock-leader-epoch"] == direct.headers["flintlock-leader-epoch"] == "1"
            assert len(through.headers.get_list("date")) == 1

    run_scenario(scenario)


def test_a_submission_through_a_standby_is_the_leaders() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        files = [("request", (None, json.dumps({**SPEC, "artifacts": ["lib.py"]}), "application/json")),
                 ("file", ("lib.py", b"x = 1\n" * 300_000, "application/octet-stream"))]  # fmt: skip
        response = await client.post("/jobs", files=files, headers={"Idempotency-Key": "mine"})
        assert response.status_code == 202, response.text
        again = await client.post("/jobs", files=files, headers={"Idempotency-Key": "mine"})
        assert (again.json(), again.headers["idempotent-replay"]) == (response.json(), "true")
        assert (await client.get("/jobs")).json()["jobs"][0]["id"] == response.json()["jobid"]
        assert (await client.post("/jobs", content=b"{", headers={"Content-Type": "application/json"})).is_client_error

    run_scenario(scenario)


def test_a_body_of_unknown_length_is_streamed() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"y" * 100_000

    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        response = await client.post("/blobs", content=pieces())
        assert (response.status_code, response.json()["size"]) == (201, 2_000_000)
        assert not pair.second.rest.blobs.content
        assert pair.first.rest.blobs.content

    run_scenario(scenario)


def test_routes_of_the_process_are_served_by_any_jobmanager() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.leaders.lead(None)
        for path in ("/healthz", "/config", "/versions", "/openapi.json", "/jobmanager/config", "/v1/healthz"):
            response = await client.get(path)
            assert response.status_code == 200, path
            assert "flintlock-leader-epoch" not in response.headers

    run_scenario(scenario)


def test_overviews_are_cached_and_marked_with_their_age() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.first.rest.dispatcher.put(running(A))
        first = await client.get("/jobs/overview")
        assert first.json() == (await client.get(pair.first.url + "/jobs/overview")).json()
        assert (first.headers["age"], first.headers["flintlock-leader-epoch"]) == ("0", "1")

        pair.first.epoch = 2  # an answer that is not cached shows it
        assert (await client.get("/v1/jobs/overview")).headers["flintlock-leader-epoch"] == "1"
        fresh = await client.get("/jobs/overview", headers={"Cache-Control": "no-cache"})
        assert fresh.headers["flintlock-leader-epoch"] == "2"
        assert "age" not in fresh.headers
        pair.second.clock_s += 0.51
        assert (await client.get("/jobs/overview")).headers["flintlock-leader-epoch"] == "2"

    run_scenario(scenario)


def test_a_submission_through_a_standby_is_in_its_next_overview() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        assert (await client.get("/jobs/overview")).json() == {"jobs": []}
        job = (await client.post("/jobs", json=SPEC)).json()["jobid"]
        assert [line["jid"] for line in (await client.get("/jobs/overview")).json()["jobs"]] == [job]

    run_scenario(scenario)


def test_without_a_leader_a_standby_responds_503() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        gone = bound()  # nothing listens there
        for url in (None, pair.second.url, url_of(gone)):
            pair.leaders.lead(url)
            for method, path in (("GET", "/jobs"), ("GET", "/jobs/overview"), ("POST", "/jobs"), ("POST", "/blobs")):
                response = await client.request(method, path, content=b"x" if method == "POST" else None)
                assert (response.status_code, response.headers["retry-after"]) == (503, "1"), (url, path)
        gone.close()
        assert not pair.second.rest.blobs.content

    run_scenario(scenario)


def test_a_request_is_forwarded_once() -> None:
    """Two that each take the other for the leader."""

    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.first.epoch = None  # the first has stepped down, and this is not published yet
        pair.leaders.lead(pair.first.url)
        response = await client.get("/jobs")
        assert response.status_code == 503
        assert (await client.get("/taskmanagers")).status_code == 503
        marked = await client.get("/jobs", headers={"Flintlock-Forwarded": "1"})
        assert marked.status_code == 503
        assert "does not lead" in errors(marked)

    run_scenario(scenario)


@asynccontextmanager
async def silent(answer: bytes = b"") -> AsyncGenerator[tuple[str, asyncio.Queue[bytes]]]:
    """Something that takes requests, says `answer` and no more: a leader that was stopped."""
    received: asyncio.Queue[bytes] = asyncio.Queue()
    open_ends: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ends.append(writer)
        writer.write(answer)
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                received.put_nowait(data)
        received.put_nowait(b"")

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
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

    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        async with silent() as (url, received), asyncio.TaskGroup() as tasks:
            pair.leaders.lead(url, 2)
            waiting = tasks.create_task(client.request(method, path, headers=headers, content=b"{}"))
            await received.get()
            pair.leaders.lead(pair.first.url, 3)
            response = await waiting
        assert response.status_code == status
        assert ("retry-after" in response.headers) == (status == 503)
        assert ("not known" in errors(response)) == (status == 502)

    run_scenario(scenario)


def test_an_aborted_response_is_not_taken_for_a_complete_one() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        begun = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
        async with silent(begun) as (url, _):
            pair.leaders.lead(url, 2)
            async with client.stream("GET", "/taskmanagers") as response:
                pieces = response.aiter_raw()
                assert await anext(pieces) == b"{"
                pair.leaders.lead(pair.first.url, 3)
                with pytest.raises(httpx.RemoteProtocolError):
                    await anext(pieces)

    run_scenario(scenario)


def test_a_stream_of_events_ends_when_another_leads() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.first.rest.dispatcher.put(running(A))
        lines: list[str] = []
        async with client.stream("GET", "/events") as response:
            async for line in response.aiter_lines():
                lines.append(line)
                pair.leaders.lead("http://127.0.0.1:1", 2)
        assert any(A in line for line in lines)

    run_scenario(scenario)


def test_the_request_of_a_client_that_disconnects_is_cancelled() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        async with silent() as (url, received):
            pair.leaders.lead(url, 2)
            with pytest.raises(httpx.ReadTimeout):
                await client.get(f"/jobs/{A}/execution-result?wait=60s", timeout=0.2)
            assert await received.get()
            assert await received.get() == b""  # the connection to the leader is closed

    run_scenario(scenario)


def test_what_is_too_large_is_refused_through_a_standby_too() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        begun = time.monotonic()
        response = await client.post("/blobs", content=b"x" * 3_000_000)
        assert response.status_code == 413
        assert time.monotonic() - begun < 10

    run_scenario(scenario)


def test_a_leader_that_is_cut_off_serves_only_routes_of_its_process() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.first.paused = "ZooKeeper is out of reach"
        for response in (await client.get(pair.first.url + "/jobs"), await client.get("/taskmanagers")):
            assert (response.status_code, errors(response)) == (503, "ZooKeeper is out of reach")
            assert response.headers["retry-after"] == "1"
        assert (await client.get(pair.first.url + "/healthz")).status_code == 200

        pair.first.paused = ""
        assert (await client.get("/taskmanagers")).status_code == 200

    run_scenario(scenario)


def test_nothing_is_forwarded_to_a_leader_that_does_not_serve_yet() -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        pair.leaders.lead(pair.first.url, 2, confirmed=False)
        response = await client.get("/taskmanagers")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        pair.leaders.lead(pair.first.url, 2)
        assert (await client.get("/taskmanagers")).status_code == 200

    run_scenario(scenario)


def test_short_requests_are_not_queued_behind_long_polls_and_streams() -> None:
    """However many clients wait for the end of a job, a pool of a few connections serves the others."""

    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        dispatcher = pair.first.rest.dispatcher
        dispatcher.put(running(A))
        async with asyncio.TaskGroup() as tasks:
            polls = [tasks.create_task(client.get(f"/jobs/{A}/execution-result?wait=60s")) for _ in range(40)]
            while len(dispatcher.awaited) < len(polls):  # noqa: ASYNC110 the leader has no event for it
                await asyncio.sleep(0.01)
            for path in ("/taskmanagers", f"/jobs/{A}", "/jobs/overview?limit=1", "/overview"):
                assert (await client.get(path)).status_code == 200
            assert (await client.post("/jobs", json=SPEC)).status_code == 202
            refused = await client.get(f"/jobs/{A}/execution-result?wait=60s")
            dispatcher.put(ended(running(A), JobStatus.FINISHED))
            assert {(await poll).json()["status"]["id"] for poll in polls} == {"COMPLETED"}
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert errors(refused).startswith("40 requests wait already for the leader")
        assert (await client.get(f"/jobs/{A}/execution-result?wait=60s")).status_code == 200

    run_scenario(scenario, own_upstream(max_connections=2, max_waiting=40))


def test_pages_of_the_listing_are_the_leaders_and_a_long_list_is_not_cached() -> None:
    """A page depends on its parameters; a list that is sent piece by piece is forwarded piece by piece."""

    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        for number in range(3):
            pair.first.rest.dispatcher.put(running(JobId(f"{number:032x}")))
        first = (await client.get("/jobs/overview?limit=2")).json()
        second = (await client.get(f"/jobs/overview?limit=2&after={first['next']}")).json()
        assert [job["jid"] for job in (*first["jobs"], *second["jobs"])] == [f"{number:032x}" for number in range(3)]
        assert "next" not in second
        for number in range(3, MAX_CACHED + 2):
            pair.first.rest.dispatcher.put(ended(running(JobId(f"{number:032x}")), JobStatus.FINISHED))
        for _ in range(2):
            whole = await client.get("/jobs/overview")
            assert "age" not in whole.headers
            assert len(whole.json()["jobs"]) == MAX_CACHED + 2

    run_scenario(scenario)

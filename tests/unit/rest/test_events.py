"""The stream of events: jobs, the cluster, the documents that a client follows, and the credential of its request."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs
from starlette.requests import Request
from tests.unit.rest.rest_harness import RESOURCES, A, B, RestHarness, ended, running

from flintlock.gateways.leader import JobManagerInfo
from flintlock.model.access.principals import ANONYMOUS, Principal, Role
from flintlock.model.errors import Unauthenticated, Unavailable
from flintlock.model.slots import ResourceOverview
from flintlock.model.states import JobStatus
from flintlock.rest.events.documents import FollowedDocument, Follower, Response
from flintlock.rest.events.shared import SharedValues
from flintlock.rest.events.stream import event_stream
from flintlock.rest.server.http import AUTHENTICATE, PRINCIPAL, RestCall
from flintlock.rest.server.routes import ROUTES
from flintlock.testing.virtual_time import run_virtual


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A), ended(running(B), JobStatus.CANCELED))
    made.resource_manager.seen = RESOURCES
    return made


async def accepted() -> None:
    """Accept the credential of a request."""


def call_of(
    rest: RestHarness,
    principal: Principal = ANONYMOUS,
    authenticate: Callable[[], Awaitable[None]] = accepted,
    shared: SharedValues | None = None,
) -> RestCall:
    """Return a call as access control passes it on."""
    scope = {"type": "http", PRINCIPAL: principal, AUTHENTICATE: authenticate}
    return RestCall(request=Request(scope), services=rest.services, shared=shared or SharedValues())


async def events_of(stream: AsyncIterator[bytes], kind: str, count: int) -> list[Any]:
    """Read events of one kind from a stream; return their data."""
    found: list[Any] = []
    async for piece in stream:
        events = [event for event in piece.decode().split("\n\n") if event.startswith(f"event: {kind}\n")]
        found += [json.loads(event.split("data: ", 1)[1]) for event in events]
        if len(found) >= count:
            break
    return found


def test_changes_are_streamed(rest: RestHarness) -> None:
    """Server-sent events on a real socket: all jobs first, then each one that changes."""

    async def read() -> list[str]:
        lines: list[str] = []
        async with (
            asyncio.timeout(20),
            rest.listening() as client,
            client.stream("GET", "/events") as response,
        ):
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                lines.append(line)
                if line == "event: listed":
                    rest.dispatcher.put(ended(running(A), JobStatus.FINISHED))
                if sum("jid" in line for line in lines) == 3:
                    break
        return lines

    lines = asyncio.run(read())

    data = [line for line in lines if "jid" in line]
    assert [A in line for line in data] == [True, False, True] or [A in line for line in data] == [False, True, True]
    assert '"state":"FINISHED"' in data[-1]
    assert lines[0] == "event: job"


def test_a_stream_reports_changes_of_the_cluster_where_that_is_requested(rest: RestHarness) -> None:
    """At its beginning, then when TaskManagers, slots or JobManagers change, and not while nothing does."""

    async def read() -> list[float]:
        loop = asyncio.get_running_loop()
        call = call_of(rest)
        stream = event_stream(call, with_cluster=True)
        times: list[float] = []
        standby = JobManagerInfo(rest="http://b:8081", rpc="b:1")
        loop.call_later(4.5, lambda: setattr(rest.resource_manager, "seen", ResourceOverview()))
        loop.call_later(7.5, lambda: setattr(rest, "job_managers", (standby,)))
        while len(times) < 3:
            if b"event: cluster" in await anext(stream):
                times.append(loop.time())
        await stream.aclose()
        return times

    first, second, third = run_virtual(read())

    assert first < 1
    assert 4.5 <= second <= 6
    assert 7.5 <= third <= 9


def test_a_stream_without_changes_sends_comments(rest: RestHarness) -> None:
    """A client can tell a quiet cluster from a lost connection."""

    async def read() -> tuple[bytes, float]:
        stream = event_stream(call_of(rest))
        await anext(stream)
        piece = await anext(stream)
        await stream.aclose()
        return piece, asyncio.get_running_loop().time()

    piece, after_s = run_virtual(read())

    assert piece.startswith(b":")
    assert piece.endswith(b"\n\n")
    assert 10 <= after_s <= 11


def test_a_stream_ends_when_the_credential_of_its_request_expires(rest: RestHarness) -> None:
    """The next request of the client needs another one."""

    async def read() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        began_ms = rest.now_ms
        call = call_of(rest, structs.replace(ANONYMOUS, expires_ms=began_ms + 30_000))
        loop.call_later(30, lambda: setattr(rest, "now_ms", began_ms + 30_000))
        async with asyncio.timeout(100):
            pieces = [piece async for piece in event_stream(call)]
        return len(pieces), loop.time()

    pieces, ended_s = run_virtual(read())

    assert pieces >= 3, "all jobs, then comments"
    assert 30 <= ended_s <= 31


def test_a_stream_of_one_that_leads_no_more_ends(rest: RestHarness) -> None:
    """A client that asks again is forwarded to the leader."""

    async def read() -> list[bytes]:
        stream = event_stream(call_of(rest))
        await anext(stream)
        rest.dispatcher.fail_with = Unavailable("no JobManager leads")
        return [piece async for piece in stream]

    assert run_virtual(read()) == []


def test_a_stream_outlives_a_change_of_leader(rest: RestHarness) -> None:
    """Without a leader it sends nothing; then it continues with the next leader."""

    async def read() -> list[bytes]:
        stream = event_stream(call_of(rest))
        pieces = [await anext(stream)]
        rest.dispatcher.fail_with = Unavailable("no JobManager leads")
        loop = asyncio.get_running_loop()
        loop.call_later(5, lambda: rest.dispatcher.put(ended(running(A), JobStatus.FINISHED)))
        loop.call_later(9, lambda: setattr(rest.dispatcher, "fail_with", None))
        pieces.append(await anext(stream))
        assert loop.time() >= 9
        await stream.aclose()
        return pieces

    first, second = run_virtual(read())

    assert first.count(b"event: job") == 2
    assert second.count(b"event: job") == 1
    assert b'"state":"FINISHED"' in second


def test_many_streams_look_at_the_cluster_once(rest: RestHarness) -> None:
    """The work of watching does not grow with the number of open dashboards."""
    shared = SharedValues()

    async def read(seconds: float) -> int:
        stream = event_stream(call_of(rest, shared=shared), with_cluster=True)
        found = 0
        try:
            async with asyncio.timeout(seconds):
                async for piece in stream:
                    found += piece.count(b"event: cluster")
        except TimeoutError:
            pass
        return found

    async def read_all() -> list[int]:
        return await asyncio.gather(*(read(10) for _ in range(20)))

    assert run_virtual(read_all()) == [1] * 20
    assert 9 <= rest.resource_manager.looks <= 11


def test_a_stream_ends_with_the_reason_when_its_credential_is_revoked(rest: RestHarness) -> None:
    async def read() -> tuple[list[bytes], float]:
        loop = asyncio.get_running_loop()

        async def authenticate() -> None:
            if loop.time() > 12:
                raise Unauthenticated("the token was revoked")

        async with asyncio.timeout(60):
            pieces = [piece async for piece in event_stream(call_of(rest, authenticate=authenticate))]
        return pieces, loop.time()

    pieces, ended_s = run_virtual(read())

    assert pieces[-1] == b'event: refused\ndata: {"errors":["the token was revoked"]}\n\n'
    assert 12 < ended_s < 22


def test_a_stream_goes_on_while_no_one_can_verify_its_credential(rest: RestHarness) -> None:
    async def unknown() -> None:
        raise Unavailable("no JobManager leads")

    async def read() -> bytes:
        stream = event_stream(call_of(rest, authenticate=unknown))
        asyncio.get_running_loop().call_later(20, lambda: rest.dispatcher.put(ended(running(A), JobStatus.FINISHED)))
        async with asyncio.timeout(60):
            async for piece in stream:
                if b"FINISHED" in piece:
                    return piece
        return b""

    assert run_virtual(read())


def test_a_revoked_token_ends_the_streams_that_it_has_opened(rest: RestHarness) -> None:
    """Over a socket, behind access control."""
    token = rest.call("POST", "/tokens", json={"name": "eve", "role": "viewer"}).json()

    async def read() -> str:
        async with asyncio.timeout(30), rest.listening() as client:
            headers = {"Authorization": f"Bearer {token['token']}"}
            async with client.stream("GET", "/events", headers=headers) as response:
                text = ""
                async for line in response.aiter_lines():
                    text += line + "\n"
                    if line == "event: listed":
                        assert (await client.delete(f"/tokens/{token['id']}")).status_code == 200
                return text

    assert "event: refused" in asyncio.run(read())


def test_a_stream_resumes_behind_the_event_that_the_client_has_received_last(rest: RestHarness) -> None:
    """Only what has changed since is sent; from a version that nothing is known of, all jobs are."""

    async def read() -> tuple[list[str], list[str]]:
        async with asyncio.timeout(20), rest.listening() as client:

            async def lines(last: str) -> list[str]:
                found: list[str] = []
                async with client.stream("GET", "/events", headers={"Last-Event-ID": last}) as response:
                    async for line in response.aiter_lines():
                        found.append(line)
                        if (found[0], line) == ("event: resumed", "") and len(found) > 3:
                            break
                        if line.startswith("id: ") and found[0] != "event: resumed":
                            break
                return found

            first = await lines("no version")
            rest.dispatcher.put(ended(running(A), JobStatus.FINISHED))
            return first, await lines(first[-1].removeprefix("id: "))

    first, second = asyncio.run(read())

    assert first.count("event: job") == 2
    assert [line for line in second if line.startswith("event")] == ["event: resumed", "event: job"]
    assert A in second[-2]


def test_documents_are_followed_and_sent_again_only_when_they_have_changed(rest: RestHarness) -> None:
    paths = [f"/jobs/{A}/attempts", "/taskmanagers"]

    async def read() -> list[Any]:
        loop = asyncio.get_running_loop()
        async with (
            asyncio.timeout(20),
            rest.listening() as client,
            client.stream("GET", "/events", params={"follow": paths}) as response,
        ):
            loop.call_later(1.5, lambda: setattr(rest.resource_manager, "seen", ResourceOverview()))
            return await events_of(response.aiter_bytes(), "document", 3)

    first, second, third = asyncio.run(read())

    assert [first["path"], second["path"], third["path"]] == [*paths, "/taskmanagers"]
    assert (first["status"], first["body"]) == (200, rest.get(f"/jobs/{A}/attempts"))
    assert len(second["body"]["taskmanagers"]) == 1
    assert third["body"] == {"taskmanagers": []}


@pytest.mark.parametrize(
    "path", ["/jobmanager/log", "/taskmanagers/tm-1/log", "/config", "/nowhere", f"/jobs/{A}/logs", "/events"]
)
def test_only_documents_for_viewers_that_the_leader_makes_can_be_followed(rest: RestHarness, path: str) -> None:
    (problem,) = rest.refused(400, "GET", f"/events?follow={path}")
    assert "is no document that can be followed" in problem


def test_each_document_that_can_be_followed_is_for_viewers() -> None:
    """A stream reads it once for all callers, and checks only who may follow events."""
    followed = [row for row in ROUTES if row.follow_s]
    assert followed
    assert {(row.method, row.role) for row in followed} == {("GET", Role.VIEWER)}


def test_values_that_no_stream_asks_for_any_more_are_dropped() -> None:
    """Documents can be large: those of streams that have ended are not kept."""

    async def scenario() -> list[int]:
        shared, made = SharedValues(), [0]

        async def make() -> object:
            made[0] += 1
            return made[0]

        for key, later_s in (("left", 10.0), ("kept", 55.0), ("kept", 0.0), ("left", 0.0)):
            await shared.get(key, math.inf, make)
            await asyncio.sleep(later_s)
        return made

    assert run_virtual(scenario()) == [3]  # `left` was made again


def test_a_stream_follows_a_bounded_number_of_documents(rest: RestHarness) -> None:
    follow = "&".join(f"follow=/jobs/{A}/attempts" for _ in range(9))
    assert rest.refused(400, "GET", f"/events?{follow}") == ["query parameter 'follow': 9 documents are more than 8"]


def test_a_document_that_is_gone_is_an_event_with_its_status(rest: RestHarness) -> None:
    async def read() -> list[Any]:
        async with asyncio.timeout(20), rest.listening() as client:
            params = {"follow": f"/jobs/{'0' * 32}/attempts"}
            async with client.stream("GET", "/events", params=params) as response:
                return await events_of(response.aiter_bytes(), "document", 1)

    (event,) = asyncio.run(read())
    assert event["status"] == 404
    assert event["body"]["errors"]


def test_output_is_sent_piece_by_piece_until_it_is_complete() -> None:
    """Each piece once; what is there already without a pause; nothing while nothing is printed."""
    printed = "abcdef"
    complete = False
    asked: list[str] = []

    async def read(path: str) -> Response:
        asked.append(path)
        offset = max(int(path.split("offset=")[1]), 0)
        text = printed[offset : offset + 4]
        part = {
            "region": 0, "attempt": 1, "offset": offset, "next-offset": offset + len(text), "size": len(printed),
            "complete": complete, "text": text,
        }  # fmt: skip
        return Response(200, json.dumps({"logs": [part]}).encode())

    path = f"/jobs/{A}/logs?region=0&attempt=1&offset=-100"
    follower = Follower(FollowedDocument(path=path, every_s=0.5, is_output=True, read=read), SharedValues())

    async def follow() -> list[str]:
        nonlocal printed, complete
        found: list[str] = []
        for now_s in (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0):
            if now_s == 2.0:
                printed, complete = printed + "gh", True
            event = await follower.look(now_s)
            if event:
                data = json.loads(event.decode().split("data: ")[1])
                assert data["path"] == path
                found.append(data["body"]["logs"][0]["text"])
        return found

    assert asyncio.run(follow()) == ["abcd", "ef", "gh"]
    assert [path.split("offset=")[1] for path in asked] == ["-100", "4", "6", "6"]


def test_a_large_document_is_looked_at_less_often() -> None:
    """A stream sends 256 KiB of a document in a second."""
    reads = 0

    async def read(_: str) -> Response:
        nonlocal reads
        reads += 1
        return Response(200, b'"%d%b"' % (reads, b"x" * 1_048_576))

    async def follow() -> int:
        follower = Follower(FollowedDocument(path="/x", every_s=1.0, is_output=False, read=read), SharedValues())
        sent = 0
        for _ in range(36):
            sent += bool(await follower.look(asyncio.get_running_loop().time()))
            await asyncio.sleep(0.25)
        return sent

    assert run_virtual(follow()) == 3

"""Every JobManager answers: one that does not lead passes requests on to the one that does.

    leads                     answers itself
    leads, but is cut off     503 with Retry-After: it does not know whether it still leads
    stands by, leader known   passes on; what is asked all the time comes from a copy, marked with its age
    nobody leads              503 with Retry-After

Answers name the epoch of the leader that gave them. What concerns the process and not the cluster (its health, its
metrics, its logs) is answered by the process that was asked. A request is passed on once: it carries a mark, and a
JobManager that gets a marked one leads, or says that it does not. None is passed on to oneself.

When the leader changes, requests that still wait for the old one are given up: it may be frozen and never answer. They
end with 503, or, where the answer has begun, with a broken connection; a stream of events just ends. One case is told
apart: a submission without a key that the leader may have taken already gets 502, for sending it again could make two
jobs.

Rejected: redirects, as the leader may not be reachable from where the client is, and few clients follow them with a
body; passing on by RPC, which would need every call of every gateway a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flintlock.api import jobs as shapes
from flintlock.ha.known_leader import KnownLeader
from flintlock.ha.leader_info import LeaderInfo
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import Epoch
from flintlock.model.quantities import duration_s
from flintlock.rest.server.http import JSON, answer
from flintlock.rest.server.leader_cache import Copies, Copy
from flintlock.rest.server.upstream import ANSWER_S, FORWARDED, Answered, Broken, ClientGone, RequestBody, Upstream

log = structlog.get_logger()

EPOCH: Final = b"flintlock-leader-epoch"
_OWN: Final = frozenset({"/config", "/healthz", "/metrics", "/openapi.json", "/versions"})
_OWN_FOLDER: Final = "/jobmanager/"
_COPIED: Final = frozenset({"/jobs", "/jobs/overview", "/overview"})
_EVENTS: Final = "/events"
_LONGEST_WAIT_S: Final = 600.0
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Forwarding:
    """Stands before the application of one JobManager. `run` belongs to it for as long as it serves.

    `leading` gives the epoch in which this one leads, None if it does not; it raises Unavailable, with the reason, for
    a leader that must not answer now.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        leading: Callable[[], Epoch | None],
        leaders: KnownLeader,
        upstream: Upstream,
        clock_s: Callable[[], float],
        own_url: str,
    ) -> None:
        self._app: Final = app
        self._leading: Final = leading
        self._leaders: Final = leaders
        self._upstream: Final = upstream
        self._copies: Final = Copies(clock_s)
        self._clock_s: Final = clock_s
        self._own_url: Final = own_url
        self._waits: Final[dict[asyncio.Timeout, LeaderInfo]] = {}  # who waits for which leader's answer

    async def run(self) -> None:
        """Give up what waits for a leader that leads no more, until cancelled."""
        leader = self._leaders.told
        while True:
            leader = await self._leaders.changed(leader)
            now_s = asyncio.get_running_loop().time()
            for wait, waited_for in self._waits.items():
                if waited_for != leader and not wait.expired():
                    wait.reschedule(now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or _is_own(path := _bare(scope["path"])):
            await self._app(scope, receive, send)
            return
        try:
            epoch = self._leading()
        except Unavailable as paused:
            await refuse(send, 503, paused.public)
            return
        if epoch is not None:
            await self._app(scope, receive, _marked(send, epoch))
            return
        leader = self._leaders.serving
        if leader is None or leader.rest == self._own_url:
            await refuse(send, 503, "no JobManager leads at the moment; ask again")
        elif any(name == FORWARDED for name, _ in scope["headers"]):
            await refuse(send, 503, "this JobManager was taken for the leader and is not; ask again")
        elif scope["method"] == "GET" and path in _COPIED and not _wants_fresh(scope):
            await self._answer_from_copy(path, leader, send)
        else:
            await self._forward(path, leader, scope, receive, send)

    async def _answer_from_copy(self, path: str, leader: LeaderInfo, send: Send) -> None:
        try:
            copy = await self._copies.get(path, leader, lambda: self._fetch(path, leader))
        except FlintlockError as error:
            await refuse(send, 503, error.public)
            return
        age = b"%d" % int(self._copies.age_s(copy))
        await send({"type": "http.response.start", "status": copy.status, "headers": [*copy.headers, (b"age", age)]})
        await send({"type": "http.response.body", "body": copy.body})

    async def _fetch(self, path: str, leader: LeaderInfo) -> Copy:
        asked_s = self._clock_s()
        try:
            async with self._waiting(leader, ANSWER_S), self._upstream.get(leader, path.encode()) as answered:
                body = b"".join([piece async for piece in answered.pieces])
        except TimeoutError:
            raise Unavailable(f"the leader at {leader.rest} does not answer; ask again") from None
        return Copy(leader=leader, status=answered.status, headers=answered.headers, body=body, asked_s=asked_s)

    async def _forward(self, path: str, leader: LeaderInfo, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and its answer back."""
        passage = _Passage(send)
        body = RequestBody(scope, receive)
        failure: Broken | None = None
        try:
            async with self._waiting(leader, None) as wait, asyncio.TaskGroup() as tasks:
                leaving = tasks.create_task(_given_up(body, passage, wait), name="client-leaves")
                try:
                    async with self._upstream.forward(leader, scope, body, _answer_s(path, scope)) as answered:
                        await passage.pass_back(answered)
                except Broken as error:
                    failure = error
                except ClientGone:
                    return
                finally:
                    leaving.cancel()
        except TimeoutError:
            failure = Broken(f"the leader at {leader.rest} leads no more; ask again")
            failure.sent = True
        finally:
            if scope["method"] not in _SAFE:
                self._copies.outdate()
        if failure is not None:
            await passage.fail(failure, keyless=_is_keyless_submission(path, scope))

    @asynccontextmanager
    async def _waiting(self, leader: LeaderInfo, limit_s: float | None) -> AsyncGenerator[asyncio.Timeout]:
        """Wait for this leader. Raises TimeoutError after `limit_s`, or when it leads no more."""
        async with asyncio.timeout(limit_s) as wait:
            self._waits[wait] = leader
            try:
                yield wait
            finally:
                del self._waits[wait]


class _Passage:
    """The way back to one client."""

    def __init__(self, send: Send) -> None:
        self._send: Final = send
        self.complete = False  # all of the answer is on its way: a client that leaves now has had it
        self._begun = False  # the client has the status
        self._events = False  # and what follows is a stream without an end of its own

    async def pass_back(self, answered: Answered) -> None:
        """Give the client the leader's answer as it comes."""
        self._begun = True
        self._events = any(name == b"content-type" and b"event-stream" in value for name, value in answered.headers)
        await self._send({"type": "http.response.start", "status": answered.status, "headers": answered.headers})
        async for piece in answered.pieces:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self.complete = True
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Broken, *, keyless: bool) -> None:
        """Tell the client that there is no answer, or no more of it."""
        if not self._begun:
            status = 502 if keyless and failure.sent else 503
            doubt = "; whether the job was taken is not known, look before you send it again" if status == 502 else ""
            await refuse(self._send, status, failure.public + doubt)
        elif self._events:
            await self._send({"type": "http.response.body", "body": b""})
        else:
            # An answer that is left without its end makes the server close the connection: the client must not
            # take the part for the whole.
            log.warning(log_events.RESPONSE_ABORTED, reason=failure.public)


async def _given_up(body: RequestBody, passage: _Passage, wait: asyncio.Timeout) -> None:
    await body.client_left()
    if not passage.complete and not wait.expired():
        wait.reschedule(asyncio.get_running_loop().time())


async def refuse(send: Send, status: int, text: str) -> None:
    """Answer with an error."""
    body = answer(shapes.Errors(errors=[text])).body
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _marked(send: Send, epoch: Epoch) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (EPOCH, b"%d" % epoch)]}
        await send(message)

    return marked


def _bare(path: str) -> str:
    return path.removeprefix("/v1") if path.startswith("/v1/") else path


def _is_own(path: str) -> bool:
    return path in _OWN or path.startswith(_OWN_FOLDER)


def _wants_fresh(scope: Scope) -> bool:
    return any(name == b"cache-control" and b"no-cache" in value for name, value in scope["headers"])


def _is_keyless_submission(path: str, scope: Scope) -> bool:
    if (scope["method"], path) != ("POST", "/jobs"):
        return False
    return not any(name == b"idempotency-key" for name, _ in scope["headers"])


def _answer_s(path: str, scope: Scope) -> float | None:
    """Return how long to wait for each part of the answer: longer where the client asks for it to be held back."""
    if path == _EVENTS:
        return None
    wait = QueryParams(scope["query_string"]).get("wait")
    try:
        return ANSWER_S + (min(duration_s(wait), _LONGEST_WAIT_S) if wait else 0.0)
    except ValueError:
        return ANSWER_S  # the leader says what is wrong with it

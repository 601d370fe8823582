from __future__ import annotations

import asyncio

import pytest

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.rest.server.response_cache import CachedResponse, ResponseCache
from flintlock.testing.virtual_time import run_virtual

MAX_AGE_S = 0.5
LEADER = LeaderInfo(rest="http://a:1", rpc="a:2", token=FencingToken(Epoch(1), "s"))
NEXT = LeaderInfo(rest="http://b:1", rpc="b:2", token=FencingToken(Epoch(2), "s"))


class Harness:
    """A leader whose responses are numbered, and take a tenth of a second each."""

    def __init__(self) -> None:
        self.clock_s = asyncio.get_running_loop().time
        self.cache = ResponseCache(self.clock_s)
        self.fetched = 0
        self.status = 200
        self.fail_with: Exception | None = None

    async def get(self, leader: LeaderInfo = LEADER) -> bytes:
        async def fetch() -> CachedResponse:
            requested_s = self.clock_s()
            self.fetched += 1
            body = b"%d" % self.fetched
            await asyncio.sleep(0.1)
            if self.fail_with is not None:
                raise self.fail_with
            return CachedResponse(status=self.status, headers=[], body=body, requested_s=requested_s)

        response = await self.cache.get("/jobs/overview", leader, MAX_AGE_S, fetch)
        assert self.cache.age_s(response) <= MAX_AGE_S
        return response.body


def test_a_young_response_is_sent_again_and_an_old_one_is_not() -> None:
    async def scenario() -> list[bytes]:
        harness = Harness()
        bodies = [await harness.get(), await harness.get()]
        await asyncio.sleep(MAX_AGE_S)
        return [*bodies, await harness.get()]

    assert run_virtual(scenario()) == [b"1", b"1", b"2"]


def test_concurrent_requests_share_one_fetch() -> None:
    async def scenario() -> tuple[list[bytes], int]:
        harness = Harness()
        return await asyncio.gather(*(harness.get() for _ in range(50))), harness.fetched

    bodies, fetched = run_virtual(scenario())

    assert set(bodies) == {b"1"}
    assert fetched == 1


def test_another_leader_is_another_version() -> None:
    async def scenario() -> list[bytes]:
        harness = Harness()
        return [await harness.get(LEADER), await harness.get(NEXT), await harness.get(NEXT)]

    assert run_virtual(scenario()) == [b"1", b"2", b"2"]


def test_a_fetch_that_began_before_an_invalidation_is_not_kept() -> None:
    async def scenario() -> list[bytes]:
        harness = Harness()
        async with asyncio.TaskGroup() as tasks:
            older = tasks.create_task(harness.get())
            await asyncio.sleep(0.05)
            harness.cache.invalidate()
            newer = tasks.create_task(harness.get())
        return [older.result(), newer.result(), await harness.get()]

    assert run_virtual(scenario()) == [b"1", b"2", b"2"]


def test_a_failure_reaches_all_waiting_requests_and_is_not_kept() -> None:
    async def scenario() -> None:
        harness = Harness()
        harness.fail_with = Unavailable("gone")
        answers = await asyncio.gather(*(harness.get() for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        harness.fail_with = None
        assert await harness.get() == b"2"

    run_virtual(scenario())


def test_an_error_response_is_not_kept() -> None:
    async def scenario() -> list[bytes]:
        harness = Harness()
        harness.status = 503
        return [await harness.get(), await harness.get()]

    assert run_virtual(scenario()) == [b"1", b"2"]


def test_if_the_fetching_request_is_cancelled_the_others_may_try_again() -> None:
    async def scenario() -> None:
        harness = Harness()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(harness.get())
            await asyncio.sleep(0)
            second = tasks.create_task(_refused(harness))
            await asyncio.sleep(0)
            first.cancel()
        assert second.result()
        assert await harness.get() == b"2"

    run_virtual(scenario())


async def _refused(harness: Harness) -> bool:
    with pytest.raises(Unavailable):
        await harness.get()
    return True

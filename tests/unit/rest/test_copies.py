from __future__ import annotations

import asyncio

import pytest

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, FencingToken
from flintlock.rest.server.leader_cache import OLDEST_S, Copies, Copy
from flintlock.testing.virtual_time import run_virtual

LEADER = LeaderInfo(rest="http://a:1", rpc="a:2", token=FencingToken(Epoch(1), "s"))
NEXT = LeaderInfo(rest="http://b:1", rpc="b:2", token=FencingToken(Epoch(2), "s"))


class Stage:
    """A leader whose answers are numbered, and take a second each."""

    def __init__(self) -> None:
        self.clock_s = asyncio.get_running_loop().time
        self.copies = Copies(self.clock_s)
        self.fetched = 0
        self.status = 200
        self.fail_with: Exception | None = None

    async def get(self, leader: LeaderInfo = LEADER) -> bytes:
        async def fetch() -> Copy:
            asked_s = self.clock_s()
            self.fetched += 1
            body = b"%d" % self.fetched
            await asyncio.sleep(0.1)
            if self.fail_with is not None:
                raise self.fail_with
            return Copy(leader=leader, status=self.status, headers=[], body=body, asked_s=asked_s)

        copy = await self.copies.get("/jobs/overview", leader, fetch)
        assert self.copies.age_s(copy) <= OLDEST_S
        return copy.body


def test_a_young_copy_is_given_again_and_an_old_one_is_not() -> None:
    async def story() -> list[bytes]:
        stage = Stage()
        bodies = [await stage.get(), await stage.get()]
        await asyncio.sleep(OLDEST_S)
        return [*bodies, await stage.get()]

    assert run_virtual(story()) == [b"1", b"1", b"2"]


def test_many_who_ask_at_once_wait_for_one_answer() -> None:
    async def story() -> tuple[list[bytes], int]:
        stage = Stage()
        return await asyncio.gather(*(stage.get() for _ in range(50))), stage.fetched

    bodies, fetched = run_virtual(story())

    assert set(bodies) == {b"1"}
    assert fetched == 1


def test_another_leaders_answer_is_another_answer() -> None:
    async def story() -> list[bytes]:
        stage = Stage()
        return [await stage.get(LEADER), await stage.get(NEXT), await stage.get(NEXT)]

    assert run_virtual(story()) == [b"1", b"2", b"2"]


def test_whoever_changes_something_sees_it_though_an_older_answer_is_under_way() -> None:
    async def story() -> list[bytes]:
        stage = Stage()
        async with asyncio.TaskGroup() as tasks:
            older = tasks.create_task(stage.get())
            await asyncio.sleep(0.05)
            stage.copies.outdate()
            newer = tasks.create_task(stage.get())
        return [older.result(), newer.result(), await stage.get()]

    assert run_virtual(story()) == [b"1", b"2", b"2"]


def test_a_failure_is_told_to_all_who_wait_and_kept_for_nobody() -> None:
    async def story() -> None:
        stage = Stage()
        stage.fail_with = Unavailable("gone")
        answers = await asyncio.gather(*(stage.get() for _ in range(3)), return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        stage.fail_with = None
        assert await stage.get() == b"2"

    run_virtual(story())


def test_an_answer_that_is_none_is_not_kept() -> None:
    async def story() -> list[bytes]:
        stage = Stage()
        stage.status = 503
        return [await stage.get(), await stage.get()]

    assert run_virtual(story()) == [b"1", b"2"]


def test_if_the_one_who_fetches_leaves_the_others_may_ask_again() -> None:
    async def story() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(stage.get())
            await asyncio.sleep(0)
            second = tasks.create_task(_refused(stage))
            await asyncio.sleep(0)
            first.cancel()
        assert second.result()
        assert await stage.get() == b"2"

    run_virtual(story())


async def _refused(stage: Stage) -> bool:
    with pytest.raises(Unavailable):
        await stage.get()
    return True

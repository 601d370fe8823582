"""A bridge that hangs is ended, and its JobManager with it; a ResourceManager of YARN that is away is waited for."""

from __future__ import annotations

import asyncio

import pytest

from flintlock.model.errors import Unavailable
from flintlock.testing.fakes.fake_yarn import FakeApplicationMaster
from flintlock.yarn.bridge_watch import watch_bridge

LIMIT_S = 0.2


class CountingMaster(FakeApplicationMaster):
    """Counts how often the bridge has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def check_bridge(self) -> None:
        super().check_bridge()
        self.answers += 1


def test_a_bridge_that_hangs_is_ended() -> None:
    master = FakeApplicationMaster()
    master.bridge_answers.clear()
    with pytest.raises(Unavailable, match=r"the bridge to YARN has not answered for 0.2 s, and was ended"):
        asyncio.run(watch_bridge(master, LIMIT_S))
    assert master.bridge_ended.is_set()


def test_a_bridge_that_has_ended_is_not_waited_for() -> None:
    master = FakeApplicationMaster()
    master.end_bridge()
    with pytest.raises(Unavailable, match="the bridge to YARN does not answer"):
        asyncio.run(asyncio.wait_for(watch_bridge(master, 3600.0), 10))


def test_a_bridge_that_answers_is_left_alone_however_long_calls_of_yarn_take() -> None:
    async def scenario() -> None:
        master = CountingMaster()
        master.resource_manager_answers.clear()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch_bridge(master, LIMIT_S), name="watch")
            await answers(master, 10)
            assert not watching.done()
            watching.cancel()
        assert not master.bridge_ended.is_set()

    asyncio.run(scenario())


def test_an_answer_that_comes_late_but_within_the_limit_counts() -> None:
    async def scenario() -> None:
        master = CountingMaster()
        master.bridge_answers.clear()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch_bridge(master, 5.0), name="watch")
            await asyncio.wait({watching}, timeout=1.2)  # longer than one look
            master.bridge_answers.set()
            await answers(master, 1)
            watching.cancel()
        assert not master.bridge_ended.is_set()

    asyncio.run(scenario())


async def answers(master: CountingMaster, count: int) -> None:
    """Wait for so many answers."""
    async with asyncio.timeout(10):
        while master.answers < count:  # noqa: ASYNC110 (a thread changes it)
            await asyncio.sleep(0.01)

"""A leader that must not act waits, and repeats a write whose outcome is unknown."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.model.errors import NotFound, Unavailable
from flintlock.testing.virtual_time import virtual_time


class Store:
    """A write that raises the given failures, one for each call, and counts."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.tries = 0

    async def write(self) -> int:
        self.tries += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return self.tries


@virtual_time
async def test_a_leader_that_may_act_does_so_at_once() -> None:
    gate = LeaderGate()

    gate.check()
    await gate.wait_until_active()

    assert gate.paused is None
    assert asyncio.get_running_loop().time() == 0


@virtual_time
async def test_all_waiters_go_on_when_the_leader_may_act_again() -> None:
    reason: list[str] = ["cut off"]
    gate = LeaderGate(lambda: reason[0] if reason else None)
    with pytest.raises(Unavailable, match="cut off"):
        gate.check()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(gate.wait_until_active()) for _ in range(100)]
        await asyncio.sleep(60)
        assert not any(task.done() for task in waiting)

        reason.clear()
        await asyncio.sleep(0.1)

        assert all(task.done() for task in waiting)
        reason.append("cut off once more")
        late = tasks.create_task(gate.wait_until_active())
        await asyncio.sleep(1)
        assert not late.done()
        reason.clear()


@virtual_time
async def test_a_write_is_not_tried_while_the_leader_must_not_act() -> None:
    reason: list[str] = ["cut off"]
    gate = LeaderGate(lambda: reason[0] if reason else None)
    store = Store()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(gate.retry_until_acknowledged(store.write))
        await asyncio.sleep(3600)
        assert store.tries == 0

        reason.clear()

        assert await writing == 1


@virtual_time
async def test_a_write_with_an_unknown_outcome_is_repeated_until_it_is_acknowledged() -> None:
    store = Store(*(Unavailable("no answer") for _ in range(20)))

    assert await LeaderGate().retry_until_acknowledged(store.write) == 21


@virtual_time
async def test_a_known_failure_is_raised_at_once() -> None:
    store = Store(NotFound("no such thing"))

    with pytest.raises(NotFound):
        await LeaderGate().retry_until_acknowledged(store.write)
    assert store.tries == 1


@virtual_time
async def test_patience_ends_and_does_not_count_the_time_in_which_the_leader_was_cut_off() -> None:
    reason: list[str] = ["cut off"]
    gate, store = (
        LeaderGate(lambda: reason[0] if reason else None),
        Store(*(Unavailable("full") for _ in range(99))),
    )
    asyncio.get_running_loop().call_later(3600, reason.clear)

    with pytest.raises(Unavailable, match="full"):
        await gate.retry_until_acknowledged(store.write, patience_s=PATIENCE_S)

    assert 3600 + PATIENCE_S <= asyncio.get_running_loop().time() < 3600 + 2 * PATIENCE_S


@virtual_time
async def test_a_store_that_is_out_of_reach_for_an_hour_is_logged_once_a_minute_not_at_each_try() -> None:
    store = Store(*[Unavailable("the disk is full")] * 700)
    with capture_logs() as logs:
        await LeaderGate().retry_until_acknowledged(store.write)
    lines = [line for line in logs if line["event"] == "store-unavailable"]
    assert store.tries == 701
    assert 55 <= len(lines) <= 60

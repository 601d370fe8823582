from __future__ import annotations

import asyncio

from flintlock.ha.leader_info import KnownLeader, LeaderAddresses, LeaderInfo
from flintlock.model.ids import Epoch, FencingToken
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices
from flintlock.testing.virtual_time import virtual_time

TOKEN = FencingToken(Epoch(1), "s")
EARLY = LeaderAddresses(rpc="a:1", rest="http://a:2").leads(TOKEN, confirmed=False)
READY = LeaderInfo(rpc="a:1", rest="http://a:2", token=TOKEN)


@virtual_time
async def test_a_leader_is_known_before_it_serves_and_serves_once_it_is_confirmed() -> None:
    known = KnownLeader()
    assert (known.latest, known.serving) == (None, None)
    known.update(EARLY)
    assert (known.latest, known.serving) == (EARLY, None)
    known.update(READY)
    assert (known.latest, known.serving) == (READY, READY)
    known.update(None)
    assert (known.latest, known.serving) == (None, None)


@virtual_time
async def test_a_waiter_wakes_for_each_change_and_for_nothing_else() -> None:
    known = KnownLeader()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(known.changed(None))
        await asyncio.sleep(1)
        known.update(None)
        await asyncio.sleep(1)
        assert not waiting.done()
        known.update(EARLY)
        assert await waiting == EARLY
    assert await known.changed(None) == EARLY


@virtual_time
async def test_published_changes_are_followed() -> None:
    ha = MemoryHaServices(MemoryCluster(automatic=True), "a")
    known = KnownLeader()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(known.follow(ha.leader.changes()))
        async with await anext(ha.election.terms()) as token:
            info = LeaderInfo(rpc="a:1", rest="http://a:2", token=token)
            await ha.leader.publish(info)
            assert await known.changed(None) == info
        assert await known.changed(info) is None
        following.cancel()

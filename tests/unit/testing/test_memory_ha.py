"""What the store in memory offers beyond the contract: steps to crash or wait at, and leadership that obeys."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.records import JOB_A, stored_job

from flintlock.model.errors import DuplicateJob, Fenced
from flintlock.model.ids import Epoch, FencingToken
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices

pytestmark = pytest.mark.anyio

TOKEN = FencingToken(Epoch(1), "session")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Steps:
    """Remembers each step; hangs at one of them, as a process that died there."""

    def __init__(self, dies_at: str | None = None) -> None:
        self.dies_at = dies_at
        self.seen: list[str] = []
        self.died = asyncio.Event()

    async def __call__(self, name: str) -> None:
        self.seen.append(name)
        if name == self.dies_at:
            self.died.set()
            await asyncio.Event().wait()


async def test_each_operation_has_a_step_before_and_one_after_its_effect() -> None:
    cluster, steps = MemoryCluster(), Steps()
    stores = MemoryHaServices(cluster, "jm", steps).stores(TOKEN)

    await stores.graphs.put(stored_job())
    await stores.graphs.ids()

    assert steps.seen == ["graphs.put:before", "graphs.put:after", "graphs.ids:before", "graphs.ids:after"]


async def test_a_refused_write_has_no_step_after() -> None:
    steps = Steps()
    stores = MemoryHaServices(MemoryCluster(), "jm", steps).stores(TOKEN)
    await stores.graphs.put(stored_job())

    with pytest.raises(DuplicateJob):
        await stores.graphs.put(stored_job())

    assert steps.seen[2:] == ["graphs.put:before"]


@pytest.mark.parametrize(("dies_at", "there"), [("graphs.put:before", False), ("graphs.put:after", True)])
async def test_a_process_that_dies_at_a_step_receives_no_answer(dies_at: str, there: bool) -> None:
    cluster, steps = MemoryCluster(), Steps(dies_at)
    stores = MemoryHaServices(cluster, "jm", steps).stores(TOKEN)

    async with asyncio.TaskGroup() as tasks:
        put = tasks.create_task(stores.graphs.put(stored_job()), name="put")
        await steps.died.wait()
        assert not put.done()
        put.cancel()

    assert (JOB_A in cluster.graphs) is there


async def test_a_grant_waits_for_its_holder_to_contend() -> None:
    cluster = MemoryCluster()
    cluster.grant("b")
    a, b = MemoryHaServices(cluster, "a"), MemoryHaServices(cluster, "b")

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_anext_token(a), name="a")
        assert await _anext_token(b) == FencingToken(Epoch(1), "b-1")
        assert not waiting.done()
        assert cluster.contending == ("a",)
        waiting.cancel()


async def test_no_process_leads_without_a_grant() -> None:
    cluster = MemoryCluster()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_anext_token(MemoryHaServices(cluster, "a")), name="a")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert cluster.holder is None
        waiting.cancel()


async def test_a_leader_deposed_silently_goes_on_fenced_until_it_is_revoked() -> None:
    cluster = MemoryCluster()
    old, new = MemoryHaServices(cluster, "old"), MemoryHaServices(cluster, "new")
    cluster.grant("old")
    stepped_down = False
    async with await anext(old.election.terms()) as token:
        cluster.grant("new", silently=True)
        await _anext_token(new)

        with pytest.raises(Fenced):
            await old.stores(token).graphs.put(stored_job())
        cluster.revoke("old")
        try:
            await asyncio.Event().wait()
        finally:
            stepped_down = True

    assert stepped_down
    assert cluster.token == FencingToken(Epoch(2), "new-2")


async def test_granting_the_leader_again_begins_a_new_term_of_it() -> None:
    cluster = MemoryCluster()
    process = MemoryHaServices(cluster, "a")
    cluster.grant("a")
    epochs: list[int] = []

    async for term in process.election.terms():
        async with term as token:
            epochs.append(token.epoch)
            if len(epochs) == 2:
                break
            cluster.grant("a")
            await asyncio.Event().wait()

    assert epochs == [1, 2]


async def test_a_restarted_process_takes_the_place_of_its_former_self() -> None:
    cluster, steps = MemoryCluster(automatic=True), Steps("election.begin:after")
    dead, restarted = MemoryHaServices(cluster, "a", steps), MemoryHaServices(cluster, "a")

    async with asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(_anext_token(dead), name="dead")
        await steps.died.wait()
        cluster.remove_candidate("a")

        async with await anext(restarted.election.terms()) as token:
            assert token.epoch == 2
            hanging.cancel()
            await asyncio.wait([hanging])
            assert cluster.holder == "a", "what is left of the dead one changes nothing"


async def _anext_token(services: MemoryHaServices) -> FencingToken:
    async with await anext(services.election.terms()) as token:
        return token

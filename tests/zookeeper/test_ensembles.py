"""What happens to a leader when servers of the ensemble are killed, frozen and come back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from tests.contract.records import JOB_A, JOB_B, stored_job
from tests.zookeeper.cluster_harness import LIMIT_S, ClusterHarness, Leader, running_cluster, until
from tests.zookeeper.servers import Ensemble, running_ensemble

from flintlock.ha.zookeeper.operations import LinkState
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.errors import Fenced, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Ensemble]:
    with running_ensemble(tmp_path / "lone") as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with running_ensemble(tmp_path_factory.mktemp("three"), 3) as ensemble:
        yield ensemble


@pytest.fixture
async def harness(lone: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(lone.quorum, tmp_path) as harness:
        yield harness


@pytest.fixture
async def large(three: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(three.quorum, tmp_path) as harness:
        yield harness


async def test_a_server_killed_and_started_again_in_time_changes_nothing(
    lone: Ensemble, harness: ClusterHarness
) -> None:
    ha = await harness.process(timeout_s=20)
    leader = harness.contend(ha)
    await leader.until(lambda leader: leader.leads)
    await leader.stores.graphs.put(stored_job(JOB_A))

    lone.servers[0].kill()
    await until("SUSPENDED", lambda: ha.link.state is LinkState.SUSPENDED)
    with pytest.raises(Unavailable):
        await leader.stores.graphs.put(stored_job(JOB_B))
    lone.servers[0].start()
    await until("CONNECTED", lambda: ha.link.state is LinkState.CONNECTED)

    assert len(leader.tokens) == 1
    assert leader.leads
    assert await leader.stores.graphs.recover(JOB_A) == stored_job(JOB_A)
    await leader.stores.graphs.put(stored_job(JOB_B))


async def test_while_the_server_is_frozen_the_leader_steps_down_and_leads_again_after(
    lone: Ensemble, harness: ClusterHarness
) -> None:
    leader = harness.contend(await harness.process(timeout_s=2))
    await leader.until(lambda leader: leader.leads)
    await leader.stores.graphs.put(stored_job())

    lone.servers[0].signal(signal.SIGSTOP)
    await leader.until(lambda leader: not leader.leads)
    lone.servers[0].signal(signal.SIGCONT)
    await leader.until(lambda leader: leader.leads)

    assert leader.tokens[1].epoch > leader.tokens[0].epoch
    assert await leader.stores.graphs.recover(JOB_A) == stored_job()


async def test_a_rolling_restart_of_three_servers_by_sigkill_changes_nothing(
    three: Ensemble, large: ClusterHarness
) -> None:
    ha = await large.process(timeout_s=15)
    leader = large.contend(ha)
    await leader.until(lambda leader: leader.leads)

    for server in three.servers:  # one after the other, so the client's own and the ensemble's leader are among them
        server.kill()
        await _write_when_possible(leader)
        server.start()
        await asyncio.to_thread(server.await_serving)

    assert len(leader.tokens) == 1
    assert leader.leads


async def test_without_a_quorum_nothing_is_written_and_with_it_nothing_is_lost(
    three: Ensemble, large: ClusterHarness
) -> None:
    ha = await large.process(timeout_s=3)
    leader = large.contend(ha)
    await leader.until(lambda leader: leader.leads)
    await leader.stores.graphs.put(stored_job(JOB_A))

    for server in three.servers[:2]:
        server.kill()
    await leader.until(lambda leader: not leader.leads)
    with pytest.raises(Fenced):
        await leader.ha.stores(leader.tokens[0]).graphs.put(stored_job(JOB_B))
    for server in three.servers[:2]:
        server.start()
    await leader.until(lambda leader: leader.leads)

    assert leader.tokens[-1].epoch > leader.tokens[0].epoch
    assert await leader.stores.graphs.ids() == (JOB_A,)
    assert await leader.stores.graphs.recover(JOB_A) == stored_job(JOB_A)
    for server in three.servers:
        await asyncio.to_thread(server.await_serving)


async def test_a_leader_whose_server_is_cut_off_steps_down_though_that_server_answers_reads(
    three: Ensemble, large: ClusterHarness
) -> None:
    follower = next(server for server in three.servers if "Mode: follower" in server.query(b"srvr"))
    others = [server for server in three.servers if server is not follower]
    reader = await large.process(timeout_s=20, quorum=follower.address)
    ha = await large.process(timeout_s=2, quorum=follower.address)
    leader = large.contend(ha)
    await leader.until(lambda leader: leader.leads)
    token = leader.tokens[0]

    frozen_s = boot_time_s()
    for server in others:
        server.signal(signal.SIGSTOP)
    try:
        await leader.until(lambda leader: not leader.leads)
        assert (await reader.leader.current(), reader.link.state) == (None, LinkState.CONNECTED)
        assert ha.election.paused(token) is not None
    finally:
        for server in others:
            server.signal(signal.SIGCONT)

    assert leader.ends_s[0] - frozen_s < 2.0, "no later than the session could have expired"
    for server in three.servers:
        await asyncio.to_thread(server.await_serving)


async def _write_when_possible(leader: Leader) -> None:
    """Write as soon as the ensemble answers."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await leader.stores.graphs.remove(JOB_A)
                await leader.stores.graphs.put(stored_job(JOB_A))
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return

"""How TaskManagers and clients find the leader through a real quorum; nothing is written by either."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path

import pytest
from tests.zookeeper.cluster_harness import running_cluster
from tests.zookeeper.servers import Ensemble
from tests.zookeeper.wire import wired

from flintlock.config.configuration import Configuration
from flintlock.ha.backends import ha_backend
from flintlock.ha.leader_info import LeaderAddresses
from flintlock.model.errors import Invalid, Unavailable


def leader_url(configured: Configuration, *, wait_s: float) -> str | None:
    return ha_backend(configured).leader_url(configured, wait_s=wait_s)


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def configuration(quorum: str, cluster_id: str) -> Configuration:
    return Configuration(
        {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": quorum,
            "high-availability.zookeeper.client.connection-timeout": "10 s",
            "high-availability.cluster-id": cluster_id,
        }
    )


async def test_the_leader_that_serves_is_found_and_then_the_next_one(zookeeper: Ensemble, tmp_path: Path) -> None:
    async with running_cluster(zookeeper.quorum, tmp_path / "ha") as harness, asyncio.timeout(60):
        first, second = await harness.process(timeout_s=15), await harness.process(timeout_s=15)
        one, two = LeaderAddresses(rpc="one:1", rest="http://one:2"), LeaderAddresses(rpc="two:1", rest="http://two:2")
        configured = configuration(harness.quorum, harness.cluster_id)

        def asked() -> str | None:
            return leader_url(configured, wait_s=0.0)

        async with ha_backend(configured).leader_finder(configured, tmp_path) as finder:
            async with await anext(first.election.terms()) as token:
                await first.leader.publish(one.leads(token, confirmed=False))
                assert await asyncio.to_thread(asked) is None, "it does not serve yet"
                await first.leader.publish(one.leads(token, confirmed=True))
                await finder.moved()
                assert finder.follow() == "one:1"
                assert await asyncio.to_thread(asked) == "http://one:2"
                wait_for_another = partial(
                    ha_backend(configured).leader_url, configured, wait_s=30.0, former="http://one:2"
                )
                another = asyncio.get_running_loop().run_in_executor(None, wait_for_another)
            async with await anext(second.election.terms()) as token:
                await second.leader.publish(two.leads(token, confirmed=True))
                await finder.moved()
                assert finder.follow() == "two:1"
                assert await asyncio.to_thread(lambda: leader_url(configured, wait_s=30.0)) == "http://two:2"
                assert await another == "http://two:2", "the first one may have died"


async def test_a_leader_that_changed_while_the_quorum_was_out_of_reach_is_found_after(
    zookeeper: Ensemble, tmp_path: Path
) -> None:
    async with (
        wired(zookeeper.servers[0].port) as wire,
        running_cluster(zookeeper.quorum, tmp_path / "ha") as harness,
        asyncio.timeout(60),
    ):
        ha = await harness.process(timeout_s=15)
        configured = configuration(wire.address, harness.cluster_id)
        async with ha_backend(configured).leader_finder(configured, tmp_path) as finder:
            terms = ha.election.terms()
            async with await anext(terms) as token:
                await ha.leader.publish(LeaderAddresses(rpc="one:1", rest="").leads(token, confirmed=True))
                await finder.moved()
                assert finder.follow() == "one:1"
                wire.cut()
            async with await anext(terms) as token:
                await ha.leader.publish(LeaderAddresses(rpc="two:1", rest="").leads(token, confirmed=True))
                assert finder.find() == "one:1", "what was known may still be so"
                wire.restore()
                await finder.moved()
                assert finder.follow() == "two:1"


async def test_a_cluster_that_never_was_has_no_leader_and_asking_makes_none(
    zookeeper: Ensemble, tmp_path: Path
) -> None:
    configured = configuration(zookeeper.quorum, uuid.uuid4().hex)
    async with ha_backend(configured).leader_finder(configured, tmp_path) as finder:
        with pytest.raises(Unavailable, match="no JobManager that leads"):
            finder.find()
    assert await asyncio.to_thread(lambda: leader_url(configured, wait_s=0.0)) is None


def test_what_cannot_be_asked_is_named() -> None:
    with pytest.raises(Invalid, match=r"zookeeper\.quorum has to be set"):
        leader_url(Configuration({"high-availability.type": "zookeeper"}), wait_s=0.0)
    settings = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": "127.0.0.1:1",
        "high-availability.zookeeper.client.connection-timeout": "1 s",
    }
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 .*has not answered for 1 s"):
        leader_url(Configuration(settings), wait_s=0.0)

"""What ZooKeeper cannot hold is split, or refused before it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.contract.records import JOB_A, JOB_B, stored_job
from tests.zookeeper.cluster_harness import ClusterHarness, running_cluster
from tests.zookeeper.servers import Ensemble

from flintlock.ha.zookeeper.operations import MAX_TRANSACTION_BYTES, Create, Delete, LinkState, check_size
from flintlock.ha.zookeeper.tree import Tree
from flintlock.model.errors import TooLarge
from flintlock.model.ids import RegionId

pytestmark = pytest.mark.anyio

REGIONS = 9_000  # their removal in one transaction would have 1.5 MB


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def harness(zookeeper: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(zookeeper.quorum, tmp_path) as harness:
        yield harness


async def test_the_progress_of_a_job_with_thousands_of_regions_is_removed(harness: ClusterHarness) -> None:
    leader = harness.contend(await harness.process(timeout_s=15))
    await leader.until(lambda leader: leader.leads)
    link, paths = leader.ha.link, Tree("/flintlock", harness.cluster_id)
    regions = [Create(paths.region(JOB_A, RegionId(region))) for region in range(REGIONS)]
    with pytest.raises(TooLarge):
        check_size([Delete(region.path) for region in regions])
    await link.ensure(paths.regions(JOB_A))
    for start in range(0, REGIONS, 500):
        assert await link.transact(regions[start : start + 500]) is None

    await leader.stores.progress.remove(JOB_A)

    assert await leader.stores.progress.ids() == ()
    assert (link.state, len(leader.tokens)) == (LinkState.CONNECTED, 1)


async def test_what_no_server_would_accept_is_refused_before_it_is_sent(harness: ClusterHarness) -> None:
    """A server would close the connection, and with it fail everything else that is under way."""
    leader = harness.contend(await harness.process(timeout_s=15))
    await leader.until(lambda leader: leader.leads)
    session = leader.ha.link.session
    await leader.stores.graphs.put(stored_job(JOB_A))

    with pytest.raises(TooLarge, match=r"ZooKeeper holds 1,000,000 bytes in one transaction, not 1,\d+,\d+"):
        await leader.stores.graphs.put(stored_job(JOB_B, key="k" * (MAX_TRANSACTION_BYTES + 1)))

    assert await leader.stores.graphs.ids() == (JOB_A,)
    assert len(harness.files("graphs")) == 1, "its payload was removed again"
    assert (leader.ha.link.session, leader.ha.link.state) == (session, LinkState.CONNECTED)

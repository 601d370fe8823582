"""Pointers in ZooKeeper and their files: what is written, what goes, and what a former leader cannot touch."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.contract.records import JOB_A, JOB_B, job_result, region_record, rows, snapshot, stored_job
from tests.zookeeper.cluster_harness import ClusterHarness, running_cluster
from tests.zookeeper.servers import Ensemble

from flintlock.ha.protocols import Stores
from flintlock.ha.zookeeper.services import ZooKeeperHaServices, zookeeper_ha
from flintlock.model.errors import Corrupt, DuplicateJob, Fenced, NotFound, Refused, Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId

pytestmark = pytest.mark.anyio

KINDS = ("graphs", "results", "progress", "ended")  # of blobs: test_blobs


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def harness(zookeeper: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(zookeeper.quorum, tmp_path) as harness:
        yield harness


@pytest.fixture
async def ha(harness: ClusterHarness) -> ZooKeeperHaServices:
    return await harness.process(timeout_s=15)


def token(epoch: int) -> FencingToken:
    return FencingToken(Epoch(epoch), "session")


def files(harness: ClusterHarness) -> dict[str, list[str]]:
    return {kind: harness.files(kind) for kind in KINDS}


def count(harness: ClusterHarness) -> dict[str, int]:
    return {kind: len(names) for kind, names in files(harness).items()}


async def furnish(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key"))
    await stores.progress.record(region_record())
    await stores.results.create_dirty(job_result(JOB_B))
    await stores.ended.put(snapshot(JOB_B), (rows("top"), rows("rest")))


async def test_a_payload_goes_with_its_pointer_and_not_before(ha: ZooKeeperHaServices, harness: ClusterHarness) -> None:
    stores = ha.stores(token(1))
    await furnish(stores)
    assert count(harness) == {"graphs": 1, "results": 1, "progress": 1, "ended": 3}

    await stores.graphs.replace(stored_job(key="key"))
    await stores.progress.record(region_record(attempt=1))
    await stores.ended.put(snapshot(JOB_B), (rows("top"),))
    assert count(harness) == {"graphs": 1, "results": 1, "progress": 1, "ended": 2}

    await stores.graphs.remove(JOB_A)
    await stores.progress.remove(JOB_A)
    await stores.results.mark_clean(JOB_B)
    assert count(harness) == {"graphs": 0, "results": 1, "progress": 0, "ended": 2}

    assert await stores.ended.expire(10_000) == (JOB_B,)
    assert count(harness) == dict.fromkeys(KINDS, 0)


async def test_a_quarantined_graph_keeps_its_file_for_inspection(
    ha: ZooKeeperHaServices, harness: ClusterHarness
) -> None:
    stores = ha.stores(token(1))
    await stores.graphs.put(stored_job())
    before = files(harness)

    await stores.graphs.quarantine(JOB_A, "unreadable")

    assert files(harness) == before


OVERTAKEN: dict[str, Callable[[Stores], Awaitable[object]]] = {
    "put": lambda stores: stores.graphs.put(stored_job(JobId("c" * 32))),
    "replace": lambda stores: stores.graphs.replace(stored_job(key="key")),
    "remove": lambda stores: stores.graphs.remove(JOB_A),
    "record": lambda stores: stores.progress.record(region_record(attempt=7)),
    "forget": lambda stores: stores.progress.remove(JOB_A),
    "archive": lambda stores: stores.ended.put(snapshot(JOB_B), ()),
    "expire": lambda stores: stores.ended.expire(10_000),
}


@pytest.mark.parametrize("name", OVERTAKEN)
async def test_a_leader_that_was_overtaken_neither_leaves_nor_removes_a_file(
    ha: ZooKeeperHaServices, harness: ClusterHarness, name: str
) -> None:
    await furnish(ha.stores(token(1)))
    await ha.stores(token(1)).results.mark_clean(JOB_B)
    another = await harness.process(timeout_s=15)
    await another.stores(token(2)).graphs.remove(JobId("f" * 32))  # the first process does not know of it
    before = files(harness)

    with pytest.raises(Fenced):
        await OVERTAKEN[name](ha.stores(token(1)))

    assert files(harness) == before
    assert await another.stores(token(2)).graphs.recover(JOB_A) == stored_job(key="key")
    assert await another.stores(token(2)).progress.read(JOB_A) == (region_record(),)
    assert await another.stores(token(2)).ended.result(JOB_B, "top") == rows("top")


async def test_replacement_and_removal_under_concurrent_deletion(
    ha: ZooKeeperHaServices, harness: ClusterHarness
) -> None:
    stores = ha.stores(token(1))
    for _ in range(10):
        await stores.graphs.put(stored_job())

        outcomes = await asyncio.gather(
            stores.graphs.remove(JOB_A),
            stores.graphs.replace(stored_job()),
            stores.graphs.remove(JOB_A),
            return_exceptions=True,
        )

        assert [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, NotFound)] == []
        assert await stores.graphs.ids() == ()
        assert count(harness)["graphs"] == 0, "neither of them leaves a file, or takes one that is not its own"


async def test_a_refused_submission_leaves_no_file(ha: ZooKeeperHaServices, harness: ClusterHarness) -> None:
    stores = ha.stores(token(1))
    await stores.graphs.put(stored_job())
    before = files(harness)

    with pytest.raises(DuplicateJob):
        await stores.graphs.put(stored_job())

    assert files(harness) == before


async def test_a_pointer_whose_file_is_gone_is_corrupt(ha: ZooKeeperHaServices, harness: ClusterHarness) -> None:
    stores = ha.stores(token(1))
    await stores.graphs.put(stored_job())
    (name,) = harness.files("graphs")
    (harness.storage_dir / harness.cluster_id / "graphs" / name).unlink()

    with pytest.raises(Corrupt, match=f"the payload of job {JOB_A} is gone"):
        await stores.graphs.recover(JOB_A)
    await stores.graphs.quarantine(JOB_A, "gone")
    assert await stores.graphs.ids() == ()


async def test_sweeping_removes_what_older_epochs_left_and_nothing_else(
    ha: ZooKeeperHaServices, harness: ClusterHarness
) -> None:
    old, new = ha.stores(token(1)), ha.stores(token(2))
    await furnish(old)
    await old.graphs.put(stored_job(JobId("e" * 32)))
    await old.graphs.quarantine(JobId("e" * 32), "unreadable")
    await new.graphs.put(stored_job(JobId("d" * 32)))
    wanted = files(harness)
    folder = harness.storage_dir / harness.cluster_id
    orphan = f"{JOB_A}-1-{uuid.uuid4().hex}"
    for kind in KINDS:
        (folder / kind / orphan).write_bytes(b"left behind")
    under_way = f"{JOB_A}-2-{uuid.uuid4().hex}"
    (folder / "graphs" / under_way).write_bytes(b"its pointer is about to be written")
    (folder / "graphs" / "README").write_bytes(b"not ours")

    assert await ha.sweep(token(2)) == len(KINDS)

    wanted["graphs"] = sorted([*wanted["graphs"], under_way, "README"])
    assert files(harness) == wanted


async def test_any_file_system_of_fsspec_will_do(zookeeper: Ensemble) -> None:
    async with zookeeper_ha(
        zookeeper.quorum,
        root="/flintlock",
        cluster_id=uuid.uuid4().hex,
        storage_dir="memory://ha",
        session_timeout_s=15,
        connection_timeout_s=15,
        new_session=lambda: "session",
        clock_s=time.monotonic,
    ) as ha:
        await furnish(ha.stores(token(1)))

        assert await ha.stores(token(1)).graphs.recover(JOB_A) == stored_job(key="key")
        assert await ha.sweep(token(2)) == 0
        await ha.stores(token(1)).graphs.remove(JOB_A)


async def test_an_empty_storage_directory_is_refused_where_the_cluster_has_another(harness: ClusterHarness) -> None:
    first = await harness.process(timeout_s=15)
    await furnish(first.stores(token(1)))
    (harness.storage_dir / harness.cluster_id).rename(harness.storage_dir / "unmounted")

    with pytest.raises(Unavailable, match="not mounted"):
        await harness.process(timeout_s=15)
    with pytest.raises(Unavailable, match="not mounted"):
        await first.stores(token(1)).graphs.recover(JOB_A)

    (harness.storage_dir / "unmounted").rename(harness.storage_dir / harness.cluster_id)
    second = await harness.process(timeout_s=15)
    assert await second.stores(token(1)).graphs.recover(JOB_A) == stored_job(key="key")


async def test_of_two_that_start_first_at_once_both_find_the_place(harness: ClusterHarness) -> None:
    processes = await asyncio.gather(*(harness.process(timeout_s=15) for _ in range(3)))

    for n, process in enumerate(processes):
        await process.stores(token(1)).graphs.put(stored_job(JobId(f"{n:032x}")))
    for process in processes:
        assert await process.stores(token(1)).graphs.recover(JobId("0" * 32))


@pytest.mark.parametrize(
    ("quorum", "storage_dir", "error", "words"),
    [
        ("", "nowhere://x", Refused, r"high-availability\.storageDir 'nowhere://x'"),
        ("", "/proc/flintlock", Unavailable, r"high-availability\.storageDir.*/proc/flintlock"),
        ("127.0.0.1:1", "memory://ha", Unavailable, r"ZooKeeper at 127\.0\.0\.1:1 .*has not answered for 0\.2 s"),
        ("127.0.0.1:none", "memory://ha", Refused, "the ZooKeeper quorum '127.0.0.1:none' cannot be read"),
    ],
)
async def test_settings_that_cannot_be_used_are_named(
    zookeeper: Ensemble, quorum: str, storage_dir: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        async with zookeeper_ha(
            quorum or zookeeper.quorum,
            root="/flintlock",
            cluster_id=uuid.uuid4().hex,
            storage_dir=storage_dir,
            session_timeout_s=15,
            connection_timeout_s=0.2,
            new_session=lambda: "session",
            clock_s=time.monotonic,
        ):
            pass

"""The contract of BlobCopies, held against the fake and against ZooKeeper."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
from tests.contract.records import JOB_A
from tests.zookeeper.cluster_harness import ClusterHarness, running_cluster
from tests.zookeeper.servers import Ensemble

from flintlock.gateways.blobs import BlobChunk, BlobCopies, BlobRange
from flintlock.model.errors import Fenced, NotFound, Unavailable
from flintlock.model.ids import BlobKey, Epoch, FencingToken
from flintlock.testing.fakes.fake_blob_copies import FakeBlobCopies, SharedBlobs

pytestmark = pytest.mark.anyio

CONTENT = b"0123456789"
KEY = BlobKey("sha256-" + hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place(Protocol):
    """Where copies outlive processes."""

    async def leader(self) -> BlobCopies:
        """Return what a process has that leads; once."""
        ...

    async def standby(self) -> BlobCopies:
        """Return what a process has that does not lead."""
        ...

    async def overtake(self) -> None:
        """Let a newer leader begin without notifying the first one."""
        ...


class FakePlace:
    def __init__(self) -> None:
        self._shared = SharedBlobs()

    async def leader(self) -> BlobCopies:
        return FakeBlobCopies(self._shared, Epoch(1))

    async def standby(self) -> BlobCopies:
        return FakeBlobCopies(self._shared)

    async def overtake(self) -> None:
        self._shared.epoch = Epoch(9)


class ZooKeeperPlace:
    def __init__(self, harness: ClusterHarness) -> None:
        self._harness = harness

    async def leader(self) -> BlobCopies:
        ha = await self._harness.process(timeout_s=15)
        await self._harness.contend(ha).until(lambda leader: leader.leads)
        return ha.blobs

    async def standby(self) -> BlobCopies:
        return (await self._harness.process(timeout_s=15)).blobs

    async def overtake(self) -> None:
        ha = await self._harness.process(timeout_s=15)
        await ha.stores(FencingToken(Epoch(9), "newer")).graphs.remove(JOB_A)


@pytest.fixture(params=["fake", "zookeeper"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    if request.param == "fake":
        yield FakePlace()
        return
    ensemble: Ensemble = request.getfixturevalue("zookeeper")
    async with running_cluster(ensemble.quorum, tmp_path / "ha") as harness:
        yield ZooKeeperPlace(harness)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "upload"
    path.write_bytes(CONTENT)
    return path


async def put(copies: BlobCopies, source: Path, stored_s: float = 1_000.0) -> None:
    await copies.put(KEY, source, size=len(CONTENT), stored_s=stored_s)


async def test_a_copy_is_read_piece_by_piece_by_every_process(place: Place, source: Path) -> None:
    leader, standby = await place.leader(), await place.standby()
    await put(leader, source)
    source.unlink()

    for copies in (leader, standby):
        assert await copies.has(KEY)
        assert await copies.read_blob(BlobRange(key=KEY)) == BlobChunk(data=CONTENT, size=10)
        assert await copies.read_blob(BlobRange(key=KEY, offset=3, limit=4)) == BlobChunk(data=b"3456", size=10)
        assert await copies.read_blob(BlobRange(key=KEY, offset=8, limit=4)) == BlobChunk(data=b"89", size=10)
        assert await copies.read_blob(BlobRange(key=KEY, offset=10)) == BlobChunk(data=b"", size=10)
        assert await copies.read_blob(BlobRange(key=KEY, limit=0)) == BlobChunk(data=b"", size=10)


async def test_what_is_not_there_is_not_found_and_removed_as_often_as_one_likes(place: Place, source: Path) -> None:
    leader = await place.leader()
    await put(leader, source)
    await leader.remove(KEY)
    await leader.remove(KEY)

    assert not await leader.has(KEY)
    with pytest.raises(NotFound, match=KEY):
        await leader.read_blob(BlobRange(key=KEY))


async def test_a_copy_in_the_place_of_another_counts_from_then(place: Place, source: Path) -> None:
    leader = await place.leader()
    await put(leader, source, stored_s=1_000)
    await put(leader, source, stored_s=2_000)

    assert await leader.stored_before(1_500, lambda _: False) == ()
    assert (await leader.read_blob(BlobRange(key=KEY))).data == CONTENT


async def test_what_is_old_and_not_kept_is_listed(place: Place, source: Path) -> None:
    leader = await place.leader()
    assert await leader.stored_before(9_000, lambda _: False) == ()
    await put(leader, source, stored_s=1_000.5)

    assert await leader.stored_before(1_000.5, lambda _: False) == ()
    assert await leader.stored_before(1_001, lambda _: False) == (KEY,)
    assert await leader.stored_before(1_001, lambda key: key == KEY) == ()


async def test_a_process_that_does_not_lead_changes_nothing(place: Place, source: Path) -> None:
    leader, standby = await place.leader(), await place.standby()
    with pytest.raises(Unavailable, match="does not lead"):
        await put(standby, source)
    assert not await leader.has(KEY)
    await put(leader, source)

    with pytest.raises(Unavailable, match="does not lead"):
        await standby.remove(KEY)
    assert await leader.has(KEY)


WRITES: dict[str, Callable[[BlobCopies, Path], Awaitable[None]]] = {
    "put": put,
    "remove": lambda copies, _: copies.remove(KEY),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_leader_that_was_overtaken_changes_nothing(place: Place, source: Path, name: str) -> None:
    leader = await place.leader()
    await put(leader, source)
    await place.overtake()

    # It may notice by itself before it writes; then the error is that it does not lead.
    with pytest.raises((Fenced, Unavailable)):
        await WRITES[name](leader, source)

    standby = await place.standby()
    assert (await standby.read_blob(BlobRange(key=KEY))).data == CONTENT
    assert await standby.stored_before(1_000.5, lambda _: False) == (KEY,)

"""Blobs whose copies lie under the storage directory: what is written, what goes, and who may remove it."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from tests.contract.records import JOB_A, JOB_B
from tests.zookeeper.cluster_harness import LIMIT_S, ClusterHarness, Leader, running_cluster, until
from tests.zookeeper.servers import Ensemble

from flintlock.blob.server import SMALL_BYTES, BlobServer
from flintlock.gateways.blobs import BlobRange
from flintlock.ha.zookeeper.services import zookeeper_ha
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.errors import Corrupt, Fenced, NotFound, Unavailable
from flintlock.model.ids import BlobKey, Epoch, FencingToken, JobId

pytestmark = pytest.mark.anyio

LARGE = bytes(range(256)) * (3 * SMALL_BYTES // 256) + b"end"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def harness(zookeeper: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(zookeeper.quorum, tmp_path / "ha") as harness:
        yield harness


class Host:
    """A machine with a JobManager that leads."""

    def __init__(self, leader: Leader, directory: Path) -> None:
        self.leader = leader
        self.directory = directory
        self.server = BlobServer(directory, leader.ha.blobs)

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


async def leading(harness: ClusterHarness, directory: Path, jobs: dict[JobId, list[BlobKey]] | None = None) -> Host:
    """Let a new host lead, after the one that led before, if any."""
    host = Host(harness.contend(await harness.process(timeout_s=15)), directory)
    await host.leader.until(lambda leader: leader.leads)
    await host.server.start()
    await host.server.retain_only(jobs or {})
    return host


async def overtaken(harness: ClusterHarness, host: Host, directory: Path, jobs: dict[JobId, list[BlobKey]]) -> Host:
    """Let another host lead while the first is still there."""
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        another = tasks.create_task(leading(harness, directory, jobs), name="another")
        while not another.done():  # the first may lead again, as long as the other does not contend
            await host.leader.ha.leader.declare_dead(host.leader.tokens[-1])
            await asyncio.sleep(0.05)
    return another.result()


@pytest.fixture
async def host(harness: ClusterHarness, tmp_path: Path) -> Host:
    return await leading(harness, tmp_path / "one")


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def put(server: BlobServer, content: bytes) -> BlobKey:
    key, _ = await server.put(pieces(content))
    return key


async def read(server: BlobServer, key: BlobKey) -> bytes:
    return (await server.read_blob(BlobRange(key=key))).data


def copy_of(harness: ClusterHarness, key: BlobKey) -> Path:
    """Return the one file that is the copy of a blob."""
    (path,) = (harness.storage_dir / harness.cluster_id / "blobs").glob(f"{key.removeprefix('sha256-')}-*")
    return path


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_the_next_leader_on_another_machine_has_what_was_uploaded(
    harness: ClusterHarness, host: Host, tmp_path: Path, content: bytes
) -> None:
    key = await put(host.server, content)
    host.server.retain(JOB_A, [key])
    assert copy_of(harness, key).read_bytes() == content

    another = await overtaken(harness, host, tmp_path / "two", {JOB_A: [key]})

    assert await read(another.server, key) == content
    await another.server.release(JOB_A)
    assert harness.files("blobs") == []
    assert another.files == []


async def test_identical_uploads_at_once_are_one_file(harness: ClusterHarness, host: Host) -> None:
    await asyncio.gather(*(put(host.server, LARGE) for _ in range(4)))

    assert len(harness.files("blobs")) == 1
    assert len(host.files) == 1


async def test_an_old_leaders_cleanup_removes_nothing_that_a_newer_job_refers_to(
    harness: ClusterHarness, host: Host, tmp_path: Path
) -> None:
    key, unused = await put(host.server, b"content"), await put(host.server, b"unused")
    host.server.retain(JOB_A, [key])
    another = await overtaken(harness, host, tmp_path / "two", {})
    for named in (key, unused):
        assert await another.server.size_of(named) is not None
    another.server.retain(JOB_B, [key, unused])

    with pytest.raises((Fenced, Unavailable)):
        await host.server.release(JOB_A)
    with pytest.raises((Fenced, Unavailable)):
        await host.server.expire_unreferenced(older_than_s=-10)
    with pytest.raises((Fenced, Unavailable)):
        await put(host.server, b"more")

    assert len(harness.files("blobs")) == 2
    assert await another.server.size_of(key) == len(b"content")
    assert (await another.leader.ha.blobs.read_blob(BlobRange(key=unused))).data == b"unused"


async def test_a_removal_that_began_before_the_next_term_is_refused_in_it(harness: ClusterHarness, host: Host) -> None:
    key = await put(host.server, b"content")
    newer = await harness.process(timeout_s=15)
    await newer.stores(FencingToken(Epoch(99), "newer")).graphs.remove(JOB_A)  # the first does not know of it

    with pytest.raises((Fenced, Unavailable)):
        await host.server.expire_unreferenced(older_than_s=-10)

    assert copy_of(harness, key).read_bytes() == b"content"


async def test_a_copy_that_is_damaged_or_gone_is_corrupt_and_replaced_by_an_upload(
    harness: ClusterHarness, host: Host, tmp_path: Path
) -> None:
    damaged, gone = await put(host.server, b"damaged"), await put(host.server, b"gone")
    copy_of(harness, damaged).write_bytes(b"dAmaged")
    copy_of(harness, gone).unlink()
    another = await overtaken(harness, host, tmp_path / "two", {JOB_A: [damaged, gone]})

    for key in (damaged, gone):
        with pytest.raises(Corrupt, match=key):
            await read(another.server, key)
    assert another.files == []

    for content, key in ((b"damaged", damaged), (b"gone", gone)):
        assert await another.server.size_of(key) is None
        assert await put(another.server, content) == key
        assert copy_of(harness, key).read_bytes() == content


async def test_storage_out_of_reach_is_unavailable_and_changes_nothing(harness: ClusterHarness, host: Host) -> None:
    key = await put(host.server, b"there")
    blobs = harness.storage_dir / harness.cluster_id / "blobs"
    blobs.rename(blobs.with_name("elsewhere"))
    blobs.write_bytes(b"a file in its place")
    before = host.files

    with pytest.raises(Unavailable, match=r"high-availability\.storageDir"):
        await put(host.server, b"new")

    assert host.files == before
    blobs.unlink()
    blobs.with_name("elsewhere").rename(blobs)
    assert not await host.leader.ha.blobs.has(BlobKey("sha256-" + hashlib.sha256(b"new").hexdigest()))
    assert harness.files("blobs") == [copy_of(harness, key).name]


async def test_a_cancelled_upload_leaves_nothing_or_all_of_it(harness: ClusterHarness, host: Host) -> None:
    copies = host.leader.ha.blobs
    for turns in range(0, 30, 3):
        content = LARGE + bytes([turns])
        async with asyncio.TaskGroup() as tasks:
            upload = tasks.create_task(put(host.server, content), name="upload")
            for _ in range(turns):
                await asyncio.sleep(0.001)
            upload.cancel()
        digest = hashlib.sha256(content).hexdigest()
        key = BlobKey(f"sha256-{digest}")

        def none_left(digest: str = digest) -> bool:
            return not any(name.startswith(digest) for name in harness.files("blobs"))

        # A transaction that was under way may still take place: then the blob is there as a whole, until it expires.
        if await copies.has(key):
            assert (await copies.read_blob(BlobRange(key=key, limit=len(content)))).data == content
        else:
            await until("the file to go", none_left)


async def test_what_a_crash_left_without_a_pointer_is_swept_by_a_later_term(
    harness: ClusterHarness, host: Host
) -> None:
    key = await put(host.server, b"content")
    folder = harness.storage_dir / harness.cluster_id / "blobs"
    (epoch,) = {token.epoch for token in host.leader.tokens}
    digest = key.removeprefix("sha256-")
    (folder / f"{digest}-{epoch}-{uuid.uuid4().hex}").write_bytes(b"left behind")
    under_way = folder / f"{digest}-{epoch + 1}-{uuid.uuid4().hex}"
    under_way.write_bytes(b"its pointer is about to be written")

    newer = await harness.process(timeout_s=15)
    assert await newer.sweep(FencingToken(Epoch(epoch + 1), "newer")) == 1

    under_way.unlink()
    assert copy_of(harness, key).read_bytes() == b"content"


async def test_a_storage_directory_of_a_version_without_blobs_gets_their_folder(
    harness: ClusterHarness, tmp_path: Path
) -> None:
    await harness.process(timeout_s=15)
    (harness.storage_dir / harness.cluster_id / "blobs").rmdir()

    host = await leading(harness, tmp_path / "one")

    assert await put(host.server, b"content")


async def test_any_file_system_of_fsspec_will_do(zookeeper: Ensemble, tmp_path: Path) -> None:
    async with (
        zookeeper_ha(
            zookeeper.quorum,
            root="/flintlock",
            cluster_id=uuid.uuid4().hex,
            storage_dir="memory://blobs",
            session_timeout_s=15,
            connection_timeout_s=15,
            new_session=lambda: "session",
            clock_s=boot_time_s,
        ) as ha,
        asyncio.TaskGroup() as tasks,
    ):
        leader = Leader(ha)
        contending = tasks.create_task(leader.run(), name="contender")
        await leader.until(lambda leader: leader.leads)
        key = await put(BlobServer(tmp_path / "one", ha.blobs), LARGE)
        another = BlobServer(tmp_path / "two", ha.blobs)

        assert (await another.path_of(key)).read_bytes() == LARGE
        await ha.blobs.remove(key)
        with pytest.raises(NotFound):
            await ha.blobs.read_blob(BlobRange(key=key))
        contending.cancel()

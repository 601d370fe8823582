"""A BlobServer whose blobs every JobManager reaches: copies before acknowledgements, and who may remove them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

import pytest
from msgspec import structs

from flintlock.blob.server import SMALL_BYTES, BlobServer
from flintlock.gateways.blobs import BlobRange
from flintlock.model.errors import Corrupt, Fenced, NotFound, Unavailable
from flintlock.model.ids import BlobKey, Epoch, JobId
from flintlock.testing.fakes.fake_blob_copies import FakeBlobCopies, SharedBlobs

pytestmark = pytest.mark.anyio

P = ParamSpec("P")
T = TypeVar("T")

JOB_A, JOB_B = JobId("a" * 32), JobId("b" * 32)
LARGE = bytes(range(256)) * (3 * SMALL_BYTES // 256) + b"end"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Host:
    """A machine with a JobManager. Its BlobServer leads from `lead` on."""

    def __init__(self, directory: Path, shared: SharedBlobs, now_s: Callable[[], float] = lambda: 1_000.0) -> None:
        self.directory = directory
        self.copies = FakeBlobCopies(shared)
        self.server = BlobServer(directory, self.copies, now_s=now_s, elapsed_s=now_s)

    async def lead(self, epoch: int, jobs: dict[JobId, list[BlobKey]] | None = None) -> BlobServer:
        """Begin a term with recovered jobs."""
        await self.server.start()
        self.copies.epoch = self.copies.shared.epoch = Epoch(epoch)
        await self.server.retain_only(jobs or {})
        return self.server

    @property
    def files(self) -> list[Path]:
        """All files that it has of blobs."""
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


@pytest.fixture
def shared() -> SharedBlobs:
    return SharedBlobs()


@pytest.fixture
def one(tmp_path: Path, shared: SharedBlobs) -> Host:
    return Host(tmp_path / "one", shared)


@pytest.fixture
def two(tmp_path: Path, shared: SharedBlobs) -> Host:
    return Host(tmp_path / "two", shared)


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def put(server: BlobServer, content: bytes) -> BlobKey:
    key, _ = await server.put(pieces(content))
    return key


async def read(server: BlobServer, key: BlobKey) -> bytes:
    return (await server.read_blob(BlobRange(key=key))).data


def key_of(content: bytes) -> BlobKey:
    return BlobKey("sha256-" + hashlib.sha256(content).hexdigest())


def damage(shared: SharedBlobs, key: BlobKey) -> None:
    shared.copies[key] = structs.replace(shared.copies[key], content=b"damaged")


class Gate:
    """Stops operations of one name until it is opened, and sets an event when one has come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reached = asyncio.Event()
        self.open = asyncio.Event()

    async def come(self) -> None:
        """Wait until one has come; fail if none does."""
        async with asyncio.timeout(60):
            await self._reached.wait()

    async def __call__(self, step: str) -> None:
        if step == self._name:
            self._reached.set()
            await self.open.wait()


# --- uploads


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_an_upload_is_acknowledged_once_the_copy_is_there(one: Host, shared: SharedBlobs, content: bytes) -> None:
    server = await one.lead(1)
    gate = one.copies.step = Gate("put")
    async with asyncio.TaskGroup() as tasks:
        uploading = tasks.create_task(server.put(pieces(content)), name="upload")
        await gate.come()
        assert not uploading.done()
        gate.open.set()

        assert await uploading == (key_of(content), len(content))
    assert shared.copies[key_of(content)].content == content
    assert await read(server, key_of(content)) == content


async def test_a_standby_takes_no_upload(one: Host) -> None:
    with pytest.raises(Unavailable, match="does not lead"):
        await put(one.server, b"content")

    assert one.files == []


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_identical_uploads_at_once_are_one(one: Host, content: bytes) -> None:
    server = await one.lead(1)

    keys = await asyncio.gather(*(put(server, content) for _ in range(8)))

    assert set(keys) == {key_of(content)}
    assert one.copies.puts == 1
    assert len(one.files) == 1


async def test_of_identical_uploads_the_second_goes_on_where_the_first_is_cut_off(
    one: Host, shared: SharedBlobs
) -> None:
    server = await one.lead(1)
    gate = one.copies.step = Gate("put")
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(put(server, b"content"), name="first")
        await gate.come()
        second = tasks.create_task(put(server, b"content"), name="second")
        first.cancel()
        gate.open.set()
        key = await second

    assert shared.copies.keys() == {key}
    server.retain(JOB_A, [key])


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_an_upload_that_is_cut_off_leaves_nothing_in_either_place(
    one: Host, shared: SharedBlobs, content: bytes
) -> None:
    async def cut_off() -> AsyncIterator[bytes]:
        yield content
        raise ConnectionResetError

    server = await one.lead(1)

    with pytest.raises(ConnectionResetError):
        await server.put(cut_off())

    assert one.files == []
    assert shared.copies == {}


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_storage_out_of_reach_is_unavailable_and_changes_nothing(
    one: Host, shared: SharedBlobs, content: bytes
) -> None:
    server = await one.lead(1)
    one.copies.fail_with = Unavailable("high-availability.storageDir is not mounted")

    with pytest.raises(Unavailable, match="not mounted"):
        await put(server, content)

    assert one.files == []
    assert shared.copies == {}
    with pytest.raises(NotFound):
        server.retain(JOB_A, [key_of(content)])
    one.copies.fail_with = None
    server.retain(JOB_A, [await put(server, content)])


class FullDisk:
    """Does file I/O in place. From the given write on there is no space left."""

    def __init__(self, at: int) -> None:
        self._left = at

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(work, "__name__", "") == "write":
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return work(*args, **kwargs)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_full_disk_is_unavailable_and_changes_nothing(tmp_path: Path, shared: SharedBlobs, at: int) -> None:
    for copies in (None, FakeBlobCopies(shared, Epoch(1))):
        server = BlobServer(tmp_path, copies, offload=FullDisk(at))
        await server.start()

        with pytest.raises(Unavailable, match="No space left"):
            await server.put(pieces(*(LARGE[start : start + SMALL_BYTES + 1] for start in (0, 1, 2))))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert shared.copies == {}


async def test_an_upload_without_room_for_a_local_file_is_durable_all_the_same(one: Host, shared: SharedBlobs) -> None:
    server = await one.lead(1)
    (one.directory / "cache").write_bytes(b"a file in its place")

    key = await put(server, b"content")

    assert shared.copies[key].content == b"content"
    assert one.files == [one.directory / "cache"]
    server.retain(JOB_A, [key])


# --- fetching


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_another_host_serves_it_from_the_copy_and_keeps_a_checked_file(
    one: Host, two: Host, shared: SharedBlobs, content: bytes
) -> None:
    key = await put(await one.lead(1), content)
    server = await two.lead(2, {JOB_A: [key]})

    assert await server.size_of(key) == len(content)
    assert (await server.path_of(key)).read_bytes() == content

    shared.copies.clear()
    assert (await server.path_of(key)).read_bytes() == content


async def test_a_copy_with_another_content_is_corrupt_by_name_and_neither_served_nor_kept(
    one: Host, two: Host, shared: SharedBlobs
) -> None:
    key = await put(await one.lead(1), b"content")
    damage(shared, key)
    server = await two.lead(2, {JOB_A: [key]})

    for _ in range(2):
        with pytest.raises(Corrupt, match=key):
            await read(server, key)
    assert two.files == []


async def test_a_damaged_copy_is_replaced_by_the_next_upload(one: Host, two: Host, shared: SharedBlobs) -> None:
    key = await put(await one.lead(1), b"content")
    damage(shared, key)
    server = await two.lead(2)

    assert await server.size_of(key) is None
    with pytest.raises(NotFound):
        server.retain(JOB_A, [key])
    await put(server, b"content")

    assert shared.copies[key].content == b"content"
    server.retain(JOB_A, [key])


async def test_missing_and_damaged_blobs_are_reported_by_name(one: Host, two: Host, shared: SharedBlobs) -> None:
    leader = await one.lead(1)
    sound, damaged, missing = await put(leader, b"sound"), await put(leader, b"content"), key_of(b"never uploaded")
    damage(shared, damaged)

    unsound = await (await two.lead(2)).find_damaged([sound, damaged, missing])

    assert set(unsound) == {damaged, missing}
    assert all(key in reason for key, reason in unsound.items())


async def test_a_damaged_local_file_is_fetched_again(one: Host, shared: SharedBlobs) -> None:
    key = await put(await one.lead(1), b"content")
    for path in one.files:
        path.write_bytes(b"damaged")

    again = Host(one.directory, shared)

    assert await read(again.server, key) == b"content"


async def test_a_fetch_that_fails_beside_an_upload_does_not_make_that_forgotten(one: Host) -> None:
    server = await one.lead(1)
    gate = one.copies.step = Gate("read")
    async with asyncio.TaskGroup() as tasks:

        async def fetch() -> None:
            one.copies.fail_with = Corrupt("damaged")
            with pytest.raises(Corrupt):
                await server.path_of(key_of(b"content"))

        tasks.create_task(fetch(), name="fetch")
        await gate.come()
        one.copies.fail_with = None
        uploading = tasks.create_task(put(server, b"content"), name="upload")
        while one.copies.puts == 0:  # noqa: ASYNC110  # the upload waits for the fetch only after that
            await asyncio.sleep(0)
        one.copies.fail_with = Corrupt("damaged")
        gate.open.set()
        await uploading

    server.retain(JOB_A, [key_of(b"content")])


# --- who keeps what


async def test_a_copy_goes_with_the_last_job_that_refers_to_it(one: Host, shared: SharedBlobs) -> None:
    server = await one.lead(1)
    key = await put(server, b"content")
    server.retain(JOB_A, [key])
    server.retain(JOB_B, [key])

    await server.release(JOB_A)
    assert shared.copies.keys() == {key}
    await server.release(JOB_B)

    assert shared.copies == {}
    assert one.files == []


async def test_a_release_that_failed_is_done_by_the_next_one(one: Host, shared: SharedBlobs) -> None:
    server = await one.lead(1)
    key = await put(server, b"content")
    server.retain(JOB_A, [key])
    one.copies.fail_with = Unavailable("out of reach")
    with pytest.raises(Unavailable):
        await server.release(JOB_A)
    one.copies.fail_with = None

    await server.release(JOB_A)

    assert shared.copies == {}
    assert one.files == []


async def test_only_recovered_jobs_keep_their_blobs(one: Host, two: Host, shared: SharedBlobs) -> None:
    """Those of others go when they expire: they may be uploads that the former leader has just acknowledged."""
    server = await one.lead(1)
    recovered, lost = await put(server, b"recovered"), await put(server, b"lost")
    server.retain(JOB_A, [recovered])
    server.retain(JOB_B, [lost])

    server = await two.lead(2, {JOB_A: [recovered]})
    assert await server.expire_unreferenced(older_than_s=-1) == (lost,)

    assert shared.copies.keys() == {recovered}
    assert await read(server, recovered) == b"recovered"


async def test_a_removed_graph_leaves_the_files_of_others_alone(one: Host, two: Host, shared: SharedBlobs) -> None:
    server = await one.lead(1)
    common, own = await put(server, b"common"), await put(server, b"own")
    server = await two.lead(2, {JOB_A: [common, own], JOB_B: [common]})

    await server.release(JOB_A)

    assert shared.copies.keys() == {common}


async def test_an_upload_to_the_former_leader_can_be_named_until_it_expires(
    one: Host, tmp_path: Path, shared: SharedBlobs
) -> None:
    now_s = 1_050.0
    named, unused = [await put(await one.lead(1), content) for content in (b"named", b"unused")]
    two = Host(tmp_path / "two", shared, lambda: now_s)
    server = await two.lead(2)

    assert await server.size_of(named) == len(b"named")
    server.retain(JOB_A, [named])
    assert await server.expire_unreferenced(older_than_s=100) == ()
    now_s = 1_149.0  # the new leader cannot know how wrong the clock is: it counts from its own beginning
    assert await server.expire_unreferenced(older_than_s=100) == ()
    now_s = 1_151.0
    assert await server.expire_unreferenced(older_than_s=100) == (unused,)

    assert shared.copies.keys() == {named}


async def test_a_blob_that_was_not_queried_in_this_term_cannot_be_referred_to(one: Host, two: Host) -> None:
    key = await put(await one.lead(1), b"content")
    await (await two.lead(2)).expire_unreferenced(older_than_s=-1)

    server = await one.lead(3)

    assert one.files, "its file is here still, but no other host has it"
    with pytest.raises(NotFound):
        server.retain(JOB_A, [key])
    assert await server.size_of(key) is None


async def test_what_another_leader_has_removed_is_copied_again(one: Host, two: Host, shared: SharedBlobs) -> None:
    key = await put(await one.lead(1), b"content")
    await (await two.lead(2)).expire_unreferenced(older_than_s=-1)
    server = await one.lead(3)

    await put(server, b"content")

    assert shared.copies.keys() == {key}


async def test_an_upload_during_a_removal_is_not_lost(one: Host, shared: SharedBlobs) -> None:
    server = await one.lead(1)
    key = await put(server, b"content")
    server.retain(JOB_A, [key])
    gate = one.copies.step = Gate("remove")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.release(JOB_A), name="release")
        await gate.come()
        with pytest.raises(NotFound):
            server.retain(JOB_B, [key])
        uploading = tasks.create_task(put(server, b"content"), name="upload")
        asking = tasks.create_task(server.size_of(key), name="size")
        gate.open.set()
        await uploading
        await asking

    server.retain(JOB_B, [key])
    assert shared.copies.keys() == {key}


async def test_an_old_leaders_cleanup_removes_nothing(one: Host, two: Host, shared: SharedBlobs) -> None:
    old = await one.lead(1)
    key, unused = await put(old, b"content"), await put(old, b"unused")
    old.retain(JOB_A, [key])
    new = await two.lead(2)
    assert await new.size_of(key)
    new.retain(JOB_B, [key])
    assert await new.size_of(unused)
    new.retain(JOB_B, [unused])

    with pytest.raises(Fenced):
        await old.release(JOB_A)
    with pytest.raises(Fenced):
        await old.expire_unreferenced(older_than_s=-1)
    with pytest.raises(Fenced):
        await put(old, b"more")

    assert shared.copies.keys() == {key, unused}
    assert await read(new, key) == b"content"


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_at_once_a_job_that_was_accepted_has_its_blobs(tmp_path: Path, seed: int) -> None:
    random, shared = Random(seed), SharedBlobs()
    contents = [b"x", b"y"]

    async def step(_name: str) -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        if random.random() < 0.1:
            raise Unavailable("out of reach")

    host = Host(tmp_path, shared)
    server = await host.lead(1)
    host.copies.step = step
    accepted = 0

    async def client(number: int) -> None:
        nonlocal accepted
        for turn in range(6):
            content = random.choice(contents)
            job_id = JobId(f"{number:016x}{turn:016x}")
            try:
                if random.random() < 0.5:
                    await put(server, content)
                elif await server.size_of(key_of(content)) is None:
                    continue
                await asyncio.sleep(0)
                server.retain(job_id, [key_of(content)])
            except (NotFound, Unavailable):
                continue
            accepted += 1
            for _ in range(random.randrange(5)):
                assert key_of(content) in shared.copies
                await asyncio.sleep(0)
            assert shared.copies[key_of(content)].content == content
            for _ in itertools.count():
                try:
                    await server.release(job_id)
                    break
                except Unavailable:
                    await asyncio.sleep(0)

    await asyncio.gather(*(client(number) for number in range(6)))

    assert accepted > 0

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from flintlock.blob.cache import BlobCache
from flintlock.blob.files import IncomingFile
from flintlock.gateways.blobs import BlobChunk, BlobRange
from flintlock.model.errors import Corrupt, NotFound, Unavailable
from flintlock.model.ids import BlobKey

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeBlobs:
    """Serves what it holds in small pieces, counts the downloads, and waits or corrupts when the test says so."""

    def __init__(self, *contents: bytes, piece: int = 4) -> None:
        self.contents = {key_of(content): content for content in contents}
        self.piece = piece
        self.begun: list[BlobKey] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def read_blob(self, message: BlobRange) -> BlobChunk:
        if message.offset == 0:
            self.begun.append(message.key)
        await self.gate.wait()
        if message.key not in self.contents:
            raise NotFound(f"no blob {message.key} is stored here")
        content = self.contents[message.key]
        return BlobChunk(data=content[message.offset : message.offset + self.piece], size=len(content))


def key_of(content: bytes) -> BlobKey:
    return BlobKey("sha256-" + hashlib.sha256(content).hexdigest())


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("content", [b"", b"1234", b"0123456789"])
async def test_a_blob_is_fetched_piece_by_piece_and_only_once(tmp_path: Path, content: bytes) -> None:
    blobs = FakeBlobs(content)
    cache = BlobCache(tmp_path, lambda: blobs)

    first = await cache.fetch(key_of(content))
    second = await cache.fetch(key_of(content))

    assert first == second
    assert first.read_bytes() == content
    assert blobs.begun == [key_of(content)]
    assert files(tmp_path) == [first]


async def test_concurrent_fetches_share_one_download(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"content")
    cache = BlobCache(tmp_path, lambda: blobs)

    paths = await asyncio.gather(*(cache.fetch(key_of(b"content")) for _ in range(10)))

    assert len(set(paths)) == 1
    assert len(blobs.begun) == 1


async def test_a_cancelled_fetch_leaves_the_download_to_the_next(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"content")
    blobs.gate.clear()
    cache = BlobCache(tmp_path, lambda: blobs)

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(cache.fetch(key_of(b"content")), name="first")
        second = tasks.create_task(cache.fetch(key_of(b"content")), name="second")
        while not blobs.begun:  # noqa: ASYNC110  # the fake only counts; it sets no event
            await asyncio.sleep(0)
        first.cancel()
        blobs.gate.set()

    assert first.cancelled()
    assert (await second).read_bytes() == b"content"
    assert len(files(tmp_path)) == 1


async def test_a_missing_blob_is_not_found_by_its_key_and_leaves_nothing(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    cache = BlobCache(tmp_path, lambda: blobs)

    with pytest.raises(NotFound, match=key_of(b"missing")):
        await cache.fetch(key_of(b"missing"))

    assert files(tmp_path) == []


async def test_what_is_no_key_is_not_found_without_asking(tmp_path: Path) -> None:
    blobs = FakeBlobs()

    with pytest.raises(NotFound):
        await BlobCache(tmp_path, lambda: blobs).fetch(BlobKey("../../etc/passwd"))

    assert blobs.begun == []


@pytest.mark.parametrize("lie", [b"another", b"short", b""])
async def test_another_content_is_corrupt_leaves_nothing_and_may_be_tried_again(tmp_path: Path, lie: bytes) -> None:
    blobs = FakeBlobs(b"content")
    blobs.contents[key_of(b"content")] = lie
    cache = BlobCache(tmp_path, lambda: blobs)
    with pytest.raises(Corrupt, match=key_of(b"content")):
        await cache.fetch(key_of(b"content"))
    assert files(tmp_path) == []

    blobs.contents[key_of(b"content")] = b"content"

    assert (await cache.fetch(key_of(b"content"))).read_bytes() == b"content"


async def test_a_copy_survives_a_restart_and_is_checked(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"sound", b"spoilt")
    before = BlobCache(tmp_path, lambda: blobs)
    await before.fetch(key_of(b"sound"))
    (await before.fetch(key_of(b"spoilt"))).write_bytes(b"SPOILT")
    blobs.begun.clear()

    cache = BlobCache(tmp_path, lambda: blobs)

    assert (await cache.fetch(key_of(b"sound"))).read_bytes() == b"sound"
    assert (await cache.fetch(key_of(b"spoilt"))).read_bytes() == b"spoilt"
    assert blobs.begun == [key_of(b"spoilt")]


async def test_a_half_download_of_a_former_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "half").write_bytes(b"half")
    writing = IncomingFile(tmp_path, "writing")
    writing.write(b"by a running process")
    blobs = FakeBlobs(b"content")

    path = await BlobCache(tmp_path, lambda: blobs).fetch(key_of(b"content"))

    assert files(tmp_path) == sorted([path, tmp_path / "incoming" / "writing"])
    writing.discard()


async def test_without_room_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    contents = [bytes([n]) * 10 for n in range(4)]
    blobs = FakeBlobs(*contents)
    cache = BlobCache(tmp_path, lambda: blobs, limit_bytes=30)
    first, second, third = [await cache.fetch(key_of(content)) for content in contents[:3]]
    await cache.fetch(key_of(contents[0]))

    fourth = await cache.fetch(key_of(contents[3]))

    assert files(tmp_path) == sorted([first, third, fourth])
    assert (await cache.fetch(key_of(contents[1]))) == second, "and is fetched again when it is needed"


async def test_a_pinned_copy_stays_though_there_is_no_room(tmp_path: Path) -> None:
    contents = [bytes([n]) * 10 for n in range(3)]
    blobs = FakeBlobs(*contents)
    cache = BlobCache(tmp_path, lambda: blobs, limit_bytes=15)
    first = await cache.fetch(key_of(contents[0]))

    with cache.pin([key_of(contents[0])]):
        second = await cache.fetch(key_of(contents[1]))
        assert files(tmp_path) == sorted([first, second])

    third = await cache.fetch(key_of(contents[2]))
    assert files(tmp_path) == [third]


async def test_a_blob_larger_than_the_whole_room_is_fetched_all_the_same(tmp_path: Path) -> None:
    blobs = FakeBlobs(bytes(100), piece=1000)

    path = await BlobCache(tmp_path, lambda: blobs, limit_bytes=10).fetch(key_of(bytes(100)))

    assert path.read_bytes() == bytes(100)


async def test_the_current_server_is_asked(tmp_path: Path) -> None:
    servers = [FakeBlobs(), FakeBlobs(b"content")]
    cache = BlobCache(tmp_path, lambda: servers[0])
    with pytest.raises(NotFound):
        await cache.fetch(key_of(b"content"))

    servers.reverse()

    assert (await cache.fetch(key_of(b"content"))).read_bytes() == b"content"


async def test_a_file_that_is_here_already_need_not_be_fetched(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"other")
    cache = BlobCache(tmp_path, lambda: blobs, limit_bytes=8)
    await cache.fetch(key_of(b"other"))
    incoming = IncomingFile(tmp_path, "upload")
    incoming.write(b"content")

    await cache.adopt(key_of(b"content"), incoming)

    assert (await cache.fetch(key_of(b"content"))).read_bytes() == b"content"
    assert len(files(tmp_path)) == 1, "the other one had to make room"


async def test_a_dropped_copy_is_removed_unless_it_is_pinned(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"content")
    cache = BlobCache(tmp_path, lambda: blobs)
    path = await cache.fetch(key_of(b"content"))
    with cache.pin([key_of(b"content")]):
        await cache.drop(key_of(b"content"))
        assert path.exists()

    await cache.drop(key_of(b"content"))
    await cache.drop(key_of(b"content"))

    assert files(tmp_path) == []


async def test_a_disk_that_cannot_be_written_is_unavailable_and_may_be_tried_again(tmp_path: Path) -> None:
    blobs = FakeBlobs(b"content")
    directory = tmp_path / "cache"
    directory.write_bytes(b"a file in its place")
    cache = BlobCache(directory, lambda: blobs)

    with pytest.raises(Unavailable):
        await cache.fetch(key_of(b"content"))

    directory.unlink()
    assert (await cache.fetch(key_of(b"content"))).read_bytes() == b"content"

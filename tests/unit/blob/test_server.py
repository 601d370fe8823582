from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from flintlock.blob import files
from flintlock.blob.files import IncomingFile
from flintlock.blob.server import MAX_CHUNK_BYTES, SMALL_BYTES, BlobServer
from flintlock.gateways.blobs import BlobChunk, BlobRange
from flintlock.model.errors import Corrupt, Invalid, NotFound, Unavailable
from flintlock.model.ids import BlobKey, JobId

pytestmark = pytest.mark.anyio

P = ParamSpec("P")
T = TypeVar("T")

JOB_A, JOB_B = JobId("a" * 32), JobId("b" * 32)
LARGE = bytes(range(256)) * (3 * SMALL_BYTES // 256) + b"end"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path: Path) -> BlobServer:
    return await started(tmp_path)


async def started(directory: Path, now_s: Callable[[], float] = lambda: 0.0) -> BlobServer:
    """Return a server as after a restart."""
    server = BlobServer(directory, now_s=now_s, elapsed_s=now_s)
    await server.start()
    return server


async def pieces(*contents: bytes) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


async def cut_off(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise ConnectionResetError


def key_of(content: bytes) -> BlobKey:
    return BlobKey("sha256-" + hashlib.sha256(content).hexdigest())


async def put(server: BlobServer, content: bytes) -> BlobKey:
    key, _ = await server.put(pieces(content))
    return key


def names(directory: Path) -> list[Path]:
    """All files below the directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


async def is_there(server: BlobServer, key: BlobKey) -> bool:
    return await server.size_of(key) is not None


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_what_was_put_is_read_back_by_its_hash(server: BlobServer, content: bytes) -> None:
    middle = len(content) // 2

    assert await server.put(pieces(content[:middle], content[middle:])) == (key_of(content), len(content))

    chunk = await server.read_blob(BlobRange(key=key_of(content)))
    assert chunk == BlobChunk(data=content, size=len(content))
    assert (await server.path_of(key_of(content))).read_bytes() == content
    assert await server.size_of(key_of(content)) == len(content)


async def test_a_piece_of_a_blob_comes_with_the_size_of_the_whole(server: BlobServer) -> None:
    key = await put(server, b"0123456789")

    assert await server.read_blob(BlobRange(key=key, offset=3, limit=4)) == BlobChunk(data=b"3456", size=10)
    assert await server.read_blob(BlobRange(key=key, offset=8, limit=4)) == BlobChunk(data=b"89", size=10)
    assert await server.read_blob(BlobRange(key=key, offset=99, limit=4)) == BlobChunk(data=b"", size=10)


async def test_one_answer_carries_a_bounded_piece(server: BlobServer) -> None:
    key = await put(server, bytes(MAX_CHUNK_BYTES + 1))

    assert len((await server.read_blob(BlobRange(key=key, limit=1 << 40))).data) == MAX_CHUNK_BYTES


@pytest.mark.parametrize("key", ["sha256-" + "0" * 64, "sha256-../../etc/passwd", "../secret", "", "incoming"])
async def test_an_unknown_key_is_not_found_whatever_it_looks_like(server: BlobServer, key: str) -> None:
    with pytest.raises(NotFound):
        await server.read_blob(BlobRange(key=BlobKey(key)))
    with pytest.raises(NotFound):
        server.retain(JOB_A, [BlobKey(key)])
    assert await server.size_of(BlobKey(key)) is None


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, -1)])
async def test_a_range_that_is_none_is_invalid(server: BlobServer, offset: int, limit: int) -> None:
    key = await put(server, b"x")

    with pytest.raises(Invalid):
        await server.read_blob(BlobRange(key=key, offset=offset, limit=limit))


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_the_same_content_twice_is_stored_once(server: BlobServer, tmp_path: Path, content: bytes) -> None:
    await put(server, content)
    await put(server, content)

    assert len(names(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_an_upload_that_is_cut_off_leaves_nothing(server: BlobServer, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConnectionResetError):
        await server.put(cut_off(content))

    assert names(tmp_path) == []


@pytest.mark.parametrize("turns", range(0, 40, 4))
async def test_a_cancelled_upload_leaves_nothing(server: BlobServer, tmp_path: Path, turns: int) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for start in range(0, len(LARGE), SMALL_BYTES):
            yield LARGE[start : start + SMALL_BYTES]
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        upload = tasks.create_task(server.put(slowly()), name="upload")
        for _ in range(turns):
            await asyncio.sleep(0)
        upload.cancel()

    assert names(tmp_path) == []


async def test_an_upload_is_acknowledged_only_when_file_and_directories_are_flushed(tmp_path: Path) -> None:
    flushed: list[str] = []

    def sync(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    server = BlobServer(tmp_path, sync=sync)
    await server.start()
    key = await put(server, b"content")

    digest = key.removeprefix("sha256-")
    assert flushed[0].startswith(str(tmp_path / "incoming")), "whole before it has its name"
    assert flushed[1:] == [str(tmp_path / digest), str(tmp_path)]


async def test_a_damaged_file_is_removed_when_first_read_after_a_restart(server: BlobServer, tmp_path: Path) -> None:
    key = await put(server, b"content")
    (await server.path_of(key)).write_bytes(b"cOntent")

    restarted = await started(tmp_path)

    with pytest.raises(NotFound, match=key):
        await restarted.read_blob(BlobRange(key=key))
    assert names(tmp_path) == []


async def test_a_damaged_file_does_not_hide_a_sound_one(server: BlobServer, tmp_path: Path) -> None:
    key = await put(server, b"content")
    for name in ("0-first", "~last"):
        (tmp_path / key.removeprefix("sha256-") / name).write_bytes(b"damaged")

    assert (await (await started(tmp_path)).read_blob(BlobRange(key=key))).data == b"content"


# --- who keeps what


async def test_a_blob_goes_when_the_last_job_that_refers_to_it_is_released(server: BlobServer, tmp_path: Path) -> None:
    key = await put(server, b"shared")
    server.retain(JOB_A, [key])
    server.retain(JOB_B, [key])

    await server.release(JOB_A)
    assert await is_there(server, key)
    await server.release(JOB_B)
    await server.release(JOB_B)

    assert not await is_there(server, key)
    assert names(tmp_path) == []


async def test_retaining_a_missing_blob_keeps_none_of_them(server: BlobServer) -> None:
    key = await put(server, b"there")
    with pytest.raises(NotFound, match=key_of(b"missing")):
        server.retain(JOB_A, [key, key_of(b"missing")])

    server.retain(JOB_B, [key])
    await server.release(JOB_B)

    assert not await is_there(server, key)


async def test_retaining_again_adds_and_is_undone_by_one_release(server: BlobServer, tmp_path: Path) -> None:
    first, second = await put(server, b"1"), await put(server, b"2")
    server.retain(JOB_A, [first])
    server.retain(JOB_A, [first, second])

    await server.release(JOB_A)

    assert names(tmp_path) == []


async def test_a_pinned_blob_stays_though_its_last_job_is_released(server: BlobServer) -> None:
    key = await put(server, b"content")
    server.retain(JOB_A, [key])

    with server.pin([key]):
        await server.release(JOB_A)
        assert await is_there(server, key)
        server.retain(JOB_B, [key])

    assert await is_there(server, key)
    await server.release(JOB_B)
    assert not await is_there(server, key)


async def test_an_upload_that_no_job_has_taken_up_outlives_another_jobs_release(server: BlobServer) -> None:
    key = await put(server, b"content")
    await put(server, b"content")  # of a second client, which is about to submit
    server.retain(JOB_A, [key])

    await server.release(JOB_A)

    server.retain(JOB_B, [key])


async def test_uploads_that_no_job_will_take_up_go_at_once_unless_something_else_keeps_them(server: BlobServer) -> None:
    """A submission that is repeated brings its files once more."""
    used, unused = await put(server, b"used"), await put(server, b"unused")
    server.retain(JOB_A, [used])
    await put(server, b"used")

    await server.abandon([used, unused])

    assert await is_there(server, used)
    assert not await is_there(server, unused)
    await server.release(JOB_A)
    assert not await is_there(server, used)


class SlowDisk:
    """Does file I/O in place, once it is let."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()  # a caller has work for it
        self.free = asyncio.Event()
        self.free.set()

    async def __call__(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.asked.set()
        await self.free.wait()
        return work(*args, **kwargs)


async def test_what_is_being_removed_cannot_be_retained_and_what_is_put_meanwhile_stays(tmp_path: Path) -> None:
    disk = SlowDisk()
    server = BlobServer(tmp_path, offload=disk)
    key = await put(server, b"content")
    server.retain(JOB_A, [key])

    async with asyncio.TaskGroup() as tasks:
        disk.free.clear()
        disk.asked.clear()
        tasks.create_task(server.release(JOB_A), name="release")
        await disk.asked.wait()
        uploading = tasks.create_task(put(server, b"content"), name="put")
        await asyncio.sleep(0)
        assert len(names(tmp_path)) == 1, "the decision is taken, the file is there still"
        with pytest.raises(NotFound):
            server.retain(JOB_B, [key])
        disk.free.set()
        await uploading

    server.retain(JOB_B, [key])
    assert (await server.read_blob(BlobRange(key=key))).data == b"content"
    await server.release(JOB_B)
    assert names(tmp_path) == []


async def test_only_blobs_of_recovered_jobs_stay_after_a_restart(server: BlobServer, tmp_path: Path) -> None:
    kept, lost = await put(server, b"kept"), await put(server, b"lost")
    server.retain(JOB_A, [kept])
    server.retain(JOB_B, [lost])

    restarted = await started(tmp_path)
    await restarted.retain_only({JOB_A: [kept, key_of(b"never uploaded")]})

    assert await is_there(restarted, kept)
    assert not await is_there(restarted, lost)
    await restarted.release(JOB_A)
    assert names(tmp_path) == []


async def test_uploads_to_this_process_and_pinned_blobs_survive_the_beginning_of_a_term(server: BlobServer) -> None:
    waiting, held = await put(server, b"waiting"), await put(server, b"held")
    server.retain(JOB_A, [held])

    with server.pin([held]):
        await server.retain_only({})

    assert await is_there(server, waiting)
    assert await is_there(server, held)


async def test_uploads_that_no_job_refers_to_expire(tmp_path: Path) -> None:
    now_s = 1_000.0
    server = await started(tmp_path, lambda: now_s)
    unused, referred, held = await put(server, b"unused"), await put(server, b"referred"), await put(server, b"held")
    server.retain(JOB_A, [referred])
    for path in names(tmp_path):
        os.utime(path, (now_s, now_s))

    with server.pin([held]):
        now_s = 1_100.0
        assert await server.expire_unreferenced(older_than_s=100.0) == ()
        now_s = 1_101.0
        assert await server.expire_unreferenced(older_than_s=100.0) == (unused,)

    assert not await is_there(server, unused)
    assert await is_there(server, referred)
    assert await is_there(server, held)


async def test_a_wall_clock_that_jumps_ahead_removes_no_upload(tmp_path: Path) -> None:
    elapsed_s = 0.0
    server = BlobServer(tmp_path, now_s=lambda: time.time() + 8 * 86_400, elapsed_s=lambda: elapsed_s)
    await server.start()
    await server.retain_only({})
    own = await put(server, b"own")

    elapsed_s = 3_599.0
    assert await server.expire_unreferenced(older_than_s=3_600.0) == ()
    elapsed_s = 3_601.0
    assert await server.expire_unreferenced(older_than_s=3_600.0) == (own,)


async def test_an_upload_that_came_again_counts_from_then(tmp_path: Path) -> None:
    now_s = 1_000.0
    server = await started(tmp_path, lambda: now_s)
    key = await put(server, b"content")
    for path in names(tmp_path):
        os.utime(path, (now_s, now_s))
    now_s = 1_090.0
    await put(server, b"content")

    now_s = 1_150.0
    assert await server.expire_unreferenced(older_than_s=100.0) == ()
    now_s = 1_200.0
    assert await server.expire_unreferenced(older_than_s=100.0) == (key,)


async def test_an_old_leaders_cleanup_removes_nothing_that_a_newer_job_refers_to(tmp_path: Path) -> None:
    old = await started(tmp_path)
    key = await put(old, b"content")
    old.retain(JOB_A, [key])
    uploads = await started(tmp_path)
    await put(uploads, b"content")
    refers = await started(tmp_path)
    refers.retain(JOB_B, [key])  # by key alone

    await old.release(JOB_A)

    assert (await (await started(tmp_path)).read_blob(BlobRange(key=key))).data == b"content"
    assert (await uploads.read_blob(BlobRange(key=key))).data == b"content"


async def test_a_restarted_server_that_refers_by_key_alone_has_a_name_of_its_own(tmp_path: Path) -> None:
    old = await started(tmp_path)
    key = await put(old, b"content")
    old.retain(JOB_A, [key])
    newer = await started(tmp_path)
    newer.retain(JOB_B, [key])

    await old.release(JOB_A)

    assert (await newer.read_blob(BlobRange(key=key))).data == b"content"
    await newer.release(JOB_B)
    assert names(tmp_path) == []


# --- leftovers


#: Begins an upload and waits to be killed.
UPLOADING = """
import pathlib, sys
from flintlock.blob import files
from flintlock.blob.files import IncomingFile
IncomingFile(pathlib.Path(sys.argv[1]), "half").write(b"half of it")
print("up", flush=True)
sys.stdin.read()
"""


async def test_half_an_upload_is_removed_at_start_once_its_process_is_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UPLOADING, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220  # returns at once
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"up\n"
        await started(tmp_path)
        assert len(names(tmp_path)) == 1, "another process is writing it"

        process.send_signal(signal.SIGKILL)
        process.wait()

    await started(tmp_path)
    assert names(tmp_path) == []


async def test_an_empty_directory_is_removed_at_start_and_does_not_disturb_an_upload(tmp_path: Path) -> None:
    (tmp_path / key_of(b"content").removeprefix("sha256-")).mkdir()

    server = await started(tmp_path)

    assert [path.name for path in tmp_path.iterdir() if path.name != "incoming"] == []
    assert await is_there(server, await put(server, b"content"))


def test_a_file_that_was_discarded_takes_no_more(tmp_path: Path) -> None:
    incoming = IncomingFile(tmp_path, "upload")
    incoming.write(b"x")
    incoming.discard()
    incoming.discard()

    with pytest.raises(FileNotFoundError):
        incoming.write(b"y")
    assert names(tmp_path) == []


def test_discarding_a_file_that_was_moved_removes_it(tmp_path: Path) -> None:
    incoming = IncomingFile(tmp_path, "upload")
    incoming.write(b"x")
    incoming.move(tmp_path / "place" / "name")
    assert names(tmp_path) == [tmp_path / "place" / "name"]

    incoming.discard()

    assert names(tmp_path) == []


async def test_upload_ids_come_from_outside(tmp_path: Path) -> None:
    ids = (f"upload-{n}" for n in itertools.count())
    server = BlobServer(tmp_path, new_upload_id=lambda: next(ids))
    await server.start()
    await put(server, b"content")

    assert [path.name for path in names(tmp_path)] == ["upload-1"], "the first went to the half-written file"


async def test_a_file_that_cannot_be_read_is_that_blobs_matter(server: BlobServer, tmp_path: Path) -> None:
    key = await put(server, b"x")
    sound = await put(server, b"y")
    (name,) = files.names_of(tmp_path, key)
    name.unlink()
    name.mkdir()
    again = await started(tmp_path)

    damaged = await again.find_damaged([key, sound])
    assert damaged == {key: f"blob {key} cannot be read: [Errno 21] Is a directory: '{name}'"}
    with pytest.raises(Corrupt, match="cannot be read"):
        await server.read_blob(BlobRange(key=key))


async def test_a_directory_in_which_nothing_can_be_read_is_unavailable(server: BlobServer, tmp_path: Path) -> None:
    key = await put(server, b"x")
    (name,) = files.names_of(tmp_path, key)
    name.unlink()
    name.mkdir()
    again = await started(tmp_path)
    incoming = tmp_path / files.INCOMING
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.write_text("in the way")

    with pytest.raises(Unavailable):
        await again.find_damaged([key])


async def test_a_leftover_that_cannot_be_removed_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / files.INCOMING / "a directory" / "with a file").mkdir(parents=True)
    await BlobServer(tmp_path).start()

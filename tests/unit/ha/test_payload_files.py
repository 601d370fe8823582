from __future__ import annotations

import asyncio
import os
import stat
import threading
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from tests.contract.records import JOB_A, JOB_B

from flintlock.ha.zookeeper.storage.payload_files import (
    THREADS,
    PayloadFiles,
    PayloadGone,
    PayloadUnreadable,
    payload_files,
)
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch

pytestmark = pytest.mark.anyio

E1, E2 = Epoch(1), Epoch(2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def files(tmp_path: Path) -> AsyncGenerator[PayloadFiles]:
    opened = payload_files(str(tmp_path), "c")
    await opened.claim()
    yield opened
    await opened.close()


async def test_each_payload_gets_a_name_of_its_own_and_is_read_back(files: PayloadFiles) -> None:
    names = await asyncio.gather(*(files.write("graphs", JOB_A, E1, bytes([n])) for n in range(50)))

    assert len(set(names)) == 50
    assert [await files.read(name) for name in names] == [bytes([n]) for n in range(50)]


async def test_what_is_stored_is_for_its_owner_only(files: PayloadFiles, tmp_path: Path) -> None:
    name = await files.write("graphs", JOB_A, E1, b"secret")

    assert stat.S_IMODE((tmp_path / "c" / name).stat().st_mode) == 0o600


async def test_a_payload_that_is_not_there_is_gone(files: PayloadFiles) -> None:
    with pytest.raises(PayloadGone):
        await files.read("graphs/none")


async def test_discarding_twice_does_nothing(files: PayloadFiles) -> None:
    name = await files.write("graphs", JOB_A, E1, b"x")

    await files.discard([name])
    await files.discard([name])

    with pytest.raises(PayloadGone):
        await files.read(name)


async def test_a_full_or_broken_disk_is_unavailable_and_names_the_option(files: PayloadFiles, tmp_path: Path) -> None:
    (tmp_path / "c" / "graphs").rmdir()
    (tmp_path / "c" / "graphs").write_bytes(b"a file in its place")

    with pytest.raises(Unavailable, match=r"high-availability\.storageDir"):
        await files.write("graphs", JOB_A, E1, b"x")


async def test_a_place_that_is_gone_as_a_whole_is_unavailable_and_its_payloads_are_not_gone(
    files: PayloadFiles, tmp_path: Path
) -> None:
    name = await files.write("graphs", JOB_A, E1, b"x")
    (tmp_path / "c").rename(tmp_path / "elsewhere")

    with pytest.raises(Unavailable, match="not mounted"):
        await files.read(name)
    with pytest.raises(Unavailable):
        await files.write("graphs", JOB_A, E1, b"x")


async def test_a_sweep_leaves_used_files_this_epoch_and_excluded_owners(files: PayloadFiles) -> None:
    used, left = [await files.write("graphs", JOB_A, E1, b"x") for _ in range(2)]
    fresh = await files.write("graphs", JOB_A, E2, b"x")
    spared = await files.write("graphs", JOB_B, E1, b"x")

    assert await files.sweep(E2, {used}, {JOB_B}) == 1

    for name in (used, fresh, spared):
        assert await files.read(name) == b"x"
    with pytest.raises(PayloadGone):
        await files.read(left)


@pytest.fixture(params=["file", "memory"])
async def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[PayloadFiles]:
    opened = payload_files(f"file://{tmp_path}/ha" if request.param == "file" else f"memory://{tmp_path}", "c")
    await opened.claim()
    yield opened
    await opened.close()


async def test_a_check_whether_a_directory_can_be_written_leaves_nothing(anywhere: PayloadFiles) -> None:
    await anywhere.check_writable()

    assert await anywhere.sweep(E1, set()) == 0


async def test_a_directory_that_cannot_be_written_is_noticed_though_it_can_be_read(
    files: PayloadFiles, tmp_path: Path
) -> None:
    (tmp_path / "c" / "progress").rmdir()

    await files.check_directory()
    with pytest.raises(Unavailable, match=r"high-availability\.storageDir"):
        await files.check_writable()


async def test_a_whole_file_is_copied_and_read_in_pieces(anywhere: PayloadFiles, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "source").write_bytes(content)

    name = await anywhere.copy("blobs", "ab" * 32, E1, tmp_path / "source")
    (tmp_path / "source").unlink()

    assert name.startswith(f"blobs/{'ab' * 32}-1-")
    assert await anywhere.read(name) == content
    assert await anywhere.read(name, 1_000_000, 2_000_000) == content[1_000_000:2_000_000]
    assert await anywhere.read(name, 2_559_999, 9_999_999) == content[-1:]
    assert await anywhere.sweep(E2, set()) == 1


async def test_what_cannot_be_copied_whole_leaves_nothing(anywhere: PayloadFiles) -> None:
    with pytest.raises(Unavailable, match=r"high-availability\.storageDir"):
        await anywhere.copy("blobs", "ab" * 32, E1, Path("/proc/self/mem"))  # it opens, and cannot be read

    assert await anywhere.sweep(E2, set()) == 0


async def test_a_cancelled_write_leaves_nothing_once_its_thread_is_done(files: PayloadFiles, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(20 << 20))
    for turns in range(6):
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(files.copy("blobs", "ab", E1, tmp_path / "source"), name="copy")
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
    await files.close()

    assert [*(tmp_path / "c" / "blobs").iterdir()] == []


async def test_closed_it_says_so(files: PayloadFiles) -> None:
    await files.close()

    with pytest.raises(Unavailable, match="closed"):
        await files.write("graphs", JOB_A, E1, b"x")


async def test_a_file_that_cannot_be_read_is_its_records_matter(files: PayloadFiles, tmp_path: Path) -> None:
    name = await files.write("graphs", JOB_A, E1, b"x")
    (tmp_path / "c" / name).unlink()
    (tmp_path / "c" / name).mkdir()

    with pytest.raises(PayloadUnreadable, match="Is a directory"):
        await files.read(name)


async def test_a_directory_of_which_nothing_can_be_read_is_unavailable(files: PayloadFiles, tmp_path: Path) -> None:
    name = await files.write("graphs", JOB_A, E1, b"x")
    for unreadable in (name, files.marker):
        (tmp_path / "c" / unreadable).unlink()
        (tmp_path / "c" / unreadable).mkdir()

    with pytest.raises(Unavailable, match=r"storageDir cannot be read"):
        await files.read(name)


async def test_a_storage_directory_that_hangs_is_given_up_and_closed(tmp_path: Path) -> None:
    opened = PayloadFiles(LocalFileSystem(), str(tmp_path / "c"), limit_s=0.05)
    await opened.claim()
    os.mkfifo(tmp_path / "c" / "graphs" / "hangs")

    with pytest.raises(Unavailable, match=r"does not answer"):
        await opened.read("graphs/hangs")
    async with asyncio.timeout(30):
        await opened.close()


class HangingWrites(MemoryFileSystem):
    """Files in memory; a write to a folder hangs until it is released."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.hangs_in = ""
        self.released = threading.Event()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.hangs_in and f"/{self.hangs_in}/" in path:
            self.released.wait(60)
        super().pipe_file(path, value, mode=mode, **options)


async def test_checks_that_hang_leave_the_threads_to_the_payloads() -> None:
    fs = HangingWrites()
    files = PayloadFiles(fs, f"/{uuid.uuid4().hex}", limit_s=5.0)
    await files.claim()
    name = await files.write("graphs", JOB_A, E1, b"x")
    fs.hangs_in = "progress"
    async with asyncio.TaskGroup() as tasks:
        checks = [tasks.create_task(files.check_writable(), name="check") for _ in range(2 * THREADS)]
        await asyncio.sleep(0)

        assert await files.read(name) == b"x"
        await files.check_readable()
        fs.released.set()
        await asyncio.gather(*checks)
    assert await files.sweep(E1, set()) == 0
    await files.close()

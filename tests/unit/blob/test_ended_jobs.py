"""Files of ended jobs are stored for a while, up to a limit, so that jobs can be run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.blob.test_server import is_there, put

from flintlock.blob.server import BlobServer
from flintlock.model.ids import BlobKey, JobId

ONE, TWO, THREE = JobId("a" * 32), JobId("b" * 32), JobId("c" * 32)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def started(directory: Path, clock: Clock, ended_bytes: int = 100) -> BlobServer:
    server = BlobServer(directory, now_s=clock, elapsed_s=clock, ended_bytes=ended_bytes)
    await server.start()
    return server


async def run_job(server: BlobServer, job_id: JobId, content: bytes) -> BlobKey:
    """Upload a file, run a job with it, end the job."""
    key = await put(server, content)
    server.retain(job_id, [key])
    await server.release(job_id)
    return key


@pytest.mark.anyio
async def test_the_files_of_an_ended_job_can_be_used_by_another(tmp_path: Path) -> None:
    server = await started(tmp_path, Clock())
    key = await run_job(server, ONE, b"x" * 60)
    assert await is_there(server, key)
    server.retain(TWO, [key])
    await server.release(TWO)
    assert await is_there(server, key)


@pytest.mark.anyio
async def test_the_oldest_files_give_way(tmp_path: Path) -> None:
    server = await started(tmp_path, Clock())
    first, second = await run_job(server, ONE, b"1" * 40), await run_job(server, TWO, b"2" * 40)
    await run_job(server, THREE, b"1" * 40)  # used again, so no longer the oldest
    third = await run_job(server, THREE, b"3" * 40)
    assert [await is_there(server, key) for key in (first, second, third)] == [True, False, True]
    large = await run_job(server, ONE, b"4" * 101)
    assert [await is_there(server, key) for key in (first, third, large)] == [False, False, False]


@pytest.mark.anyio
async def test_files_that_a_running_job_needs_do_not_give_way(tmp_path: Path) -> None:
    server = await started(tmp_path, Clock())
    key = await run_job(server, ONE, b"1" * 60)
    server.retain(TWO, [key])
    await run_job(server, THREE, b"2" * 60)
    assert await is_there(server, key)
    await server.release(TWO)
    assert await is_there(server, key), "now it is the latest"


@pytest.mark.anyio
async def test_files_are_stored_no_longer_than_jobs(tmp_path: Path) -> None:
    clock = Clock()
    server = await started(tmp_path, clock)
    key = await run_job(server, ONE, b"x")
    clock.now_s = 50.0
    assert await server.expire_unreferenced(older_than_s=10**12, ended_s=60.0) == ()
    clock.now_s = 61.0
    assert await server.expire_unreferenced(older_than_s=10**12, ended_s=60.0) == (key,)
    assert not await is_there(server, key)


@pytest.mark.anyio
async def test_files_of_ended_jobs_survive_a_restart_within_the_limit(tmp_path: Path) -> None:
    clock = Clock()
    before = await started(tmp_path, clock)
    key, needed = await run_job(before, ONE, b"x" * 60), await put(before, b"y" * 90)
    after = await started(tmp_path, clock)
    await after.retain_only({TWO: [needed]})
    assert [await is_there(after, each) for each in (key, needed)] == [True, True]
    smaller = await started(tmp_path, clock, ended_bytes=10)
    await smaller.retain_only({TWO: [needed]})
    assert [await is_there(smaller, each) for each in (key, needed)] == [False, True]


@pytest.mark.anyio
async def test_without_a_limit_files_end_with_their_job(tmp_path: Path) -> None:
    server = await started(tmp_path, Clock(), ended_bytes=0)
    assert not await is_there(server, await run_job(server, ONE, b"x"))
    assert not await is_there(server, await run_job(server, ONE, b""))

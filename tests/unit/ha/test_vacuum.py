"""The store's file shrinks after records were removed, while other writes go on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.contract.records import job_result, rows, snapshot

from flintlock.ha.embedded.services import STORE_FILE, embedded_ha
from flintlock.ha.embedded.sqlite_file import MAX_WAL_BYTES
from flintlock.ha.protocols import Stores
from flintlock.model.ids import JobId

pytestmark = pytest.mark.anyio
JOBS = [JobId(f"{number:032x}") for number in range(60)]


@asynccontextmanager
async def leading(state_dir: Path, *, vacuum_s: float) -> AsyncGenerator[Stores]:
    services = embedded_ha(state_dir, new_session=lambda: "session", now_ms=lambda: 0, vacuum_s=vacuum_s)
    async with services as ha:
        async for term in ha.election.terms():
            async with term as token:
                yield ha.stores(token)
            return


async def fill(stores: Stores) -> None:
    for job_id in JOBS:
        await stores.ended.put(snapshot(job_id), (rows(json=b"x" * 500_000),))
        await stores.results.create_dirty(job_result(job_id))
        await stores.results.mark_clean(job_id)


async def size(path: Path) -> int:
    """Return the size of the file once all that was written is in it."""

    def checkpoint() -> None:
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()

    await asyncio.to_thread(checkpoint)
    return path.stat().st_size


async def test_store_shrinks_after_its_jobs_have_expired_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    async with leading(tmp_path, vacuum_s=3600) as stores:
        await fill(stores)
        full = await size(path)
        await stores.ended.expire(10_000)
        assert await size(path) == full, "SQLite returns nothing by itself"

    async with leading(tmp_path, vacuum_s=0.01) as stores, asyncio.timeout(20):
        while await size(path) > full // 2:
            await stores.ended.put(snapshot(JOBS[0]), ())
        assert await stores.ended.get(JOBS[0]) == snapshot(JOBS[0])


async def test_log_of_writes_is_cut_after_it_has_grown(tmp_path: Path) -> None:
    async with leading(tmp_path, vacuum_s=3600) as stores:
        await stores.ended.put(snapshot(JOBS[0]), (rows(json=b"x" * (MAX_WAL_BYTES + (8 << 20))),))
        for job_id in JOBS[1:4]:
            await stores.ended.put(snapshot(job_id), (rows(json=b"x" * 5_000_000),))

        assert (tmp_path / f"{STORE_FILE}-wal").stat().st_size <= MAX_WAL_BYTES


async def test_file_that_cannot_shrink_stays_usable(tmp_path: Path) -> None:
    """One that was created by a version that did not ask for it."""
    path = tmp_path / STORE_FILE
    async with leading(tmp_path, vacuum_s=3600):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA auto_vacuum=NONE")
    connection.execute("VACUUM")
    connection.close()

    async with leading(tmp_path, vacuum_s=0.0) as stores:
        await fill(stores)
        full = await size(path)
        await stores.ended.expire(10_000)
        await stores.ended.put(snapshot(JOBS[0]), ())
        assert await size(path) == full

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flintlock.ha.embedded.sqlite_file import open_reader, open_writer
from flintlock.ha.embedded.writer import LARGE, MAX_BATCH, GroupWriter, Write
from flintlock.model.errors import DuplicateJob, InvariantBroken, Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[GroupWriter]:
    writer = GroupWriter(open_writer(path))
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def writer(path: Path) -> AsyncGenerator[GroupWriter]:
    async with opened(path) as writer:
        yield writer


def insert(job_id: str, payload: bytes = b"x") -> Write[str]:
    def work(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO job_graphs VALUES (?, ?)", (job_id, payload))
        return job_id

    return work


def stored(path: Path) -> set[str]:
    reader = open_reader(path)
    try:
        return {job_id for (job_id,) in reader.execute("SELECT job_id FROM job_graphs")}
    finally:
        reader.close()


@pytest.mark.parametrize("size", [0, LARGE])
async def test_writes_that_wait_together_become_durable_together(path: Path, writer: GroupWriter, size: int) -> None:
    names = [f"job-{n}" for n in range(50)]

    assert await asyncio.gather(*(writer.write(insert(name), size) for name in names)) == names

    assert stored(path) == set(names)
    assert writer.commits == 1


async def test_writes_behind_a_whole_batch_of_cancelled_ones_are_not_left_waiting(
    path: Path, writer: GroupWriter
) -> None:
    async with asyncio.TaskGroup() as tasks:
        gone = [tasks.create_task(writer.write(insert(f"gone-{n}"))) for n in range(MAX_BATCH)]
        last = tasks.create_task(writer.write(insert("last")))
        asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in gone])

    assert last.result() == "last"
    assert stored(path) == {"last"}


async def test_writes_that_come_during_a_commit_share_the_next_one(writer: GroupWriter) -> None:
    async def one_after_the_other(caller: int) -> None:
        for n in range(25):
            await writer.write(insert(f"{caller}-{n}"))

    await asyncio.gather(*(one_after_the_other(caller) for caller in range(8)))

    assert writer.commits <= 50, "200 writes of 8 callers"


async def test_more_writes_than_fit_one_batch_all_take_place(path: Path, writer: GroupWriter) -> None:
    await asyncio.gather(*(writer.write(insert(str(n))) for n in range(2 * MAX_BATCH + 1)))

    assert len(stored(path)) == 2 * MAX_BATCH + 1
    assert writer.commits == 3


async def test_a_write_returns_when_other_connections_can_see_it(path: Path, writer: GroupWriter) -> None:
    for n in range(20):
        await writer.write(insert(str(n)))
        assert str(n) in stored(path)


@pytest.mark.parametrize("size", [0, LARGE])
async def test_a_write_that_fails_takes_none_of_the_others_along(path: Path, writer: GroupWriter, size: int) -> None:
    def half_done(connection: sqlite3.Connection) -> None:
        insert("half")(connection)
        raise DuplicateJob("no")

    answers = await asyncio.gather(
        writer.write(insert("a"), size),
        writer.write(half_done, size),
        writer.write(insert("a"), size),
        writer.write(insert("b"), size),
        return_exceptions=True,
    )

    assert [type(answer) for answer in answers] == [str, DuplicateJob, InvariantBroken, str]
    assert stored(path) == {"a", "b"}
    assert writer.commits == 1


async def test_a_write_cancelled_before_its_turn_does_not_take_place(path: Path, writer: GroupWriter) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.write(insert("a")), name="a")
        cancelled = tasks.create_task(writer.write(insert("b")), name="b")
        await asyncio.sleep(0)
        cancelled.cancel()

    assert "a" in stored(path)
    assert cancelled.cancelled()


@pytest.mark.parametrize("size", [0, LARGE])
async def test_a_full_disk_is_unavailable_with_the_reason_and_later_writes_succeed(
    path: Path, writer: GroupWriter, size: int
) -> None:
    pages = await writer.write(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await writer.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages + 2}").fetchone())

    answers = await asyncio.gather(
        writer.write(insert("small-1"), size),
        writer.write(insert("large", bytes(100_000)), size),
        writer.write(insert("small-2"), size),
        return_exceptions=True,
    )

    assert answers[0] == "small-1"
    assert answers[2] == "small-2"
    assert isinstance(answers[1], Unavailable)
    assert "SQLITE_FULL" in answers[1].public
    assert stored(path) == {"small-1", "small-2"}

    await writer.write(lambda connection: connection.execute("PRAGMA max_page_count=100000").fetchone())
    await writer.write(insert("large", bytes(100_000)), size)
    assert "large" in stored(path)


@pytest.mark.parametrize("size", [0, LARGE])
async def test_an_io_error_is_unavailable_with_the_reason_and_later_writes_succeed(
    path: Path, writer: GroupWriter, size: int
) -> None:
    await writer.write(insert("before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal_size = path.with_name("store.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal_size, hard))  # the kernel refuses to let the log grow
    try:
        answers = await asyncio.gather(
            writer.write(insert("a"), size), writer.write(insert("b"), size), return_exceptions=True
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    for answer in answers:
        assert isinstance(answer, Unavailable)
        assert "IOERR" in answer.public
    assert stored(path) == {"before"}

    await asyncio.gather(writer.write(insert("a"), size), writer.write(insert("b"), size))
    assert stored(path) == {"before", "a", "b"}


async def test_the_loop_runs_on_while_another_process_holds_the_file(path: Path, writer: GroupWriter) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(writer.write(insert("a")), name="a")
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not waiting.done()

        other.execute("ROLLBACK")

    other.close()
    assert stored(path) == {"a"}


async def test_closing_finishes_what_waits_and_refuses_the_rest(path: Path) -> None:
    async with opened(path) as writer, asyncio.TaskGroup() as tasks:
        for n in range(MAX_BATCH + 1):
            tasks.create_task(writer.write(insert(str(n))), name=str(n))
        await asyncio.sleep(0)
        await writer.close()
        with pytest.raises(Unavailable, match="closed"):
            await writer.write(insert("late"))

    assert len(stored(path)) == MAX_BATCH + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_the_writer_fails_every_write_and_closes_the_store(path: Path, writer: GroupWriter) -> None:
    def ends_the_transaction(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        raise LookupError("a bug")

    answers = await asyncio.gather(
        writer.write(ends_the_transaction), writer.write(insert("a")), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable, match="a bug"):
        await writer.write(insert("b"))
    assert stored(path) == set()

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flintlock.ha.embedded import writer
from flintlock.ha.embedded.election import LockFile
from flintlock.ha.embedded.services import EmbeddedHaServices, embedded_ha
from flintlock.ha.embedded.sqlite_file import SCHEMA_VERSION
from flintlock.ha.embedded.writer import GroupWriter
from flintlock.model.errors import Incompatible, InvariantBroken, Refused

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")

    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()
    second.release()
    second.release()


def test_taking_it_twice_is_a_bug(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    assert lock.take()

    with pytest.raises(InvariantBroken):
        lock.take()

    lock.release()


def test_releasing_it_frees_it_whatever_child_is_being_started(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert first.take()
    child = subprocess.Popen([sys.executable, "-c", "input()"], close_fds=False, stdin=subprocess.PIPE)
    try:
        first.release()
        assert second.take()
        second.release()
    finally:
        child.communicate(b"\n")


#: Takes the lock, starts a child that inherits what can be inherited, and waits to be killed.
DYING = """
import pathlib, subprocess, sys
from flintlock.ha.embedded import writer
from flintlock.ha.embedded.election import LockFile
assert LockFile(pathlib.Path(sys.argv[1])).take()
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], close_fds=False)
child.wait()
"""


def test_when_its_holder_dies_it_is_free_though_a_child_still_runs(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    command = [sys.executable, "-c", DYING, str(tmp_path / "lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:  # closing them ends the child
        assert holder.stdout.readline() == b"up\n"
        assert not lock.take()

        holder.kill()
        holder.wait()

        assert lock.take()
    lock.release()


@asynccontextmanager
async def opened(state_dir: Path) -> AsyncGenerator[EmbeddedHaServices]:
    clock = itertools.count(1_000)
    sessions = (f"session-{n}" for n in itertools.count())
    async with embedded_ha(
        state_dir,
        new_session=lambda: next(sessions),
        now_ms=lambda: next(clock),
        poll_s=0.001,
        heartbeat_s=0.001,
    ) as services:
        yield services


def heartbeat(state_dir: Path) -> tuple[object, ...]:
    connection = sqlite3.connect(state_dir / "store.db")
    try:
        return connection.execute("SELECT epoch, session, pid, at_ms FROM heartbeat").fetchone()
    finally:
        connection.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nothing of the other process can be awaited
        await asyncio.sleep(0)


async def test_the_holder_keeps_a_heartbeat_with_its_pid_from_the_beginning_of_its_term(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30):
        async with await anext(services.election.terms()):
            assert heartbeat(tmp_path)[:3] == (1, "session-0", os.getpid())
            begun = heartbeat(tmp_path)[3]
            await until(lambda: heartbeat(tmp_path)[3] != begun)
        ended = heartbeat(tmp_path)

        async with await anext(services.election.terms()):
            assert heartbeat(tmp_path)[0] == 2
    assert ended[0] == 1


async def test_a_leader_whose_heartbeat_fails_for_a_while_goes_on_leading(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30), await anext(services.election.terms()):
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("ALTER TABLE heartbeat RENAME TO away")
        for _ in range(1000):
            await asyncio.sleep(0)
        other.execute("ALTER TABLE away RENAME TO heartbeat")
        other.close()
        before = heartbeat(tmp_path)[3]
        await until(lambda: heartbeat(tmp_path)[3] != before)


async def test_a_candidate_that_cannot_raise_the_epoch_gives_the_lock_back_and_tries_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("ALTER TABLE leadership RENAME TO away")

        async def lead_once() -> None:
            async with await anext(services.election.terms()) as token:
                assert token.epoch == 1

        leading = tasks.create_task(lead_once(), name="leading")
        lock = LockFile(tmp_path / "leader.lock")
        for _ in range(3):  # it is free again and again
            await until(lock.take)
            assert not leading.done()
            lock.release()
        other.execute("ALTER TABLE away RENAME TO leadership")
        await leading
        other.close()


async def test_a_standby_that_an_upgrade_has_overtaken_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30):
        newer = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
        epoch = newer.execute("SELECT epoch FROM leadership").fetchone()

        with pytest.raises(Incompatible, match="written by a newer Flintlock"):
            await anext(services.election.terms())

        assert newer.execute("SELECT epoch FROM leadership").fetchone() == epoch
        newer.close()
        lock = LockFile(tmp_path / "leader.lock")
        assert lock.take(), "who can lead finds it free"
        lock.release()


async def lead_once(services: EmbeddedHaServices) -> None:
    async with await anext(services.election.terms()):
        pass


async def test_a_leader_whose_store_was_removed_ends_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30):

        async def lead() -> None:
            async with await anext(services.election.terms()):
                (tmp_path / "store.db").rename(tmp_path / "moved.db")
                await asyncio.get_running_loop().create_future()

        with pytest.raises(ExceptionGroup) as raised:
            await lead()
        (error,) = raised.value.exceptions
        assert isinstance(error, Refused)
        assert "was removed or replaced" in error.public


async def test_a_standby_whose_store_was_replaced_does_not_lead(tmp_path: Path) -> None:
    async with opened(tmp_path) as services, asyncio.timeout(30):
        shutil.copy(tmp_path / "store.db", tmp_path / "restored.db")
        (tmp_path / "restored.db").rename(tmp_path / "store.db")
        with pytest.raises(Refused, match="was removed or replaced"):
            await anext(services.election.terms())


async def test_a_store_that_cannot_be_written_is_tried_again_with_growing_pauses_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_MS", 1)
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    async with opened(tmp_path) as services, asyncio.timeout(30):
        blocker.execute("BEGIN IMMEDIATE")
        tried: list[float] = []
        take = LockFile.take

        def counted(lock: LockFile) -> bool:
            tried.append(asyncio.get_running_loop().time())
            return take(lock)

        monkeypatch.setattr(LockFile, "take", counted)
        with capture_logs() as logs:
            async with asyncio.TaskGroup() as tasks:
                leading = tasks.create_task(lead_once(services))
                await until(lambda: len(tried) > 9)
                blocker.execute("ROLLBACK")
                await leading
        assert sum(line["event"] == "leadership-not-taken" for line in logs) == 1
        pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
        assert pauses[7] > 10 * 0.001, "they grow from the interval of polls"
    blocker.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_leader_whose_writer_has_failed_for_good_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers calls, so no standby would replace it; and it can never store anything again."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    async with opened(tmp_path) as services, asyncio.timeout(30):

        async def lead() -> None:
            async with await anext(services.election.terms()):
                monkeypatch.setattr(GroupWriter, "_finish", fail)
                await asyncio.get_running_loop().create_future()

        with pytest.raises(ExceptionGroup) as raised:
            await lead()
        (error,) = raised.value.exceptions
        assert isinstance(error, InvariantBroken)
        assert "the store's writer has failed" in error.public

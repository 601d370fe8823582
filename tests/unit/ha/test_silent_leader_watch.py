"""A standby kills a leader that is frozen, and none that is only hindered."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from flintlock.ha.embedded import services, silent_leader_watch, writer
from flintlock.ha.embedded.services import STORE_FILE, EmbeddedHaServices, embedded_ha
from flintlock.ha.embedded.sqlite_file import rewrite_header, write_lock_holder
from flintlock.ha.leader_info import LeaderInfo
from flintlock.host.processes.process import cpu_time_s

pytestmark = pytest.mark.anyio

T = TypeVar("T")

SILENCE_S = 0.4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is locked is given up soon."""
    monkeypatch.setattr(writer, "BUSY_TIMEOUT_MS", 100)


#: Leads over a state directory, then does what the second argument says.
LEADER = """
import asyncio, pathlib, sqlite3, sys, time, uuid
from flintlock.ha.embedded.services import embedded_ha
from flintlock.ha.leader_info import LeaderInfo
async def main():
    clock = lambda: time.time_ns() // 1_000_000
    path, behaviour = pathlib.Path(sys.argv[1]), sys.argv[2]
    heartbeat_s = 0.05 if behaviour == "beats" else 3600
    async with embedded_ha(path, new_session=lambda: uuid.uuid4().hex, now_ms=clock, heartbeat_s=heartbeat_s) as ha:
        async with await anext(ha.election.terms()) as token:
            confirmed = behaviour != "recovers"
            await ha.leader.publish(LeaderInfo(token=token, rpc="h:1", rest="http://h:2", confirmed=confirmed))
            if behaviour == "locks":
                connection = sqlite3.connect(path / "store.db", isolation_level=None)
                connection.execute("BEGIN IMMEDIATE")
            print("up", flush=True)
            while behaviour in ("recovers", "computes"):
                pass
            await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""

#: Holds SQLite's write lock, as a shell or a backup may.
LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("up", flush=True)
input()
"""


@contextmanager
def child(code: str, *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


class Answers:
    """What the leader answers to the calls of a standby."""

    def __init__(self, *, answer: bool = False) -> None:
        self.answer = answer
        self.asked: list[LeaderInfo] = []

    async def __call__(self, leader: LeaderInfo) -> bool:
        self.asked.append(leader)
        return self.answer


@asynccontextmanager
async def standby(
    state_dir: Path, answers: Answers, is_blocked: Callable[[int], bool] = lambda _: False
) -> AsyncGenerator[tuple[EmbeddedHaServices, asyncio.Task[int]]]:
    """Stand by; yields the services, and a task that returns the epoch in which it leads."""
    async with (
        asyncio.timeout(60),
        embedded_ha(
            state_dir,
            new_session=lambda: "standby",
            now_ms=lambda: 1,
            heartbeat_s=0.05,
            silence_s=SILENCE_S,
            leader_answers=answers,
            is_blocked=is_blocked,
        ) as ha,
        asyncio.TaskGroup() as tasks,
    ):

        async def lead() -> int:
            async with await anext(ha.election.terms()) as token:
                return token.epoch

        leading = tasks.create_task(lead())
        yield ha, leading
        leading.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (of another process)
        await asyncio.sleep(0.01)


def spared(logs: list[EventDict], reason: str) -> int:
    return sum(1 for line in logs if line["event"] == "silent-leader-spared" and reason in str(line["reason"]))


async def test_a_frozen_leader_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    with child(LEADER, str(tmp_path), "beats") as leader:
        leader.send_signal(signal.SIGSTOP)
        async with standby(tmp_path, Answers()) as (_, leading):
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL


async def test_a_frozen_leader_that_holds_the_write_lock_is_killed(tmp_path: Path) -> None:
    """No standby can write then, but the leader is the reason."""
    with child(LEADER, str(tmp_path), "locks") as leader:
        leader.send_signal(signal.SIGSTOP)
        async with standby(tmp_path, Answers()) as (_, leading):
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL


async def test_a_leader_whose_writes_another_process_hinders_is_spared(tmp_path: Path) -> None:
    with (
        child(LEADER, str(tmp_path), "beats") as leader,
        child(LOCKER, str(tmp_path / STORE_FILE)),
        capture_logs() as logs,
    ):
        async with standby(tmp_path, Answers()) as (_, leading):
            await until(lambda: bool(spared(logs, "could not do better")))
            assert not leading.done()
        assert leader.poll() is None


async def test_a_leader_that_answers_is_spared_until_it_does_not(tmp_path: Path) -> None:
    answers = Answers(answer=True)
    with child(LEADER, str(tmp_path), "writes no heartbeat") as leader, capture_logs() as logs:
        async with standby(tmp_path, answers) as (_, leading):
            await until(lambda: len(answers.asked) > 5)
            assert leader.poll() is None
            assert spared(logs, "it answers") == 1, "once for a state, not at each poll"
            answers.answer = False
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL
        assert answers.asked[0].rpc == "h:1"


async def test_a_leader_that_computes_in_its_recovery_is_spared(tmp_path: Path) -> None:
    with child(LEADER, str(tmp_path), "recovers") as leader, capture_logs() as logs:
        async with standby(tmp_path, Answers()) as (_, leading):
            await until(lambda: bool(spared(logs, "it is recovering jobs")))
            assert leader.poll() is None
            leader.send_signal(signal.SIGSTOP)
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL


async def test_a_leader_that_one_job_blocks_in_its_recovery_is_killed(tmp_path: Path) -> None:
    """It would compute for ever: its successors count such leaders, and do without the job."""
    blocked: list[int] = []
    found: list[int] = []  # a process that is starved on a busy machine does not look busy either, and is killed

    def is_blocked(pid: int) -> bool:
        found.extend(pid for each in blocked if each == pid)
        return pid in blocked

    with child(LEADER, str(tmp_path), "recovers") as leader, capture_logs() as logs:
        async with standby(tmp_path, Answers(), is_blocked=is_blocked) as (_, leading):
            await until(lambda: bool(spared(logs, "it is recovering jobs")))
            blocked.append(leader.pid)
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL
        assert found


async def test_a_leader_whose_store_does_not_answer_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled disk answers no write, neither the leader's nor the standby's: nobody could do better."""
    answering = asyncio.Event()

    class StalledWriter(writer.GroupWriter):
        async def write(self, write: writer.Write[T], size: int = 0) -> T:
            await answering.wait()
            return await super().write(write, size)

    monkeypatch.setattr(services, "GroupWriter", StalledWriter)
    monkeypatch.setattr(silent_leader_watch, "_PROOF_S", 0.2)
    with child(LEADER, str(tmp_path), "beats") as leader, capture_logs() as logs:
        leader.send_signal(signal.SIGSTOP)
        async with standby(tmp_path, Answers()) as (_, leading):
            await until(lambda: bool(spared(logs, "the store did not answer within 0.2 s")))
            assert not leading.done()
            assert leader.poll() is None
            answering.set()
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL


async def test_a_leader_that_stands_still_while_it_serves_is_killed_even_if_it_computes(tmp_path: Path) -> None:
    with child(LEADER, str(tmp_path), "computes") as leader:
        async with standby(tmp_path, Answers()) as (_, leading):
            assert await leading == 2
        assert leader.wait() == -signal.SIGKILL


def test_the_holder_of_the_write_lock_is_found(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (x)")
    assert write_lock_holder(path) is None
    with child(LOCKER, str(path)) as locker:
        assert write_lock_holder(path) == locker.pid
    assert write_lock_holder(path) is None
    connection.close()


def test_rewriting_the_header_is_a_write_that_is_committed(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA user_version=1")
    size = (tmp_path / f"{STORE_FILE}-wal").stat().st_size
    rewrite_header(connection)
    assert (tmp_path / f"{STORE_FILE}-wal").stat().st_size > size
    connection.close()


def test_cpu_time_grows_while_a_process_computes() -> None:
    with child("print('up', flush=True)\nwhile True: pass") as busy:
        first = cpu_time_s(busy.pid)
        assert first is not None
        while (cpu_time_s(busy.pid) or 0.0) <= first:
            pass
    assert cpu_time_s(2**22 + 1) is None

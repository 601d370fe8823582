from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import pytest

from flintlock.ha.embedded.election import LockFile
from flintlock.ha.embedded.services import embedded_ha
from flintlock.ha.embedded.silent_holder import HeartbeatRow, SilenceDetector, kill_holder

POLL_S = 0.5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def row(at_ms: int, pid: int = 7) -> HeartbeatRow:
    return HeartbeatRow(1, "session", pid, at_ms)


def silences(silence: SilenceDetector, rows: Iterable[HeartbeatRow | None]) -> list[bool]:
    found: list[bool] = []
    for number, polled in enumerate(rows):
        silence.observe(polled, number * POLL_S)
        found.append(silence.timed_out)
    return found


def test_a_heartbeat_that_stands_still_for_the_whole_timeout_is_a_silence() -> None:
    silence = SilenceDetector(timeout_s=2.0, poll_s=POLL_S)

    assert silences(silence, [row(1)] * 5) == [False, False, False, False, True]
    assert silence.row == row(1)


def test_every_new_heartbeat_resets_the_count() -> None:
    silence = SilenceDetector(timeout_s=1.0, poll_s=POLL_S)

    assert not any(silences(silence, [row(number // 2) for number in range(100)]))


def test_a_row_that_this_process_cannot_read_is_not_the_leaders_silence() -> None:
    silence = SilenceDetector(timeout_s=1.0, poll_s=POLL_S)

    assert not any(silences(silence, [row(1), *[None] * 100]))
    assert silences(silence, [row(1)]) == [False]


def test_a_holder_whose_heartbeat_was_never_read_is_never_silent() -> None:
    silence = SilenceDetector(timeout_s=1.0, poll_s=POLL_S)

    assert not any(silences(silence, [None] * 100))


def test_a_standby_that_slept_itself_gives_the_leader_time_to_wake_up() -> None:
    silence = SilenceDetector(timeout_s=2.0, poll_s=POLL_S)
    for polled, now_s in ((row(1), 0.0), (row(1), 3600.0), (row(2), 3600.5)):
        silence.observe(polled, now_s)
        assert not silence.timed_out


def test_a_leader_that_was_judged_is_silent_again_only_after_another_timeout() -> None:
    silence = SilenceDetector(timeout_s=1.0, poll_s=POLL_S)
    assert silences(silence, [row(1)] * 3)[-1]

    silence.restart()
    silence.observe(row(1), 1.5)

    assert not silence.timed_out


#: Takes the lock and waits; with a second argument it does so without the lock.
HOLDER = """
import pathlib, sys
from flintlock.ha.embedded.election import LockFile
lock = LockFile(pathlib.Path(sys.argv[1]))
assert len(sys.argv) > 2 or lock.take()
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


def test_a_stopped_holder_is_killed_and_its_lock_is_free(tmp_path: Path) -> None:
    with child(HOLDER, str(tmp_path / "lock")) as holder:
        holder.send_signal(signal.SIGSTOP)
        lock = LockFile(tmp_path / "lock")
        assert not lock.take()

        assert kill_holder(holder.pid, tmp_path / "lock") == "killed"

        assert holder.wait() == -signal.SIGKILL
        assert lock.take()
        lock.release()


def test_a_process_without_the_lock_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with child(HOLDER, str(tmp_path / "lock"), "without") as other:
        assert kill_holder(other.pid, tmp_path / "lock").startswith("left alone")

        assert other.poll() is None


def test_a_process_that_has_ended_is_no_error(tmp_path: Path) -> None:
    with child(HOLDER, str(tmp_path / "lock")) as holder:
        pass

    assert kill_holder(holder.pid, tmp_path / "lock").startswith("left alone")


#: Leads over a state directory until it is ended.
LEADER = """
import asyncio, pathlib, sys, time, uuid
from flintlock.ha.embedded.services import embedded_ha
async def main():
    clock = lambda: time.time_ns() // 1_000_000
    async with embedded_ha(pathlib.Path(sys.argv[1]), new_session=lambda: uuid.uuid4().hex, now_ms=clock,
                           heartbeat_s=0.05) as ha:
        async with await anext(ha.election.terms()):
            print("up", flush=True)
            await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.mark.anyio
async def test_the_standby_of_a_frozen_leader_kills_it_and_leads(tmp_path: Path) -> None:
    with child(LEADER, str(tmp_path)) as leader:
        leader.send_signal(signal.SIGSTOP)

        async with (
            asyncio.timeout(30),
            embedded_ha(
                tmp_path, new_session=lambda: "standby", now_ms=lambda: 1, heartbeat_s=0.05, silence_s=0.3
            ) as ha,
            await anext(ha.election.terms()) as token,
        ):
            assert token.epoch == 2
        assert leader.wait() == -signal.SIGKILL


@pytest.mark.anyio
async def test_the_standby_of_a_busy_leader_leaves_it_alone(tmp_path: Path) -> None:
    with child(LEADER, str(tmp_path)) as leader:
        async with embedded_ha(
            tmp_path, new_session=lambda: "standby", now_ms=lambda: 1, heartbeat_s=0.05, silence_s=1.0
        ) as ha:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await anext(ha.election.terms())

        assert leader.poll() is None


@pytest.mark.anyio
async def test_resigning_frees_the_lock_before_the_term_has_ended_and_for_good(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(30),
        embedded_ha(tmp_path, new_session=lambda: "a", now_ms=lambda: 1, heartbeat_s=60) as first,
        embedded_ha(tmp_path, new_session=lambda: "b", now_ms=lambda: 1) as second,
    ):
        terms = first.election.terms()
        async with await anext(terms) as old:
            first.election.resign()
            async with await anext(second.election.terms()) as new:
                assert new.epoch > old.epoch
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(terms)

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from msgspec import structs
from tests.contract.records import JOB_A, stored_job

from flintlock.ha.embedded import EmbeddedHaServices, embedded_ha
from flintlock.ha.file_election import LockFile
from flintlock.ha.silent_holder import SignOfLife, Silence, end_holder
from flintlock.model.ids import FencingToken

pytestmark = pytest.mark.anyio

SIGN = SignOfLife(pid=1, epoch=1, at_ms=1, touched_ns=1)

#: Leads and beats until it is ended.
LEADER = """
import asyncio, sys, time
from pathlib import Path
from flintlock.ha.embedded import embedded_ha
from flintlock.spark.processes import die_with_parent

async def main():
    ha = embedded_ha(
        Path(sys.argv[1]), new_session=lambda: "helper", now_ms=lambda: time.time_ns() // 10**6, heartbeat_s=0.02
    )
    async with ha as services:
        async with await anext(services.election.terms()):
            print("leads", flush=True)
            await asyncio.Event().wait()

die_with_parent(int(sys.argv[2]))
asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_silence_is_as_many_looks_without_a_change() -> None:
    silence = Silence(3)

    assert [silence.look(SIGN) for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("change", [{"at_ms": 2}, {"touched_ns": 2}, {"epoch": 2}, {"pid": 2}])
def test_each_sign_of_life_counts(change: dict[str, int]) -> None:
    silence = Silence(2)

    looks = [silence.look(sign) for sign in (SIGN, SIGN, structs.replace(SIGN, **change), SIGN, SIGN)]

    assert not any(looks)


def test_after_the_end_it_begins_anew_and_nobody_is_not_silent() -> None:
    silence = Silence(1)
    assert not silence.look(SIGN)
    assert silence.look(SIGN)

    assert not silence.look(SIGN)
    assert not silence.look(None)
    assert not silence.look(None)


def test_a_process_without_the_lock_is_left_alone(tmp_path: Path) -> None:
    LockFile(tmp_path / "lock").take()
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not end_holder(stranger.pid, tmp_path / "lock")
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")
    assert stranger.returncode == 0
    assert not end_holder(stranger.pid, tmp_path / "lock"), "it is gone"
    assert not end_holder(os.getpid(), tmp_path / "lock"), "nobody ends itself"


@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")
async def test_a_frozen_leader_is_ended_and_replaced_and_one_that_works_is_not(tmp_path: Path) -> None:
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEADER, str(tmp_path), str(os.getpid()), stdout=PIPE
    )
    try:
        assert leader.stdout is not None
        async with asyncio.timeout(60):
            assert await leader.stdout.readline() == b"leads\n"
        standby = embedded_ha(
            tmp_path, new_session=lambda: "standby", now_ms=lambda: 0, poll_s=0.05, heartbeat_s=0.02, silence_s=1.0
        )
        async with standby as services, asyncio.TaskGroup() as tasks:
            taking_over = tasks.create_task(_lead_and_write(services), name="standby")
            beats = {0}
            async with asyncio.timeout(60):
                while len(beats) < 100:  # as many as take twice the standby's patience
                    beats.add((tmp_path / "leader.lock").stat().st_mtime_ns)
                    await asyncio.sleep(0.005)
            assert not taking_over.done()
            assert leader.returncode is None

            leader.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(60):
                token = await taking_over
                assert await leader.wait() == -signal.SIGKILL

            assert token.epoch == 2
    finally:
        if leader.returncode is None:
            leader.kill()
        await leader.communicate()


async def _lead_and_write(services: EmbeddedHaServices) -> FencingToken:
    async with await anext(services.election.terms()) as token:
        await services.stores(token).graphs.put(stored_job())
        assert await services.stores(token).graphs.ids() == (JOB_A,)
        return token

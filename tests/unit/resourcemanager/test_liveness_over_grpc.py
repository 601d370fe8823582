"""The death of a real process, noticed over a real connection."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.ids import InstanceId, TaskManagerId
from flintlock.resourcemanager.core import TaskManagerEntered
from flintlock.resourcemanager.liveness import GRACE_S, Gone, watch_liveness
from flintlock.rpc.client import RpcChannels
from flintlock.testing.members import member_of
from flintlock.testing.samples import TOKEN

#: A process that serves a TaskManager's gateway, and says where.
PEER = """
import asyncio
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.rpc.server import RpcServer
from flintlock.testing.members import member_of
from flintlock.testing.fakes.fake_taskmanager import FakeTaskManager

async def main():
    async with RpcServer("127.0.0.1", 0, security=member_of()) as rpc:
        rpc.serve(TaskManagerGateway, FakeTaskManager())
        print(rpc.address, flush=True)
        await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@contextmanager
def peer() -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run one; yield it and its address."""
    process = subprocess.Popen([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


async def verdict_after(number: signal.Signals, limit_s: float) -> tuple[Gone | None, float]:
    """Watch the liveness of a peer, send it a signal, and return the verdict within a time, and after how long."""
    reachable: list[bool] = []
    with peer() as (process, address):
        async with RpcChannels(security=member_of()) as channels:
            task_manager = TaskManagerEntered(TaskManagerId("tm-1"), InstanceId("instance-1"), address)
            gateway = channels.connect(TaskManagerGateway, address, lambda: TOKEN, 3600.0)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(
                    watch_liveness(gateway, task_manager, is_silent=lambda: True, set_reachable=reachable.append),
                    name="liveness",
                )
                done, _ = await asyncio.wait({watching}, timeout=1.0)  # while it runs, the call does not return
                assert not done
                os.kill(process.pid, number)
                begun = time.monotonic()
                done, _ = await asyncio.wait({watching}, timeout=limit_s)
                watching.cancel()
                return watching.result() if done else None, time.monotonic() - begun


def test_a_killed_process_is_noticed_within_the_grace() -> None:
    gone, after_s = asyncio.run(verdict_after(signal.SIGKILL, 30))
    assert gone is not None
    assert gone.reason.startswith("nothing listens at 127.0.0.1:")
    assert not gone.returns
    assert GRACE_S <= after_s < 10  # on a machine that has nothing else to do, hardly more than the grace


def test_a_stopped_process_is_not_taken_for_dead() -> None:
    gone, _ = asyncio.run(verdict_after(signal.SIGSTOP, 3))
    assert gone is None

"""The end of a runner that has a control group."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from tests.unit.taskmanager.orders import attempt_id, order

from flintlock.host import cgroups
from flintlock.host.cgroups import Cgroups
from flintlock.model.tasks import TaskFailed
from flintlock.spark.runner.defaults import RunnerDefaults
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.spark.runner_messages import Exited

FILES = ("cgroup.procs", "cgroup.kill", "memory.max", "memory.oom.group")


class NoControl:
    """Ignores all commands."""

    def kill(self, number: int) -> None:
        """Do nothing."""

    def capture(self, number: int, path: str, limit: int, opened: tuple[int, ...] = ()) -> None:
        """Do nothing."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_group_that_is_slow_to_empty_delays_the_end_of_its_runner_and_not_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "EMPTY_S", 0.2)
    group = tmp_path / f"flintlock-{os.getpid()}-runner-1"
    group.mkdir()
    for file in FILES:
        (group / file).touch()
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (group / "memory.events").write_text("oom_kill 1\n")
    defaults = RunnerDefaults(
        scratch_dir=str(tmp_path / "scratch"), memory=1 << 30, cgroups=Cgroups(tmp_path, frozenset({"memory"}))
    )
    own, theirs = socket.socketpair()
    with theirs:
        streams = await asyncio.open_connection(sock=own)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            runner = ForkedRunner(1, defaults, streams, engine=None, tasks=tasks, control=NoControl())
            runner.on_started(4711)

            async def run() -> RunnerNews:
                return await anext(aiter(runner.run(order(attempt_id()), str(tmp_path / "log"), {})))

            news = tasks.create_task(run(), name="news")
            while not (group / "cgroup.procs").read_text():  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0)

            runner.on_exited(Exited(runner=1, code=-9))

            assert runner.alive, "its end was reported before its group was removed"
            assert (await runner.exited()).code == -9
            theirs.close()
            failed = await news
            assert isinstance(failed, TaskFailed)
            assert "memory" in failed.failure.message

"""Workers as local processes: what happens when they cannot start, end by themselves, or were left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.local_workers import local_workers
from flintlock.entrypoints.process import ProcessSettings
from flintlock.host.children import record_child
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch


def settings(state_dir: Path, **values: str) -> ProcessSettings:
    return ProcessSettings(state_dir=state_dir, configuration=Configuration(values))


def test_a_worker_that_ends_by_itself_is_reported_once_with_its_exit_code_and_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with local_workers(settings(tmp_path, nonsense="1"), Epoch(7)) as workers:
            first = await workers.start()
            second = await workers.start()
            assert "-worker-7-" in first
            ends = {(await workers.ended()).id, (await workers.ended()).id}
            assert ends == {first, second}
            third = await workers.start()
            ended = await workers.ended()
            assert ended.id == third
            log = tmp_path / "log" / "taskmanager-1000.log"
            assert ended.reason == f"its process has ended with exit code 2; its log is {log}"
            assert "unknown option" in log.read_text()
            await workers.release(third)  # it is gone: nothing happens

    asyncio.run(scenario())
    assert list((tmp_path / "run" / "workers").glob("*.child")) == []


def test_a_worker_that_cannot_be_started_is_a_clear_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "log").write_text("a file where a directory should be")
        async with local_workers(settings(tmp_path), Epoch(1)) as workers:
            with pytest.raises(Unavailable, match="no TaskManager process could be started: "):
                await workers.start()

    asyncio.run(scenario())


def test_workers_that_a_killed_job_manager_left_are_ended_first(tmp_path: Path) -> None:
    run_dir = tmp_path / "run" / "workers"
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record_child(run_dir, "worker-1000", left.pid)

        async def scenario() -> None:
            async with local_workers(settings(tmp_path), Epoch(2)):
                assert left.wait(10) == -9

        asyncio.run(scenario())
    finally:
        left.kill()
        left.communicate()


def test_no_worker_outlives_the_scope(tmp_path: Path) -> None:
    """Also when it is cancelled, and when a worker has only just been started."""

    async def scenario() -> None:
        begun = asyncio.Event()

        async def term() -> None:
            async with local_workers(settings(tmp_path), Epoch(1)) as workers:
                await workers.start()
                begun.set()
                await workers.start()
                await asyncio.get_running_loop().create_future()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(term(), name="term")
            await begun.wait()
            assert len(list((tmp_path / "run" / "workers").glob("*.child"))) >= 1
            task.cancel()

    asyncio.run(scenario())
    assert list((tmp_path / "run" / "workers").glob("*.child")) == []

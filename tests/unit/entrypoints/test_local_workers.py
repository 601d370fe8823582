"""Workers as local processes: what happens when they cannot start, end by themselves, or were left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings, write_json
from flintlock.entrypoints.workers.local_workers import WorkerFile, local_workers
from flintlock.gateways.workers import WorkerEnded
from flintlock.host.processes.pid_files import identity
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, TaskManagerId
from flintlock.security.cluster_secret import ClusterSecret


def settings(state_dir: Path, **values: str) -> ProcessSettings:
    return ProcessSettings(state_dir=state_dir, configuration=Configuration(values), secret=ClusterSecret(b"s" * 32))


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
    assert records(tmp_path) == {}


def test_a_worker_that_cannot_be_started_is_a_clear_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "log").write_text("a file where a directory should be")
        async with local_workers(settings(tmp_path), Epoch(1)) as workers:
            with pytest.raises(Unavailable, match="no TaskManager process could be started: "):
                await workers.start()

    asyncio.run(scenario())


def test_workers_outlive_their_leader_and_are_taken_over_by_the_next_one(tmp_path: Path) -> None:
    """Also when its term is cancelled, and when a worker has only just been started."""

    async def first() -> TaskManagerId:
        started: asyncio.Future[TaskManagerId] = asyncio.get_running_loop().create_future()

        async def term() -> None:
            async with local_workers(settings(tmp_path), Epoch(1)) as workers:
                assert await workers.taken_over() == ()
                started.set_result(await workers.start())
                await asyncio.get_running_loop().create_future()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(term(), name="term")
            name = await started
            task.cancel()
        return name

    async def second(name: TaskManagerId) -> None:
        async with local_workers(settings(tmp_path), Epoch(2)) as workers:
            assert await workers.taken_over() == (name,)
            other = await workers.start()
            assert len({*records(tmp_path)}) == 2
            await workers.release(name)
            await workers.release(other)

    name = asyncio.run(first())
    (record,) = records(tmp_path).values()
    worker = psutil.Process(record.pid)
    assert worker.is_running()
    assert record.id == name
    asyncio.run(second(name))

    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert records(tmp_path) == {}


def test_all_workers_end_when_the_cluster_shuts_down_and_no_more_is_started(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with local_workers(settings(tmp_path), Epoch(1)) as workers:
            await workers.start()
            await workers.start()
            processes = [psutil.Process(record.pid) for record in records(tmp_path).values()]
            await workers.release_all()
            assert len(processes) == 2
            assert not any(process.is_running() for process in processes)
            with pytest.raises(Unavailable, match="the cluster is shutting down"):
                await workers.start()

    asyncio.run(scenario())
    assert records(tmp_path) == {}


def test_worker_that_was_taken_over_and_ends_is_reported(tmp_path: Path) -> None:
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = identity(left.pid)
        file = WorkerFile(pid=found.pid, start_time=found.start_time, id="worker-1", index=1003)
        write_json(tmp_path / "run" / "workers" / "worker-1003.json", file)

        async def scenario() -> None:
            async with local_workers(settings(tmp_path), Epoch(2)) as workers:
                assert await workers.taken_over() == ("worker-1",)
                left.kill()
                log = tmp_path / "log" / "taskmanager-1003.log"
                assert await workers.ended() == WorkerEnded(
                    TaskManagerId("worker-1"), f"its process has ended; its log is {log}"
                )

        asyncio.run(scenario())
        assert records(tmp_path) == {}
    finally:
        left.kill()
        left.communicate()


def test_records_of_processes_that_have_ended_or_are_others_are_removed(tmp_path: Path) -> None:
    """A pid that is used again by another process is never signalled."""
    run_dir = tmp_path / "run" / "workers"
    other = identity(os.getpid())
    wrong = WorkerFile(pid=other.pid, start_time=other.start_time - 100, id="worker-1", index=1000)
    write_json(run_dir / "worker-1000.json", wrong)
    (run_dir / "worker-1001.json").write_text("{")

    async def scenario() -> None:
        async with local_workers(settings(tmp_path), Epoch(2)) as workers:
            assert await workers.taken_over() == ()

    asyncio.run(scenario())
    assert records(tmp_path) == {}


def records(state_dir: Path) -> dict[str, WorkerFile]:
    paths = (state_dir / "run" / "workers").glob("worker-*.json")
    return {path.name: msgspec.json.decode(path.read_bytes(), type=WorkerFile) for path in paths}

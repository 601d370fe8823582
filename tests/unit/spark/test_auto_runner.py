"""A program that asks for a driver begins again in a second process, unless its attempt ends in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import cast

import pytest

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import Unavailable
from flintlock.model.ids import AttemptId, JobId, RegionId
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.regions import Region
from flintlock.model.tasks import DeployTask, Failure, FailureKind, TaskFailed, TaskFinished, TaskRunning
from flintlock.spark.runner.auto_runner import AutoRunner
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.testing.virtual_time import virtual_time

JOB = JobId("ab" * 16)
TASK = DeployTask(
    attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=0),
    graph=JobGraph(job_id=JOB, name="program", engine=EngineKind.AUTO),
    region=Region(id=RegionId(0), steps=()),
    slots=(0,),
)
NEEDS_DRIVER = TaskFailed(failure=Failure(kind=FailureKind.USER_CODE, message="sparkContext needs a driver"))


class Process:
    """A process of a runner, which reports what the test says."""

    def __init__(self, *news: RunnerNews, needs_driver: bool = False) -> None:
        self.needs_driver = needs_driver
        self.session: SparkSessionKey | None = None
        self.pid: int | None = 7
        self.engines: list[EngineKind] = []
        self.killed = False
        self._news = news

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[RunnerNews]:
        del log_path, artifacts
        self.engines.append(task.graph.engine)
        for news in self._news:
            yield news

    async def command(self, command: TaskCommand) -> TaskAnswer:
        del command
        if self.killed:
            raise Unavailable("the process has ended")
        return CommandAccepted()

    async def kill(self) -> None:
        self.killed = True


def auto_runner(shared: Process, take_dedicated: Callable[[], Awaitable[Process]]) -> AutoRunner:
    take = cast("Callable[[], Awaitable[ForkedRunner]]", take_dedicated)
    return AutoRunner(cast("ForkedRunner", shared), take)


async def news_of(runner: AutoRunner) -> list[RunnerNews]:
    return [news async for news in runner.run(TASK, "log", {})]


@virtual_time
async def test_program_that_needs_a_driver_begins_again_with_one() -> None:
    shared = Process(TaskRunning(), NEEDS_DRIVER, needs_driver=True)
    dedicated = Process(TaskRunning(), TaskFinished())

    async def take() -> Process:
        assert shared.killed, "never two processes at once"
        return dedicated

    assert await news_of(auto_runner(shared, take)) == [TaskRunning(), TaskFinished()]
    assert (shared.engines, dedicated.engines) == ([EngineKind.AUTO], [EngineKind.DEDICATED])


@pytest.mark.parametrize("end", ["cancel", "kill"])
@virtual_time
async def test_attempt_that_is_ended_between_its_processes_does_not_begin_again(end: str) -> None:
    shared = Process(TaskRunning(), NEEDS_DRIVER, needs_driver=True)
    dedicated = Process(TaskRunning(), TaskFinished())

    async def take() -> Process:
        if end == "kill":
            await runner.kill()
        else:
            with pytest.raises(Unavailable):
                await runner.command(CancelTask(attempt=TASK.attempt))
        return dedicated

    runner = auto_runner(shared, take)
    assert await news_of(runner) == [TaskRunning(), NEEDS_DRIVER]
    assert (dedicated.engines, dedicated.killed) == ([], True)


@virtual_time
async def test_failure_of_another_kind_is_final() -> None:
    shared = Process(TaskRunning(), NEEDS_DRIVER)

    async def take() -> Process:
        raise AssertionError("no second process is needed")

    assert await news_of(auto_runner(shared, take)) == [TaskRunning(), NEEDS_DRIVER]

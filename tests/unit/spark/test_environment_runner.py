"""A task in a Python environment: one process builds it and stays, a second one runs the task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import cast

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.ids import AttemptId, JobId, RegionId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.regions import Region
from flintlock.model.tasks import DeployTask, Failure, FailureKind, TaskFailed, TaskFinished, TaskRunning
from flintlock.spark.runner.environment_runner import EnvironmentRunner
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.spark.runner_messages import EnvironmentBuilt
from flintlock.testing.virtual_time import virtual_time

JOB = JobId("ab" * 16)
TASK = DeployTask(
    attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=0),
    graph=JobGraph(job_id=JOB, name="j"),
    region=Region(id=RegionId(0), steps=()),
    slots=(0,),
)
FAILED = TaskFailed(failure=Failure(kind=FailureKind.CONFIGURATION, message="pip says no"))
SESSION = SparkSessionKey(user_id="u", session_id="s")


class Process:
    """A process of a runner, which reports what the test says."""

    def __init__(self, *news: RunnerNews | EnvironmentBuilt, session: SparkSessionKey | None = None) -> None:
        self.session = session
        self.pid: int | None = 7
        self.killed = False
        self.commands: list[TaskCommand] = []
        self._news = news

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[object]:
        del task, log_path, artifacts
        for news in self._news:
            yield news

    build_environment = run

    async def command(self, command: TaskCommand) -> TaskAnswer:
        self.commands.append(command)
        return CommandAccepted()

    async def kill(self) -> None:
        self.killed = True


def runner_of(builder: Process, take: Callable[[str], Awaitable[Process]]) -> EnvironmentRunner:
    return EnvironmentRunner(cast("ForkedRunner", builder), cast("Callable[[str], Awaitable[ForkedRunner]]", take))


@virtual_time
async def test_the_task_runs_in_the_environment_while_the_process_that_has_it_open_stays() -> None:
    builder, worker = (
        Process(TaskRunning(), EnvironmentBuilt(python="/env/bin/python")),
        Process(TaskRunning(), TaskFinished(), session=SESSION),
    )
    taken: list[str] = []

    async def take(python: str) -> Process:
        taken.append(python)
        return worker

    runner = runner_of(builder, take)
    assert [news async for news in runner.run(TASK, "log", {})] == [TaskRunning(), TaskFinished()]
    assert taken == ["/env/bin/python"]
    assert runner.session == SESSION
    assert not builder.killed
    await runner.kill()
    assert builder.killed
    assert worker.killed


@virtual_time
async def test_an_environment_that_cannot_be_built_is_the_tasks_failure() -> None:
    async def take(python: str) -> Process:
        raise AssertionError(python)

    runner = runner_of(Process(TaskRunning(), FAILED), take)
    assert [news async for news in runner.run(TASK, "log", {})] == [TaskRunning(), FAILED]


@virtual_time
async def test_a_cancel_between_the_two_processes_ends_the_second() -> None:
    worker = Process(TaskFinished())

    async def take(python: str) -> Process:
        del python
        await runner.command(CancelTask(attempt=TASK.attempt))
        return worker

    builder = Process(TaskRunning(), EnvironmentBuilt(python="/env/bin/python"))
    runner = runner_of(builder, take)
    *_, last = [news async for news in runner.run(TASK, "log", {})]
    assert isinstance(last, TaskFailed)
    assert last.failure.exception == "Interrupted"
    assert worker.killed
    assert builder.commands == [CancelTask(attempt=TASK.attempt)]

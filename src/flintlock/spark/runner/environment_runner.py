"""A runner for a task whose job has a Python environment of its own: one process builds it, a second runs the task.

The first is forked from the cluster's template, so that pip runs as user code does: as the same user, within the limits
of the task, with its output in the task's log. It stays until the task has ended: while it lives, the environment is in
use. The second is forked from a template that the environment's own Python runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.commands import CancelTask, TaskAnswer, TaskCommand
from flintlock.model.tasks import DeployTask, Failure, FailureKind, TaskFailed, TaskRunning
from flintlock.spark.runner.auto_runner import AutoRunner
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.spark.runner_messages import EnvironmentBuilt

_CANCELLED: Final = Failure(kind=FailureKind.USER_CODE, message="the task was cancelled", exception="Interrupted")


class EnvironmentRunner:
    """Two processes for a task, one after the other. Satisfies `gateways.engine.TaskRunner`."""

    def __init__(self, builder: ForkedRunner, take: Callable[[str], Awaitable[ForkedRunner | AutoRunner]]) -> None:
        self._builder: Final = builder
        self._take: Final = take  # returns a runner that this Python runs
        self._current: ForkedRunner | AutoRunner = builder  # replaced once, by run
        self._ending = False  # whether it was cancelled or killed

    @property
    def session(self) -> SparkSessionKey | None:
        """The session of the second process."""
        return self._current.session

    @property
    def pid(self) -> int | None:
        """The process that works at the moment."""
        return self._current.pid

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[RunnerNews]:
        """Have the environment built, then run the task in it; the last item is TaskFinished or TaskFailed."""
        python = ""
        async for news in self._builder.build_environment(task, log_path, artifacts):
            if isinstance(news, EnvironmentBuilt):
                python = news.python
            else:
                yield news
        if not python:
            return
        self._current = await self._take(python)
        if self._ending:
            await self._current.kill()
            yield TaskFailed(failure=_CANCELLED)
            return
        async for later in self._current.run(task, log_path, artifacts):
            if not isinstance(later, TaskRunning):
                yield later

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Pass a command to the process that works at the moment."""
        if isinstance(command, CancelTask):
            self._ending = True
        return await self._current.command(command)

    async def kill(self) -> None:
        """Kill both, with all that they started, and return once they are gone."""
        self._ending = True
        await self._current.kill()
        await self._builder.kill()

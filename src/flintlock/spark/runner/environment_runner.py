"""A runner for a task whose job has a Python environment of its own: one process builds it, a second runs the task.

The first is forked from the cluster's template, so that pip runs as user code does: as the same user, within the limits
of the task, with its output in the task's log. It stays until the task has ended: while it lives, the environment is in
use. The second is forked from a template that the environment's own Python runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.tasks import DeployTask, Failure, FailureKind, TaskFailed
from flintlock.spark.runner.auto_runner import AutoRunner
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.spark.runner.process_sequence import ProcessSequence
from flintlock.spark.runner_messages import EnvironmentBuilt

_CANCELLED: Final = TaskFailed(
    failure=Failure(kind=FailureKind.USER_CODE, message="the task was cancelled", exception="Interrupted")
)


class EnvironmentRunner(ProcessSequence):
    """Two processes for a task, one after the other. Satisfies `gateways.engine.TaskRunner`."""

    def __init__(self, builder: ForkedRunner, take: Callable[[str], Awaitable[ForkedRunner | AutoRunner]]) -> None:
        super().__init__(builder)
        self._take: Final = take  # returns a runner that this Python runs

    @property
    def session(self) -> SparkSessionKey | None:
        """The session of the second process."""
        return self._current.session

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[RunnerNews]:
        """Have the environment built, then run the task in it; the last item is TaskFinished or TaskFailed."""
        python = ""
        async for news in self._first.build_environment(task, log_path, artifacts):
            if isinstance(news, EnvironmentBuilt):
                python = news.python
            else:
                yield news
        if not python:
            return
        async for later in self._continue_in(await self._take(python), task, log_path, artifacts, ended=_CANCELLED):
            yield later

"""A runner that is one process after another, within one attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from flintlock.gateways.engine import TaskRunner
from flintlock.model.commands import CancelTask, TaskAnswer, TaskCommand
from flintlock.model.tasks import DeployTask, TaskFailed, TaskRunning
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews


class ProcessSequence:
    """Two processes for a task, of which the second may never be needed. What it does with them is its subclass's."""

    def __init__(self, first: ForkedRunner) -> None:
        self._first: Final = first
        self._current: TaskRunner = first  # replaced once, by _continue_in
        self._ending = False  # whether it was cancelled or killed

    @property
    def pid(self) -> int | None:
        """The process that works at the moment."""
        return self._current.pid

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Pass a command to the process that works at the moment."""
        if isinstance(command, CancelTask):
            self._ending = True
        return await self._current.command(command)

    async def kill(self) -> None:
        """Kill both, with all that they started, and return once they are gone: the second may depend on the first."""
        self._ending = True
        await self._current.kill()
        await self._first.kill()

    async def _continue_in(
        self, second: TaskRunner, task: DeployTask, log_path: str, artifacts: Mapping[str, str], *, ended: TaskFailed
    ) -> AsyncIterator[RunnerNews]:
        """Run the task in the second process; if it was cancelled or killed meanwhile, the outcome is `ended`."""
        self._current = second
        if self._ending:
            await second.kill()
            yield ended
            return
        async for news in second.run(task, log_path, artifacts):
            if not isinstance(news, TaskRunning):  # the first has reported it
                yield news

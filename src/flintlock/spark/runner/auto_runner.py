"""A runner for a program whose engine is chosen as it runs: the shared one, until the program asks for a driver.

The program begins again then, in a new process with a dedicated driver, within the same attempt. The process of the
shared engine decides whether that is possible: once the program has changed something, it fails instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from msgspec import structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.commands import CancelTask, TaskAnswer, TaskCommand
from flintlock.model.jobgraph import EngineKind
from flintlock.model.tasks import DeployTask, TaskFailed, TaskRunning
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews


class AutoRunner:
    """One process for a program, or two, one after the other. Satisfies `gateways.engine.TaskRunner`."""

    def __init__(self, shared: ForkedRunner, take_dedicated: Callable[[], Awaitable[ForkedRunner]]) -> None:
        self._shared: Final = shared
        self._take_dedicated: Final = take_dedicated
        self._current = shared  # replaced once, by run
        self._ending = False  # whether it was cancelled or killed

    @property
    def session(self) -> SparkSessionKey | None:
        """The session on the shared engine: a dedicated driver ends with its runner."""
        return self._shared.session

    @property
    def pid(self) -> int | None:
        """The process that runs at the moment."""
        return self._current.pid

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[RunnerNews]:
        """Run the program, twice if needed; the last item is TaskFinished or TaskFailed."""
        async for news in self._shared.run(task, log_path, artifacts):
            if not isinstance(news, TaskFailed) or not self._shared.needs_driver or self._ending:
                yield news
                continue
            await self._shared.kill()
            again = structs.replace(task, graph=structs.replace(task.graph, engine=EngineKind.DEDICATED))
            self._current = await self._take_dedicated()
            if self._ending:
                await self._current.kill()
                yield news
                return
            async for later in self._current.run(again, log_path, artifacts):
                if not isinstance(later, TaskRunning):
                    yield later
            return

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Pass a command to the process that runs at the moment."""
        if isinstance(command, CancelTask):
            self._ending = True
        return await self._current.command(command)

    async def kill(self) -> None:
        """Kill it, with all that it started, and return once it is gone."""
        self._ending = True
        await self._shared.kill()
        await self._current.kill()

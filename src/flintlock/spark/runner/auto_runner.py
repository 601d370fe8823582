"""A runner for a program whose engine is chosen as it runs: the shared one, until the program asks for a driver.

The program begins again then, in a new process with a dedicated driver, within the same attempt. The process of the
shared engine decides whether that is possible: once the program has changed something, it fails instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from msgspec import structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.model.jobgraph import EngineKind
from flintlock.model.tasks import DeployTask, TaskFailed
from flintlock.spark.runner.handle import ForkedRunner, RunnerNews
from flintlock.spark.runner.process_sequence import ProcessSequence


class AutoRunner(ProcessSequence):
    """One process for a program, or two, one after the other. Satisfies `gateways.engine.TaskRunner`."""

    def __init__(self, shared: ForkedRunner, take_dedicated: Callable[[], Awaitable[ForkedRunner]]) -> None:
        super().__init__(shared)
        self._take_dedicated: Final = take_dedicated

    @property
    def session(self) -> SparkSessionKey | None:
        """The session on the shared engine: a dedicated driver ends with its runner."""
        return self._first.session

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[RunnerNews]:
        """Run the program, twice if needed; the last item is TaskFinished or TaskFailed."""
        async for news in self._first.run(task, log_path, artifacts):
            if not isinstance(news, TaskFailed) or not self._first.needs_driver or self._ending:
                yield news
                continue
            await self._first.kill()
            again = structs.replace(task, graph=structs.replace(task.graph, engine=EngineKind.DEDICATED))
            async for later in self._continue_in(await self._take_dedicated(), again, log_path, artifacts, ended=news):
                yield later
            return

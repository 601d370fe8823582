"""Two queries on one checkpoint: what Spark does then was seen to lose and to double rows. Here one waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.cluster.runner_harness import RunnerHarness, contents, running_harness, spark_engine
from tests.cluster.test_streaming import Pipeline

from flintlock.model.commands import CancelTask
from flintlock.model.streaming.streams import Trigger
from flintlock.model.tasks import DeployTask, TaskFailed, TaskProgress

WAITING = "waiting for the end of another query of files-v1"


class Attempt:
    """One attempt at the query, followed while it runs."""

    def __init__(self, b: RunnerHarness, task: DeployTask) -> None:
        self.b = b
        self.task = task
        self.news: list[Any] = []
        self._runner: Any = None

    async def run(self) -> None:
        """Run it to its end, and end what Spark does for it."""
        self._runner = await self.b.pool.take_process(self.task)
        log = str(self.b.log_of(self.task))
        async for item in self._runner.run(self.task, log, contents(self.task.graph)):
            self.news.append(item)
        await self.b.end(self._runner)

    async def cancel(self) -> None:
        """Cancel it."""
        await self._runner.command(CancelTask(attempt=self.task.attempt))

    def waits(self) -> bool:
        """Whether the latest that it did is to wait."""
        activities = [item.activity for item in self.news if isinstance(item, TaskProgress) and item.activity]
        return bool(activities) and activities[-1] == WAITING

    def ended(self) -> bool:
        """Whether it has failed by itself."""
        return bool(self.failures())

    def failures(self) -> list[str]:
        """With what it has failed."""
        return [item.failure.message for item in self.news if isinstance(item, TaskFailed)]


def test_of_two_queries_on_one_checkpoint_one_waits_for_the_end_of_the_other_and_continues(b: RunnerHarness) -> None:
    """Which of the two goes on is Spark's choice. Neither fails, and every row is there once."""
    _one_waits(b, b)


def test_so_do_two_in_different_engines(b: RunnerHarness, tmp_path: Path) -> None:
    """A predecessor that its TaskManager could not end is in another JVM: only the files say that it is alive."""
    with spark_engine(b.loop, tmp_path) as engine, running_harness(b.loop, engine, tmp_path, warm=1) as other:
        _one_waits(b, other)


def _one_waits(b: RunnerHarness, other: RunnerHarness) -> None:
    pipeline = Pipeline(b)
    first, second = (Attempt(each, pipeline.task(Trigger())) for each in (b, other))

    async def use() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first.run())
            pipeline.arrive(2)
            await b.until(lambda: pipeline.batches() >= 2, 120)
            tasks.create_task(second.run())

            def one_waits() -> bool:
                if pipeline.batches() >= len([*pipeline.input.glob("*.json")]):
                    pipeline.arrive(1)  # the one that goes on needs a batch, to find the other one
                return first.waits() or second.waits() or first.ended() or second.ended()

            await b.until(one_waits, 120)
            assert first.failures() == []
            assert second.failures() == []
            working, waiting = (second, first) if first.waits() else (first, second)
            await working.cancel()
            await b.until(working.ended, 120)
            pipeline.arrive(3)
            arrived = len([*pipeline.input.glob("*.json")])
            await b.until(lambda: pipeline.batches() >= arrived, 120)
            assert waiting.failures() == []
            await waiting.cancel()

    b.loop.run(use(), 600)

    assert pipeline.rows() == list(range(len([*Path(pipeline.input).glob("*.json")])))

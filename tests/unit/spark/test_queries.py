"""Queries to one runner: each call gets its own answer or a clear error, and a runner is never flooded."""

from __future__ import annotations

import asyncio

import pytest

from flintlock.model.commands import CommandAccepted, PingTask
from flintlock.model.errors import Unavailable
from flintlock.model.ids import AttemptId, JobId, RegionId
from flintlock.spark.runner.queries import ANSWER_S, MAX_UNANSWERED, RunnerQueries
from flintlock.spark.runner_messages import CommandAnswered, CommandTask
from flintlock.testing.virtual_time import virtual_time

PING = PingTask(attempt=AttemptId(job_id=JobId("a" * 32), region=RegionId(0), attempt=0))


class Runner:
    """What was sent to a runner, and the queries to it."""

    def __init__(self, *, running: bool = True) -> None:
        self.sent: list[CommandTask] = []
        self.queries = RunnerQueries(self.sent.append)
        if running:
            self.queries.open()

    async def ask(self) -> asyncio.Task[object]:
        """Send a query, and return the call."""
        call = asyncio.get_running_loop().create_task(self.queries.ask(PING), name="ask")
        await asyncio.sleep(0)
        return call

    def answer(self, sent: int, problem: str = "") -> None:
        """Answer what was sent at that place."""
        answer = None if problem else CommandAccepted()
        self.queries.receive(CommandAnswered(number=self.sent[sent].number, answer=answer, problem=problem))


@virtual_time
async def test_each_call_gets_the_answer_to_its_own_query() -> None:
    runner = Runner()
    first, second = await runner.ask(), await runner.ask()

    runner.answer(1)
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, True)

    runner.answer(0)
    assert await first == CommandAccepted()


@virtual_time
async def test_a_runner_that_cannot_answer_says_why() -> None:
    runner = Runner()
    call = await runner.ask()

    runner.answer(0, problem="MemoryError: no room")

    with pytest.raises(Unavailable, match="could not answer: MemoryError: no room"):
        await call


@virtual_time
async def test_a_query_without_an_answer_times_out_and_a_late_answer_is_dropped() -> None:
    runner = Runner()
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="did not answer within 5 s"):
        await runner.queries.ask(PING)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(ANSWER_S)

    second = await runner.ask()
    runner.answer(0)  # too late, and not the second's
    await asyncio.sleep(0)
    assert not second.done()

    runner.answer(1)
    assert await second == CommandAccepted()


@virtual_time
async def test_a_runner_that_answers_nothing_is_sent_a_limited_number_of_queries() -> None:
    runner = Runner()
    for _ in range(MAX_UNANSWERED):
        with pytest.raises(Unavailable, match="did not answer"):
            await runner.queries.ask(PING)

    with pytest.raises(Unavailable, match="busy: it has not answered the last 8 queries"):
        await runner.queries.ask(PING)
    assert len(runner.sent) == MAX_UNANSWERED

    runner.answer(0)
    await runner.ask()
    assert len(runner.sent) == MAX_UNANSWERED + 1


@virtual_time
async def test_the_end_of_a_task_ends_its_queries_with_the_first_reason() -> None:
    runner = Runner()
    call = await runner.ask()

    runner.queries.close("the runner has ended its task")
    runner.queries.close("something later")

    with pytest.raises(Unavailable, match="has ended its task"):
        await call
    with pytest.raises(Unavailable, match="has ended its task"):
        await runner.queries.ask(PING)
    runner.answer(0)  # no caller waits


@virtual_time
async def test_a_caller_that_disconnects_leaves_nothing_that_fails_later() -> None:
    runner = Runner()
    call = await runner.ask()
    call.cancel()
    await asyncio.wait({call})

    runner.answer(0)
    runner.queries.close("over")


@virtual_time
async def test_a_runner_without_a_running_task_is_sent_nothing() -> None:
    runner = Runner(running=False)
    with pytest.raises(Unavailable, match="not started its task"):
        await runner.queries.ask(PING)
    assert runner.sent == []


@virtual_time
async def test_an_answer_to_nothing_is_dropped() -> None:
    Runner().queries.receive(CommandAnswered(number=77, answer=CommandAccepted()))

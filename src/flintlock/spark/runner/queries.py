"""The queries that one runner has not answered yet.

Queries and answers share the runner's socket with everything else and are matched by a number. A runner that does not
answer in time is given up by its caller, not by this side: its query stays counted until the answer arrives, which is
then dropped. So a runner that answers nothing (it is stopped, or native code does not release the interpreter) is sent
a limited number of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from flintlock.model.commands import TaskAnswer, TaskQuery
from flintlock.model.errors import Unavailable
from flintlock.spark.runner_messages import CommandAnswered, CommandTask

#: How long a runner may take to answer.
ANSWER_S: Final = 5.0
#: How many queries a runner may leave unanswered before it is sent no more.
MAX_UNANSWERED: Final = 8


class RunnerQueries:
    """Sends queries while they are `open`, and hands each answer to the call that waits for it."""

    def __init__(self, send: Callable[[CommandTask], None]) -> None:
        self._send: Final = send
        self._numbers: Final = count(1)
        self._refusal: str | None = "the runner has not started its task yet"  # None while it is open
        #: Removed by the answer, or by `close`. A future that is done has no caller any more.
        self._unanswered: Final[dict[int, asyncio.Future[CommandAnswered]]] = {}

    def open(self) -> None:
        """Accept queries: the runner reads while its task runs."""
        self._refusal = None

    def close(self, why: str) -> None:
        """Accept none any more, and end those that wait. Idempotent: the first reason counts."""
        if self._refusal is None:
            self._refusal = why
        for waiting in self._unanswered.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(why))
        self._unanswered.clear()

    async def ask(self, query: TaskQuery) -> TaskAnswer:
        """Send a query and return its answer. Raises Unavailable if there is none, and why."""
        if self._refusal is not None:
            raise Unavailable(self._refusal)
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise Unavailable(f"the runner is busy: it has not answered the last {len(self._unanswered)} queries")
        number = next(self._numbers)
        waiting = self._unanswered[number] = asyncio.get_running_loop().create_future()
        self._send(CommandTask(command=query, number=number))
        try:
            async with asyncio.timeout(ANSWER_S):
                answered = await waiting
        except TimeoutError:
            raise Unavailable(
                f"the runner did not answer within {ANSWER_S:g} s: "
                "it is stopped, or native code does not let Python run"
            ) from None
        if answered.answer is None:
            raise Unavailable(f"the runner could not answer: {answered.problem}")
        return answered.answer

    def receive(self, answered: CommandAnswered) -> None:
        """Hand an answer to its caller. One that comes too late, or that answers nothing, is dropped."""
        waiting = self._unanswered.pop(answered.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answered)

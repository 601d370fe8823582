"""How a runner's process answers queries about its task. Called in a thread of its own, while user code runs."""

from __future__ import annotations

from collections.abc import Callable

from flintlock.host.processes.thread_dump import thread_stacks
from flintlock.model.commands import (
    CommandAccepted,
    DrainTask,
    DumpThreads,
    PingTask,
    TaskAnswer,
    TaskQuery,
    ThreadsDumped,
)


def answer(query: TaskQuery, drain: Callable[[], None]) -> TaskAnswer:
    """Return the answer. What it raises is the answer, too: a text for the client. `drain` asks the task to end."""
    match query:
        case PingTask():
            return CommandAccepted()
        case DumpThreads():
            return ThreadsDumped(threads=thread_stacks())
        case DrainTask():
            drain()
            return CommandAccepted()

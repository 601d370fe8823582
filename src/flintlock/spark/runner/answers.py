"""How a runner's process answers queries about its task. Called in a thread of its own, while user code runs."""

from __future__ import annotations

from flintlock.model.commands import CommandAccepted, PingTask, TaskAnswer, TaskQuery


def answer(query: TaskQuery) -> TaskAnswer:
    """Return the answer. What it raises is the answer, too: a text for the client."""
    match query:
        case PingTask():
            return CommandAccepted()

"""Repeats what reads and writes files of savepoints: a full disk, or storage that is out of reach, passes.

However long it takes, the job waits, and shows for what: what comes of giving up is a job that has failed though
nothing was wrong with it, or, in an upgrade, two jobs of which none runs. Only an error of single files (one that is
missing, no permission, a bad sector) is given up after a while: it does not pass by itself.

A mount may also answer nothing at all. The thread that waits for it is left behind then: what it does later is what a
leader does that was replaced, and harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from flintlock.host.files.file_errors import concerns_one_file
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Unavailable
from flintlock.model.streaming.savepoints import FileGone

T = TypeVar("T")

#: How often something is tried that fails because of single files.
TRIES: Final = 30

_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=10.0)
_POLL_S: Final = 0.5  # how often is looked, in between, whether it is still to be tried
_ANSWER_S: Final = 30.0  # a try that takes longer is shown: most take less than a second


async def wait_for_storage(
    action: Callable[[], Awaitable[T]],
    *,
    is_over: Callable[[], bool],
    show: Callable[[str], None],
    tries: int = 1,
    patience_s: float = 0.0,
) -> T:
    """Return what an action returns that may be repeated. Raises its last Unavailable, and all that it raises else.

    `is_over`: whether there is no reason any more to try it again; so many `tries` are made all the same, and a try
    that has taken longer than `patience_s` is abandoned. `show` is called with what is waited for, and with "" when
    nothing is.
    """
    failures_of_files, wait = 0, _Wait(show)
    try:
        for number, pause_s in enumerate(_BACKOFF.delays(), 1):
            try:
                return await _answer(action, wait, is_over, patience_s)
            except _NoAnswer:
                raise
            except Unavailable as error:
                failures_of_files += not _passes(error)
                if (number >= tries and is_over()) or failures_of_files >= TRIES:
                    raise
                wait.failed(error)
            await _sleep(pause_s, is_over if number >= tries else lambda: False)
    finally:
        show("")
    raise AssertionError("the backoff never ends")


class _NoAnswer(Unavailable):
    """A try was abandoned: there is no reason any more to wait for it."""


class _Wait:
    """What is shown of one wait: one text for each reason, though the paths in it differ from try to try."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show: Final = show
        self._reason: object = None  # of the last failure; None while there is none

    def failed(self, error: Unavailable) -> None:
        """Show why a try has failed, unless the one before has failed for the same reason."""
        cause = error.__cause__
        reason = error.public if cause is None else (type(cause), cause.errno if isinstance(cause, OSError) else None)
        if reason != self._reason:
            self._reason = reason
            self._show(f"storage: {error.public}")

    def unanswered(self) -> None:
        """Show that a try takes long, unless it is known what the storage lacks."""
        if self._reason is None:
            self._show(f"storage: no answer for more than {_ANSWER_S:g} s")


async def _answer(action: Callable[[], Awaitable[T]], wait: _Wait, is_over: Callable[[], bool], patience_s: float) -> T:
    """Return what one try returns. Raises _NoAnswer if it has none when it is over."""
    began_s = asyncio.get_running_loop().time()
    values: list[T] = []
    errors: list[Exception] = []

    async def attempt() -> None:
        try:
            values.append(await action())
        except Exception as error:  # noqa: BLE001 - raised below, where no group is made of it
            errors.append(error)

    async with asyncio.TaskGroup() as tasks:
        trying = tasks.create_task(attempt(), name="storage")
        while not (await asyncio.wait((trying,), timeout=_POLL_S))[0]:
            taken_s = asyncio.get_running_loop().time() - began_s
            if taken_s >= patience_s and is_over():
                trying.cancel()
                break
            if taken_s >= _ANSWER_S:
                wait.unanswered()
    for error in errors:
        raise error
    for value in values:
        return value
    raise _NoAnswer("the storage does not answer")


async def _sleep(pause_s: float, is_over: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + pause_s
    while not is_over() and (left_s := until_s - loop.time()) > 0:  # noqa: ASYNC110 (a cancel has no event)
        await asyncio.sleep(min(left_s, _POLL_S))


def _passes(error: Unavailable) -> bool:
    """Return whether an error goes away when there is room, or when the storage can be reached again."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return not isinstance(cause, FileNotFoundError) and not concerns_one_file(cause)
    # Of a checkpoint that nothing writes to any more: a file that is missing, or has not the form that Spark writes.
    return not isinstance(cause, FileGone | ValueError)

"""Blocking work in threads that no exit waits for. Standard library only.

A call into a file system that hangs never returns, and its thread cannot be ended. The event loop's own executor is
joined when the loop closes and when the interpreter exits: work that may hang runs in a thread of its own instead,
whose caller may give it up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(work: Callable[[], T], *, name: str) -> T:
    """Return what `work` returned, or raise what it raised. If the caller is cancelled, the thread goes on alone."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def succeed(value: T) -> None:
        if not outcome.done():
            outcome.set_result(value)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def run() -> None:
        with suppress(RuntimeError):  # the loop is closed: the caller has given up
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome

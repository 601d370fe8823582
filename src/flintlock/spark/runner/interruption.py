"""How a task is interrupted: Spark's work is stopped from another thread, user code by an exception in its own.

The exception is raised by SIGINT, as by Ctrl-C: the signal wakes the main thread from any wait, and a program that
handles SIGINT in its own way continues to do so. It is a KeyboardInterrupt, so `except Exception` does not swallow it,
and PySpark's client handles it as an interrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from flintlock.spark.region.failures import Interrupted


class Interruption:
    """Interrupts one task; armed while user code runs."""

    def __init__(self) -> None:
        self._armed = False  # the main thread runs user code, or waits for Spark
        self._requested = False
        self._main: Final = threading.main_thread()

    @contextmanager
    def armed(self) -> Generator[None]:
        """Within, an interrupt raises Interrupted in the main thread; immediately if it was requested before."""
        signal.signal(signal.SIGINT, self._raise)
        self._armed = True
        try:
            if self._requested:
                self._raise()
            yield
        finally:
            self._armed = False

    @property
    def requested(self) -> bool:
        """Whether an interrupt was requested."""
        return self._requested

    def request(self, stop_spark: Callable[[], None]) -> None:
        """Interrupt, now or as soon as there is something to interrupt. Called from the receiving thread."""
        self._requested = True
        threading.Thread(target=_quietly, args=(stop_spark,), name="flintlock-interrupt", daemon=True).start()
        if self._armed and self._main.ident is not None:
            signal.pthread_kill(self._main.ident, signal.SIGINT)

    def _raise(self, *_: object) -> None:
        if self._armed:
            raise Interrupted("the task is cancelled")


def _quietly(act: Callable[[], None]) -> None:
    with suppress(Exception):  # an engine that does not answer: the runner is killed in time
        act()

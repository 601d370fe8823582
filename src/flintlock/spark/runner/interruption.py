"""How a task is interrupted: Spark's work is stopped from another thread, user code by an exception in its own.

The exception is raised by SIGINT, as by Ctrl-C: the signal wakes the main thread from any wait, and a program that
handles SIGINT in its own way continues to do so. It is a KeyboardInterrupt, so `except Exception` does not swallow it,
and PySpark's client handles it as an interrupt.

The signal is sent once: a second one would interrupt a program that cleans up. But the exception is lost where Python
ignores exceptions, in a finalizer for instance, and Spark's work may begin just after it was stopped. So that work is
stopped again and again until the task ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from flintlock.spark.region.errors.failures import Interrupted

_STOP_AGAIN_S: Final = 1.0


class Interruption:
    """Interrupts one task; armed while user code runs."""

    def __init__(self) -> None:
        self._armed = False  # the main thread runs user code, or waits for Spark
        self._requested = False
        self._over: Final = threading.Event()  # set when the main thread has left user code for good
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
            self._over.set()

    @property
    def requested(self) -> bool:
        """Whether an interrupt was requested."""
        return self._requested

    def request(self, stop_spark: Callable[[], None]) -> None:
        """Interrupt, now or as soon as there is something to interrupt. Called from the receiving thread."""
        self._requested = True
        threading.Thread(target=self._stop, args=(stop_spark,), name="flintlock-interrupt", daemon=True).start()
        if self._armed and self._main.ident is not None:
            signal.pthread_kill(self._main.ident, signal.SIGINT)

    def _stop(self, stop_spark: Callable[[], None]) -> None:
        while True:
            with suppress(Exception):  # an engine that does not answer: the runner is killed in time
                stop_spark()
            if self._over.wait(_STOP_AGAIN_S):
                return

    def _raise(self, *_: object) -> None:
        if self._armed:
            raise Interrupted("the task is cancelled")

"""Blocking work in threads that no exit waits for. Standard library only.

A call into a file system that hangs never returns, and its thread cannot be ended. The threads of `concurrent.futures`
and those of `asyncio.to_thread` are joined when the interpreter exits: work that may hang runs here instead, so that
its caller may give it up and the process may end.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

_Item: TypeAlias = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """A pool of at most `size` threads, which are started when they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size: Final = size
        self._name: Final = name
        self._items: Final[queue.SimpleQueue[_Item | None]] = queue.SimpleQueue()
        self._threads: Final[list[threading.Thread]] = []
        self._lock: Final = threading.Lock()  # of what follows
        self._unfinished = 0  # items that are queued or running
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have the work done; return its future. Raises RuntimeError once closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads are closed")
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._size:
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
            self._items.put((future, work))
        return future

    def close(self, timeout_s: float) -> bool:
        """Accept no more work and finish what was submitted, waiting no longer than that; return whether it is done."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._items.put(None)
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    value = work()
                except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                    future.set_exception(error)
                else:
                    future.set_result(value)
            with self._lock:
                self._unfinished -= 1


async def run_in_daemon_thread(work: Callable[[], T], *, name: str) -> T:
    """Return what `work` returned, or raise what it raised. If the caller is cancelled, the thread goes on alone."""
    threads = DaemonThreads(1, name)
    future = threads.submit(work)
    threads.close(0.0)  # it ends when the work is done
    return await asyncio.wrap_future(future)

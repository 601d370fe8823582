"""Virtual time: an event loop whose clock advances when every task waits.

The idea: a program that only awaits timers, locks and queues never needs a real second to pass. When nothing is ready
to run, the loop moves its clock to the next timer and goes on; an hour of heartbeats takes milliseconds, and two runs
of the same program take the same steps in the same order. When nothing is ready and no timer is set either, nothing can
ever happen again: that is a `Deadlock`, raised with the list of tasks and where each waits.

Why runs can be repeated: there are no sockets, threads, signals or processes (a request for one is an error that says
so); timers of the same instant fire in the order in which they were set; tasks hash by their number, because asyncio
keeps them in sets (`TaskGroup`, `asyncio.wait`) and would cancel siblings in the order of their addresses. The loop
cannot order sets of strings: fix `PYTHONHASHSEED` where a run has to be repeated in another process.

The loop also measures the CPU time of each step (`longest_step_s`): on a real loop nothing else would run meanwhile.

Rejected: patching `time` (C code does not see it); a selector that advances the clock of asyncio's own loop (its turns
cost half as much again, and its heap compares timers in Python and loses the order of equal ones).
"""

# ruff: noqa: D102 - the methods of a loop are asyncio's, and documented there

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import sys
import threading
from asyncio import AbstractEventLoop, Future, Handle, Task, TimerHandle
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from time import perf_counter, thread_time
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, cast
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")

VIRTUAL_EPOCH_MS: Final = 1_767_225_600_000
"""What virtual wall clocks show at loop time 0: 2026-01-01T00:00:00Z."""

_PROCESSOR_TIME_EVERY_S: Final = 0.005
MAX_TURNS_WITHOUT_TIME: Final = 1_000_000
"""Turns of the loop at one instant, after which the program counts as stuck."""


class Deadlock(Exception):
    """Every task waits and no timer is set: nothing can ever happen again."""


class Livelock(Exception):
    """Tasks keep running without the clock ever moving."""


class NotVirtual(RuntimeError):
    """Something was requested that exists outside virtual time: a thread, a socket, a process, a signal."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a new virtual clock that starts at 0, and return its result.

    Tasks still running when it ends are cancelled. Raises what `main` raises, `Deadlock`, or `Livelock`.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("a loop is running in this thread already")
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make an async test function a plain function that pytest can call, each time on a new virtual clock."""

    @functools.wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return on_virtual_time


def now_ms() -> int:
    """Return the running loop's time as wall-clock milliseconds, counted from `VIRTUAL_EPOCH_MS`."""
    return VIRTUAL_EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


OWNER: Final[ContextVar[object | None]] = ContextVar("owner", default=None)
"""The owner of the running code. `VirtualTimeLoop.freeze` stops all code of one owner."""


class _OrderedTask(Task[T]):
    """A task that hashes by its number in its loop."""

    def __init__(self, coro: Coroutine[Any, Any, T], serial: int, **kwargs: Any) -> None:
        self._serial = serial  # before the rest: asyncio puts the new task into a set
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._serial


class _Callback:
    """Something to run; asyncio calls this a Handle, and asks no more of one than `cancel` and `cancelled`."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class _Timer(_Callback):
    """A callback that waits for its time."""

    __slots__ = ("_loop", "_when")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        when: float,
        loop: VirtualTimeLoop,
    ) -> None:
        super().__init__(callback, args, context)
        self._when = when
        self._loop = loop

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        if self.callback is not None:
            super().cancel()
            self._loop.timer_cancelled()


class VirtualTimeLoop(AbstractEventLoop):
    """The loop. Everything that asyncio offers without leaving the process works on it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._ready: deque[_Callback] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap: by time, then by order of setting
        self._timer_serials = itertools.count()
        self._task_serials = itertools.count()  # each loop counts from 0, or a run would depend on earlier ones
        self._cancelled_timers = 0  # since the heap was last swept, at least
        self._frozen: dict[object, deque[_Callback]] = {}  # by owner: callbacks that wait for `thaw`
        self._stopping = False
        self._running_in: int | None = None  # thread id, while running
        self._closed = False
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._on_exception: Callable[[AbstractEventLoop, dict[str, Any]], object] | None = None
        # Processor time of this thread, too long by `_PROCESSOR_TIME_EVERY_S` at most: a real loop would stand still.
        self.longest_step_s = 0.0
        self.longest_step = ""

    # Time and callbacks

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:
        handle = _Callback(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return cast("Handle", handle)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        timer = _Timer(callback, args, copy_context() if context is None else context, when, self)
        heappush(self._timers, (when, next(self._timer_serials), timer))
        return cast("TimerHandle", timer)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        # Ctrl-C comes this way too, in the loop's own thread.
        if self._running_in not in (None, threading.get_ident()):
            raise NotVirtual("another thread called into virtual time: the time of its call cannot be repeated")
        return self.call_soon(callback, *args, context=context)

    def timer_cancelled(self) -> None:
        """Count a cancelled timer; sweep the heap when most of it is cancelled (calls that met their deadlines)."""
        self._cancelled_timers += 1
        if self._cancelled_timers > 1000 and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2].callback is not None]
            heapify(self._timers)
            self._cancelled_timers = 0

    def freeze(self, owner: object) -> None:
        """Run nothing of this owner until `thaw`, as SIGSTOP does. Time passes all the same. Idempotent."""
        self._frozen.setdefault(owner, deque())

    def thaw(self, owner: object) -> None:
        """Let an owner continue: all callbacks that became due in the meantime are due now, in order. Idempotent."""
        self._ready.extend(self._frozen.pop(owner, ()))

    def create_future(self) -> Future[Any]:
        return Future(loop=self)

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **kwargs: Any) -> Task[T]:
        return _OrderedTask(cast("Coroutine[Any, Any, T]", coro), next(self._task_serials), loop=self, **kwargs)

    # Running

    def run_forever(self) -> None:
        """Run until stopped. An exception from a callback ends the run: none is swallowed."""
        if self._closed:
            raise RuntimeError("this loop is closed")
        self._running_in = threading.get_ident()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finish_generator)
        asyncio._set_running_loop(self)
        try:
            self._run()
        finally:
            self._stopping = False
            self._running_in = None
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run(self) -> None:
        ready, timers = self._ready, self._timers
        turns = 0  # since the clock last moved
        step_ended_s = read_s = perf_counter()
        processor_s = thread_time()  # read every few milliseconds only: to read it takes longer than most steps
        while not self._stopping:
            turns += 1
            if turns > MAX_TURNS_WITHOUT_TIME:
                raise Livelock(
                    f"{turns} turns without time passing, at {self._now_s} s; {self._describe_waiting_tasks()}"
                )
            if not ready:
                while timers and timers[0][2].callback is None:
                    heappop(timers)
                if not timers:
                    raise Deadlock(f"every task waits and no timer is set: {self._describe_waiting_tasks()}")
                if timers[0][0] > self._now_s:
                    self._now_s = timers[0][0]
                    turns = 0
            while timers and timers[0][0] <= self._now_s:
                ready.append(heappop(timers)[2])
            # Only what is ready now: callbacks that these make ready run in the next turn, as in asyncio.
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle.callback is None:
                    continue
                if self._frozen and (waiting := self._frozen.get(handle.context.get(OWNER))) is not None:
                    waiting.append(handle)
                else:
                    step_begun_s = step_ended_s
                    handle.context.run(handle.callback, *handle.args)
                    step_ended_s = perf_counter()
                    if step_ended_s - read_s > _PROCESSOR_TIME_EVERY_S:
                        before_s, processor_s, read_s = processor_s, thread_time(), step_ended_s
                        self._measured(handle, min(step_ended_s - step_begun_s, processor_s - before_s))

    def _measured(self, handle: _Callback, took_s: float) -> None:
        if took_s > self.longest_step_s:
            self.longest_step_s, self.longest_step = took_s, repr(handle.callback)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        task = future if isinstance(future, Future) else self.create_task(cast("Coroutine[Any, Any, T]", future))
        task.add_done_callback(self._stop_after)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._stop_after)
        return task.result()

    def _stop_after(self, _: Future[Any]) -> None:
        self._stopping = True

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running_in is not None

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # Asynchronous generators that were not run to their end

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._closed:
            self.create_task(generator.aclose(), name="close an abandoned generator")

    async def shutdown_asyncgens(self) -> None:
        for generator in list(self._generators):
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's
        """There is none."""

    # Errors and debugging

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Debug mode reads the real clock: it is never on here."""

    def get_exception_handler(self) -> Callable[[AbstractEventLoop, dict[str, Any]], object] | None:
        return self._on_exception

    def set_exception_handler(self, handler: Callable[[AbstractEventLoop, dict[str, Any]], object] | None) -> None:
        self._on_exception = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        logging.getLogger("asyncio").error(context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._on_exception is None:
            self.default_exception_handler(context)
        else:
            self._on_exception(self, context)

    def _describe_waiting_tasks(self) -> str:
        return "; ".join(_where(task) for task in sorted(asyncio.all_tasks(self), key=hash))

    # Outside virtual time

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:
        name = getattr(func, "__qualname__", repr(func))
        raise NotVirtual(f"no threads under virtual time: {name} would end at a time that cannot be repeated")


def _where(task: Task[Any]) -> str:
    """Return where `task` is suspended: follow its awaits down to the last frame written in Python."""
    place = "its start"
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None)
    return f"{task.get_name()} in {place}"


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotVirtual(f"loop.{name} does not exist under virtual time: nothing here reaches outside the process")

    return refuse


for _name in vars(AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(VirtualTimeLoop):
        setattr(VirtualTimeLoop, _name, _refuse(_name))

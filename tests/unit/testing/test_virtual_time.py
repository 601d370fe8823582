"""Time leaps, order repeats, and the real world is kept out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintlock.testing import virtual_time as module
from flintlock.testing.virtual_time import (
    VIRTUAL_EPOCH_MS,
    Deadlock,
    Livelock,
    NotVirtual,
    VirtualTimeLoop,
    now_ms,
    run_virtual,
    virtual_time,
)


def now_s() -> float:
    return asyncio.get_running_loop().time()


# Time


def test_days_pass_in_no_time() -> None:
    started = time.monotonic()

    async def main() -> float:
        for _ in range(30):
            await asyncio.sleep(86_400)
        return now_s()

    assert run_virtual(main()) == 30 * 86_400
    assert time.monotonic() - started < 5


@virtual_time
async def test_clock_starts_at_zero_and_moves_only_while_all_wait() -> None:
    assert now_s() == 0.0
    for _ in range(100):
        await asyncio.sleep(0)
    assert now_s() == 0.0
    await asyncio.sleep(1.5)
    assert now_s() == 1.5


@virtual_time
async def test_wall_clock_follows_the_loop() -> None:
    assert now_ms() == VIRTUAL_EPOCH_MS
    await asyncio.sleep(61.25)
    assert now_ms() == VIRTUAL_EPOCH_MS + 61_250


@virtual_time
async def test_timeout_cuts_a_wait_short() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await asyncio.Event().wait()
    assert now_s() == 3
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(100), 5)
    assert now_s() == 8


@virtual_time
async def test_timeout_that_is_not_needed_leaves_no_trace() -> None:
    for _ in range(3000):
        async with asyncio.timeout(1000):
            await asyncio.sleep(0.001)
    assert now_s() == pytest.approx(3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout_at(now_s() - 1):
            await asyncio.Event().wait()


@virtual_time
async def test_task_group_cancels_its_tasks_and_reports_the_culprit() -> None:
    ended: list[str] = []

    async def patient(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(name)

    async def culprit() -> None:
        await asyncio.sleep(7)
        raise LookupError("here")

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(patient("a"))
            tasks.create_task(culprit())
            tasks.create_task(patient("b"))

    with pytest.raises(ExceptionGroup) as caught:
        await group()

    assert [str(error) for error in caught.value.exceptions] == ["here"]
    assert sorted(ended) == ["a", "b"]
    assert now_s() == 7


@virtual_time
async def test_queues_locks_and_events_work() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
    lock = asyncio.Lock()
    seen: list[int] = []

    async def produce() -> None:
        for n in range(5):
            async with lock:
                await queue.put(n)
            await asyncio.sleep(1)

    async def consume() -> None:
        while len(seen) < 5:
            seen.append(await queue.get())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(produce())
        tasks.create_task(consume())

    assert seen == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, 20), max_size=40))
def test_timers_fire_by_time_then_in_the_order_of_setting(delays_s: list[int]) -> None:
    fired: list[tuple[int, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for place, delay_s in enumerate(delays_s):
            loop.call_later(delay_s, fired.append, (delay_s, place))
        await asyncio.sleep(21)

    run_virtual(main())

    assert fired == sorted(fired)
    assert len(fired) == len(delays_s)


@pytest.mark.parametrize("count", [0, 1, 1500, 2500, 3000])
def test_cancelled_timers_never_fire_and_the_others_all_do(count: int) -> None:
    cancelled = set(Random(count).sample(range(3000), count))
    fired: set[int] = set()
    due_s = [Random(n).randint(1, 9) for n in range(3000)]

    def fire(n: int) -> None:
        assert now_s() == due_s[n]
        fired.add(n)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(due_s[n], fire, n) for n in range(3000)]
        await asyncio.sleep(0.5)
        for n in cancelled:
            timers[n].cancel()
            timers[n].cancel()
            assert timers[n].cancelled()
        await asyncio.sleep(10)

    run_virtual(main())

    assert fired == set(range(3000)) - cancelled


# Order


def _scenario() -> list[str]:
    """Twenty siblings wait, one fails: the order in which asyncio cancels them comes from a set of tasks."""
    events: list[str] = []

    async def sibling(n: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append(f"cancelled {n}")

    async def failing() -> None:
        await asyncio.sleep(1)
        raise LookupError

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(20):
                tasks.create_task(sibling(n))
            tasks.create_task(failing())

    with pytest.raises(ExceptionGroup):
        run_virtual(main())
    return events


def test_order_is_the_same_in_every_run_whatever_ran_before() -> None:
    first = _scenario()
    assert len(first) == 20

    ballast: list[object] = []
    for n in range(20):
        ballast.append([object() for _ in range(97 * n)])
        run_virtual(asyncio.sleep(n))
        assert _scenario() == first


# Being stuck


def test_deadlock_says_who_waits_where() -> None:
    async def waits_for_an_event() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(waits_for_an_event(), name="listener-1")

    with pytest.raises(Deadlock, match=r"listener-1 in Event\.wait \(locks\.py:\d+\)"):
        run_virtual(main())


def test_livelock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TURNS_WITHOUT_TIME", 1000)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - spinning is the subject
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="1001 turns"):
        run_virtual(main())


def test_tasks_left_over_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("left over")

    async def main() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(left_over())
        await asyncio.sleep(1)
        return task

    assert run_virtual(main()).cancelled()
    assert ended == ["left over"]


def test_exception_in_a_callback_ends_the_run() -> None:
    def fail() -> None:
        raise LookupError

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, fail)
        await asyncio.sleep(10)

    with pytest.raises(LookupError):
        run_virtual(main())


@virtual_time
async def test_abandoned_generators_are_closed() -> None:
    closed: list[int] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed.append(1)

    async for _ in numbers():
        break
    await asyncio.sleep(2)

    assert closed == [1]


def test_loop_serves_run_after_run_and_nests_no_runs() -> None:
    async def main() -> float:
        await asyncio.sleep(1)
        nested = asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            run_virtual(nested)
        nested.close()
        return now_s()

    assert [run_virtual(main()) for _ in range(3)] == [1.0, 1.0, 1.0]


# The real world


@virtual_time
async def test_threads_are_refused() -> None:
    with pytest.raises(NotVirtual, match="no threads under virtual time"):
        await asyncio.to_thread(time.monotonic)
    with pytest.raises(NotVirtual):
        await asyncio.get_running_loop().run_in_executor(None, time.monotonic)


@virtual_time
async def test_sockets_processes_and_signals_are_refused() -> None:
    with pytest.raises(NotVirtual, match="create_connection"):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(NotVirtual, match="subprocess_exec"):
        await asyncio.create_subprocess_exec("true")
    with pytest.raises(NotVirtual, match="add_signal_handler"):
        asyncio.get_running_loop().add_signal_handler(10, print)


def test_other_threads_cannot_call_in() -> None:
    caught: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except NotVirtual as error:
                caught.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    run_virtual(main())

    assert len(caught) == 1


# The decorator


@pytest.mark.parametrize("number", [1, 2])
@virtual_time
async def test_decorated_tests_take_fixtures_and_parameters(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name, the docstring and the signature are those of the test."""
    monkeypatch.setenv("NUMBER", str(number))
    await asyncio.sleep(number)
    assert now_s() == number


def test_decorated_function_returns_what_the_coroutine_returns() -> None:
    @virtual_time
    async def double(n: int) -> int:
        await asyncio.sleep(n)
        return 2 * n

    assert double(21) == 42
    assert double.__name__ == "double"


@virtual_time
async def test_longest_step_is_measured_in_cpu_time() -> None:
    """Virtual time does not pass in a step, and waiting is free; a computation is not."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    await asyncio.sleep(3600)
    assert loop.longest_step_s < 0.2
    end_s = time.thread_time() + 0.25
    while time.thread_time() < end_s:
        pass
    await asyncio.sleep(0)
    assert loop.longest_step_s >= 0.25
    assert loop.longest_step

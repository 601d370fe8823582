"""What the simulated network adds to the contract of transports: faults, death, and repeatable chance."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.testing.simulation.network import Link, SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import Deadlock, run_virtual, virtual_time


class Entry(Struct, frozen=True):
    line: str


class LedgerGateway(Protocol):
    async def write(self, message: Entry) -> Entry: ...

    async def write_slowly(self, message: Entry) -> None: ...


class Ledger:
    """Keeps every line, and the time at which it came."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.times_s: list[float] = []

    async def write(self, message: Entry) -> Entry:
        self.lines.append(message.line)
        self.times_s.append(now_s())
        return message

    async def write_slowly(self, message: Entry) -> None:
        await asyncio.sleep(5)
        self.lines.append(message.line)


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Pair:
    """A writer, and a keeper who serves a ledger."""

    def __init__(self, seed: int = 1, link: Link | None = None) -> None:
        self.network = SimulatedNetwork(Random(seed), link)
        self.ledger = Ledger()
        self.writer = self.network.process("writer")
        self.keeper = self.network.process("keeper")
        self.keeper.serve(LedgerGateway, self.ledger)
        self.remote = self.writer.connect(LedgerGateway, "keeper", timeout_s=10)


async def unavailable(call: Coroutine[Any, Any, object]) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await call
    return caught.value


# Travelling


@virtual_time
async def test_delays_are_drawn_between_the_bounds() -> None:
    pair = Pair(link=Link(min_delay_s=1, max_delay_s=3))

    durations_s: list[float] = []
    for n in range(50):
        started = now_s()
        await pair.remote.write(Entry(str(n)))
        durations_s.append(now_s() - started)

    assert all(2 <= duration_s <= 6 for duration_s in durations_s)
    assert max(durations_s) - min(durations_s) > 1


@virtual_time
async def test_late_message_is_passed_by_younger_ones() -> None:
    pair = Pair(link=Link(late=0.3, max_late_s=5))

    await asyncio.gather(*(pair.remote.write(Entry(f"{n:02}")) for n in range(40)), return_exceptions=True)

    assert sorted(pair.ledger.lines) == [f"{n:02}" for n in range(40)]
    assert pair.ledger.lines != sorted(pair.ledger.lines)
    assert pair.ledger.times_s[-1] > 1


@virtual_time
async def test_lost_message_costs_the_deadline() -> None:
    pair = Pair(link=Link(loss=1.0))

    error = await unavailable(pair.remote.write(Entry("a")))

    assert not error.unreachable
    assert now_s() == 10
    assert not pair.ledger.lines


@virtual_time
async def test_lost_answer_looks_the_same_though_the_call_was_carried_out() -> None:
    pair = Pair()
    pair.network.set_link("keeper", "writer", Link(loss=1.0))

    await unavailable(pair.remote.write(Entry("a")))

    assert pair.ledger.lines == ["a"]
    pair.network.set_link("keeper", "writer", None)
    await pair.remote.write(Entry("b"))


@virtual_time
async def test_duplicated_request_is_carried_out_twice_and_answered_once() -> None:
    pair = Pair(link=Link(duplication=1.0))

    assert await pair.remote.write(Entry("a")) == Entry("a")
    await asyncio.sleep(1)

    assert pair.ledger.lines == ["a", "a"]


@virtual_time
async def test_cut_is_silent_in_both_directions_until_healed() -> None:
    pair = Pair()
    pair.network.cut("writer", ["keeper", "other"])

    assert not (await unavailable(pair.remote.write(Entry("a")))).unreachable
    assert not (await unavailable(pair.remote.write(Entry("b")))).unreachable
    assert not pair.ledger.lines

    pair.network.heal("keeper", "writer")
    await pair.remote.write(Entry("c"))
    assert pair.ledger.lines == ["c"]


@virtual_time
async def test_one_way_cut_lets_requests_through_and_no_answers() -> None:
    pair = Pair()
    pair.network.cut("keeper", "writer", one_way=True)

    await unavailable(pair.remote.write(Entry("a")))

    assert pair.ledger.lines == ["a"]
    pair.network.heal()
    await pair.remote.write(Entry("b"))


@virtual_time
async def test_cut_takes_what_is_under_way() -> None:
    pair = Pair(link=Link(min_delay_s=1, max_delay_s=1))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(unavailable(pair.remote.write(Entry("a"))))
        await asyncio.sleep(0.5)
        pair.network.cut("writer", "keeper")
        await asyncio.sleep(1)
        pair.network.heal()

    assert now_s() == 10
    assert not pair.ledger.lines


@virtual_time
async def test_observer_sees_each_message_as_it_leaves() -> None:
    seen: list[tuple[str, str, str]] = []

    def observe(sender: str, receiver: str, what: str) -> None:
        seen.append((sender, receiver, what))

    network = SimulatedNetwork(Random(1), observer=observe)
    network.process("keeper").serve(LedgerGateway, Ledger())

    await network.process("writer").connect(LedgerGateway, "keeper").write(Entry("a"))

    assert seen == [("writer", "keeper", "LedgerGateway/write"), ("keeper", "writer", "answer")]


# Dying


@virtual_time
async def test_dead_process_refuses_and_its_successor_answers() -> None:
    pair = Pair()
    with pytest.raises(ValueError, match="keeper is still alive"):
        pair.network.process("keeper")

    pair.keeper.crash()
    pair.keeper.crash()
    assert (await unavailable(pair.remote.write(Entry("a")))).unreachable
    assert now_s() < 0.1

    heir = pair.network.process("keeper")
    assert (await unavailable(pair.remote.write(Entry("a")))).unreachable, "it does not listen yet"
    heir.serve(LedgerGateway, pair.ledger)
    await pair.remote.write(Entry("b"))
    assert pair.ledger.lines == ["b"]
    assert heir.alive
    assert not pair.keeper.alive


@virtual_time
async def test_refused_connections_break_calls_and_let_the_other_direction_pass() -> None:
    pair = Pair()
    async with asyncio.TaskGroup() as tasks:
        error = tasks.create_task(unavailable(pair.remote.write_slowly(Entry("a"))))
        await asyncio.sleep(1)
        pair.network.refuse("writer", "keeper")
    assert not error.result().unreachable
    assert (await unavailable(pair.remote.write(Entry("b")))).unreachable
    await pair.network.process("other").connect(LedgerGateway, "keeper").write(Entry("c"))

    pair.network.accept("writer", "keeper")
    await pair.remote.write(Entry("d"))


@virtual_time
async def test_dead_host_is_silent() -> None:
    pair = Pair()
    pair.keeper.crash(host_too=True)

    error = await unavailable(pair.remote.write(Entry("a")))

    assert not error.unreachable
    assert now_s() == 10


@virtual_time
async def test_crash_breaks_the_calls_it_was_working_on() -> None:
    pair = Pair()

    async with asyncio.TaskGroup() as tasks:
        error = tasks.create_task(unavailable(pair.remote.write_slowly(Entry("a"))))
        await asyncio.sleep(1)
        pair.keeper.crash()

    assert not error.result().unreachable
    assert now_s() < 1.1
    await asyncio.sleep(10)
    assert not pair.ledger.lines


@virtual_time
async def test_host_that_dies_leaves_its_callers_waiting() -> None:
    pair = Pair()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(unavailable(pair.remote.write_slowly(Entry("a"))))
        await asyncio.sleep(1)
        pair.keeper.crash(host_too=True)

    assert now_s() == 10


class Diary:
    """A program that writes a line a second, and tries to write a last one when it ends."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self.remote = process.connect(LedgerGateway, "keeper")
        self.memory: list[str] = []

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.every_second())
                await asyncio.Event().wait()
        finally:
            self.memory.append("parent ends")
            await self.remote.write(Entry("last line of the parent"))
            self.memory.append("unreached")

    async def every_second(self) -> None:
        try:
            for n in range(100):
                await self.remote.write(Entry(str(n)))
                await asyncio.sleep(1)
        finally:
            self.memory.append("child ends")
            await self.remote.write(Entry("last line of the child"))
            self.memory.append("unreached")


@virtual_time
async def test_crash_ends_the_tasks_and_their_last_lines_are_not_delivered() -> None:
    pair = Pair()
    diary = Diary(pair.writer)
    task = pair.writer.spawn(diary.run(), "diary")
    assert task.get_name() == "writer/diary"
    await asyncio.sleep(2.5)

    pair.writer.crash()
    await asyncio.sleep(100)

    assert task.cancelled()
    assert diary.memory == ["child ends", "parent ends"]
    assert pair.ledger.lines == ["0", "1", "2"]


@virtual_time
async def test_stop_lets_the_tasks_write_their_last_lines() -> None:
    pair = Pair()
    pair.writer.spawn(Diary(pair.writer).run(), "diary")
    await asyncio.sleep(2.5)

    await pair.writer.stop()

    assert pair.ledger.lines[-2:] == ["last line of the child", "last line of the parent"]
    assert not pair.writer.alive


@virtual_time
async def test_dead_process_starts_nothing_and_sends_nothing() -> None:
    pair = Pair()
    pair.writer.crash()

    with pytest.raises(asyncio.CancelledError):
        pair.writer.spawn(asyncio.sleep(1), "late")
    with pytest.raises(asyncio.CancelledError):
        pair.writer.serve(LedgerGateway, Ledger())
    with pytest.raises(asyncio.CancelledError, match="writer is dead"):
        await pair.remote.write(Entry("a"))
    with pytest.raises(asyncio.CancelledError):
        pair.writer.require_alive()
    assert not pair.ledger.lines


@virtual_time
async def test_answer_to_a_dead_caller_is_not_received_even_by_its_successor() -> None:
    pair = Pair(link=Link(min_delay_s=1, max_delay_s=1))
    received: list[object] = []

    async def program() -> None:
        received.append(await pair.remote.write(Entry("a")))

    pair.writer.spawn(program(), "program")
    await asyncio.sleep(1.5)
    assert pair.ledger.lines == ["a"]

    pair.writer.crash()
    pair.network.process("writer")
    await asyncio.sleep(20)

    assert not received


@virtual_time
async def test_request_of_a_process_that_died_since_still_arrives() -> None:
    pair = Pair(link=Link(min_delay_s=1, max_delay_s=1))
    pair.writer.spawn(pair.remote.write(Entry("a")), "program")
    await asyncio.sleep(0.5)

    pair.writer.crash()
    await asyncio.sleep(1)

    assert pair.ledger.lines == ["a"]


@virtual_time
async def test_task_may_crash_its_own_process_and_get_no_further() -> None:
    pair = Pair()
    steps: list[str] = []

    async def program() -> None:
        steps.append("before")
        pair.writer.crash()
        await pair.remote.write(Entry("after"))
        steps.append("after")

    task = pair.writer.spawn(program(), "program")
    await asyncio.wait([task])

    assert steps == ["before"]
    assert not pair.ledger.lines


@virtual_time
async def test_exception_that_leaves_a_task_ends_the_process() -> None:
    pair = Pair()

    async def program() -> None:
        await asyncio.sleep(1)
        raise LookupError("bug")

    pair.writer.spawn(program(), "program")
    bystander = pair.writer.spawn(asyncio.sleep(100), "bystander")
    await asyncio.sleep(2)

    assert not pair.writer.alive
    assert isinstance(pair.writer.failure, LookupError)
    assert bystander.cancelled()
    assert pair.keeper.alive
    assert pair.keeper.failure is None


@virtual_time
async def test_messages_are_copies() -> None:
    """Nothing mutable is shared, whatever a message holds."""
    pair = Pair()
    sent = Entry("a")

    received = await pair.remote.write(sent)

    assert received == sent
    assert received is not sent


@virtual_time
async def test_what_is_bound_in_one_process_is_not_seen_in_another() -> None:
    bound: ContextVar[str] = ContextVar("bound", default="nothing")
    seen: list[str] = []

    class Peeking(Ledger):
        async def write(self, message: Entry) -> Entry:
            seen.append(bound.get())
            return message

    network = SimulatedNetwork(Random(1))
    network.process("keeper").serve(LedgerGateway, Peeking())
    writer = network.process("writer")

    async def program() -> None:
        bound.set("mine")
        await writer.connect(LedgerGateway, "keeper").write(Entry("a"))
        seen.append(bound.get())

    await writer.spawn(program(), "program")

    assert seen == ["nothing", "mine"]


def test_waiting_for_nothing_is_a_deadlock_and_not_a_hang() -> None:
    async def main() -> None:
        await Pair().network.process("third").spawn(asyncio.Event().wait(), "waits")

    with pytest.raises(Deadlock, match="third/waits"):
        run_virtual(main())


# Chance


async def _scenario(seed: int) -> list[tuple[float, str]]:
    """Three writers and a keeper on a bad network, crashes included; every step with its time."""
    events: list[tuple[float, str]] = []

    def observe(sender: str, receiver: str, what: str) -> None:
        events.append((now_s(), f"{sender} -> {receiver}: {what}"))

    network = SimulatedNetwork(Random(seed), Link(late=0.1, max_late_s=3, loss=0.1, duplication=0.1), observe)
    chance = Random(seed + 1)

    async def program(process: SimulatedProcess) -> None:
        remote = process.connect(LedgerGateway, "keeper", timeout_s=2)
        async with asyncio.TaskGroup() as tasks:
            for n in range(5):
                tasks.create_task(write(remote, f"{process.name} {n}"))

    async def write(remote: LedgerGateway, line: str) -> None:
        for attempt in range(3):
            try:
                await remote.write(Entry(f"{line}#{attempt}"))
            except FlintlockError as error:
                events.append((now_s(), f"{line} {error}"))

    keeper = network.process("keeper")
    keeper.serve(LedgerGateway, Ledger())
    writers = [network.process(f"writer-{n}") for n in range(3)]
    for process in writers:
        process.spawn(program(process), "program")
    await asyncio.sleep(chance.random())
    writers[0].crash()
    await asyncio.sleep(chance.random())
    keeper.crash()
    network.process("keeper").serve(LedgerGateway, Ledger())
    await asyncio.sleep(20)
    return events


@given(st.integers(0, 2**32))
def test_equal_seeds_give_equal_runs(seed: int) -> None:
    first = run_virtual(_scenario(seed))

    assert len(first) > 20
    assert run_virtual(_scenario(seed)) == first


def test_different_seeds_give_different_runs() -> None:
    assert run_virtual(_scenario(1)) != run_virtual(_scenario(2))


@virtual_time
async def test_stream_keeps_order_though_messages_are_late() -> None:
    network = SimulatedNetwork(Random(3), Link(late=0.5, max_late_s=10.0))
    stream, received = network.stream("a", "b"), list[int]()
    for number in range(20):
        stream.send(partial(received.append, number))

    await asyncio.sleep(60)

    assert received == list(range(20))


@virtual_time
async def test_stream_gets_through_once_the_cut_is_healed_and_a_closed_one_loses_what_is_under_way() -> None:
    network, received = SimulatedNetwork(Random(1)), list[str]()
    kept, closed = network.stream("a", "b"), network.stream("a", "b")
    network.cut("a", "b", one_way=True)
    kept.send(lambda: received.append("kept"))
    closed.send(lambda: received.append("closed"))
    await asyncio.sleep(5)
    assert received == []

    closed.close()
    network.heal()
    await asyncio.sleep(5)

    assert received == ["kept"]


@virtual_time
async def test_frozen_process_goes_on_by_itself_after_its_time() -> None:
    pair = Pair()
    pair.keeper.freeze(length_s=7)

    await pair.writer.connect(LedgerGateway, "keeper", timeout_s=60).write(Entry("late"))

    assert 7 <= now_s() < 8
    assert not pair.keeper.frozen

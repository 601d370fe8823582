"""How many workers are started and which are released, as the core of active mode decides it."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flintlock.model.ids import TaskManagerId
from flintlock.resourcemanager.workers import (
    IdleSince,
    Missing,
    ReleaseWorker,
    StartWorker,
    WithdrawStart,
    WorkerOrder,
    WorkerRules,
    Workers,
)

RULES = WorkerRules(limit=3, idle_s=30.0, retry_s=3.0, registration_s=300.0)
ONE, TWO = TaskManagerId("w1"), TaskManagerId("w2")


def need(count: int) -> Missing:
    """So many workers are needed in all, beside those on their way."""
    return lambda coming, at_most: max(0, min(count - coming, at_most))


def busy(_: TaskManagerId) -> float | None:
    return None


def idle(since_s: float) -> IdleSince:
    return lambda _: since_s


def serving(workers: Workers, *names: TaskManagerId, now_s: float = 0.0) -> None:
    for name in names:
        assert workers.decide(need(1), busy, now_s) == [StartWorker()]
        workers.started(name, now_s)
        workers.entered(name, now_s)


def test_workers_on_their_way_are_not_ordered_twice() -> None:
    workers = Workers(RULES)
    assert workers.decide(need(2), busy, 0.0) == [StartWorker(), StartWorker()]
    assert workers.decide(need(2), busy, 0.0) == []
    workers.started(ONE, 1.0)
    assert workers.coming() == 2
    assert workers.decide(need(2), busy, 1.0) == []
    assert workers.decide(need(3), busy, 1.0) == [StartWorker()]


def test_starts_that_no_request_needs_any_more_are_withdrawn() -> None:
    """Those that are not confirmed: a worker that is starting registers, and is released when it was idle."""
    workers = Workers(RULES)
    assert workers.decide(need(3), busy, 0.0) == [StartWorker()] * 3
    workers.started(ONE, 1.0)
    assert workers.decide(need(2), busy, 1.0) == [WithdrawStart()]
    assert workers.decide(need(2), busy, 1.0) == [WithdrawStart()], "the driver has not confirmed it yet"
    workers.withdrawn()
    assert workers.decide(need(2), busy, 1.0) == []
    assert workers.decide(need(0), busy, 1.0) == [WithdrawStart()]
    workers.withdrawn()
    assert workers.coming() == 1
    assert workers.decide(need(2), busy, 1.0) == [StartWorker()], "it is requested again when it is needed again"


def test_a_start_that_would_be_ordered_again_is_not_withdrawn() -> None:
    """Two requests of one slot each may spread over workers, so that one of two slots finds no room on them."""
    workers = Workers(RULES)
    workers.decide(need(3), busy, 0.0)

    def spread(coming: int, at_most: int) -> int:
        return min(at_most, {0: 2, 1: 1, 2: 1, 3: 0}[coming])

    assert workers.decide(spread, busy, 0.0) == []


def test_never_more_than_the_most() -> None:
    workers = Workers(RULES)
    serving(workers, ONE, TWO)
    assert workers.decide(need(99), busy, 0.0) == [StartWorker()]
    assert workers.decide(need(99), busy, 0.0) == []


def test_one_that_is_being_released_still_counts() -> None:
    workers = Workers(WorkerRules(limit=1, idle_s=30.0, retry_s=3.0, registration_s=300.0))
    serving(workers, ONE)
    assert workers.decide(need(0), idle(0.0), 30.0) == [ReleaseWorker(ONE, "it was idle for 30 s")]
    assert workers.is_being_released(ONE)
    assert workers.decide(need(1), idle(0.0), 31.0) == []
    workers.released(ONE)
    assert workers.decide(need(1), idle(0.0), 32.0) == [StartWorker()]


def test_an_idle_worker_is_released_after_its_time_and_not_before() -> None:
    workers = Workers(RULES)
    serving(workers, ONE)
    assert workers.next_due_s(idle(5.0), 10.0) == 25.0
    assert workers.decide(need(0), idle(5.0), 34.9) == []
    assert workers.decide(need(0), idle(5.0), 35.0) == [ReleaseWorker(ONE, "it was idle for 30 s")]
    assert workers.decide(need(0), idle(5.0), 36.0) == []


def test_one_that_dies_is_replaced_after_a_wait_that_doubles() -> None:
    workers = Workers(RULES)
    now_s = 0.0
    for wait_s in (3.0, 6.0, 12.0):
        assert workers.decide(need(1), busy, now_s) == [StartWorker()]
        workers.started(ONE, now_s)
        workers.ended(ONE, now_s)
        assert workers.decide(need(1), busy, now_s + wait_s - 0.1) == []
        assert workers.next_due_s(busy, now_s) == wait_s
        now_s += wait_s


def test_the_wait_begins_anew_once_a_worker_has_lived_longer_than_it() -> None:
    workers = Workers(RULES)
    for now_s in (0.0, 3.0):
        workers.decide(need(1), busy, now_s)
        workers.started(ONE, now_s)
        workers.ended(ONE, now_s)
    workers.decide(need(1), busy, 9.0)
    workers.started(TWO, 9.0)
    workers.entered(TWO, 10.0)
    workers.ended(TWO, 17.0)
    assert workers.decide(need(1), busy, 19.9) == []
    assert workers.decide(need(1), busy, 20.0) == [StartWorker()]


def test_the_wait_has_an_end() -> None:
    workers = Workers(RULES)
    for _ in range(100):
        workers.decide(need(1), busy, math.inf)
        workers.start_failed(0.0)
    assert workers.next_due_s(busy, 0.0) == 300.0


def test_one_that_never_registers_is_given_up_and_replaced() -> None:
    workers = Workers(RULES)
    workers.decide(need(1), busy, 0.0)
    workers.started(ONE, 10.0)
    assert workers.next_due_s(busy, 10.0) == 300.0
    assert workers.decide(need(1), busy, 310.0) == [ReleaseWorker(ONE, "it has not registered within 300 s")]
    workers.released(ONE)
    assert workers.decide(need(1), busy, 312.9) == []
    assert workers.decide(need(1), busy, 313.0) == [StartWorker()]


def test_a_worker_that_registers_before_the_driver_confirms_its_start_stays() -> None:
    """The node of a container may answer late, when the TaskManager in it serves already."""
    workers = Workers(RULES)
    assert workers.decide(need(1), busy, 0.0) == [StartWorker()]
    workers.entered(ONE, 1.0, is_worker=True)
    workers.started(ONE, 2.0)
    assert workers.coming() == 0
    assert workers.decide(need(0), busy, 2.0 + RULES.registration_s) == []


def test_a_worker_whose_engine_died_registers_again_by_itself() -> None:
    workers = Workers(RULES)
    serving(workers, ONE)
    assert workers.left(ONE, "it has shut down", returns=True, now_s=5.0) == []
    assert workers.coming() == 1
    assert workers.decide(need(1), busy, 5.0) == []
    workers.entered(ONE, 15.0)
    assert workers.coming() == 0


def test_one_that_fell_silent_is_ended_and_replaced() -> None:
    workers = Workers(RULES)
    serving(workers, ONE)
    assert workers.left(ONE, "silent", returns=False, now_s=50.0) == [ReleaseWorker(ONE, "silent")]
    assert workers.decide(need(1), busy, 50.0) == []
    assert workers.decide(need(1), busy, 53.0) == [StartWorker()]


def test_task_managers_of_others_are_never_touched() -> None:
    workers = Workers(RULES)
    stranger = TaskManagerId("tm-1")
    workers.entered(stranger, 0.0)
    assert workers.decide(need(0), idle(0.0), 1000.0) == []
    assert workers.left(stranger, "silent", returns=False, now_s=1000.0) == []
    assert workers.decide(need(1), busy, 1000.0) == [StartWorker()]


class WorkerLife(RuleBasedStateMachine):
    """Whatever happens to workers: never more processes than allowed, and no order for one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers(RULES)
        self.now_s = 0.0
        self.ordered = 0
        self.processes: set[TaskManagerId] = set()
        self.registered: set[TaskManagerId] = set()
        self.leaving: set[TaskManagerId] = set()
        self.names = 0
        self.withdraws = True  # otherwise the driver has the resources already

    def perform(self, orders: list[WorkerOrder]) -> None:
        for order in orders:
            if isinstance(order, StartWorker):
                self.ordered += 1
            elif isinstance(order, WithdrawStart):
                assert self.ordered
                if self.withdraws:
                    self.ordered -= 1
                    self.workers.withdrawn()
            else:
                assert order.id in self.processes
                assert order.id not in self.leaving
                self.leaving.add(order.id)
                self.registered.discard(order.id)

    @rule(
        needed=st.integers(0, 5),
        seconds=st.floats(0, 400),
        idle_s=st.none() | st.floats(0, 60),
        withdraws=st.booleans(),
    )
    def decide(self, needed: int, seconds: float, idle_s: float | None, withdraws: bool) -> None:
        self.now_s += seconds
        self.withdraws = withdraws
        since = None if idle_s is None else self.now_s - idle_s
        self.perform(self.workers.decide(need(needed), lambda _: since, self.now_s))

    @rule(succeeds=st.booleans())
    def driver_answers(self, succeeds: bool) -> None:
        if not self.ordered:
            return
        self.ordered -= 1
        if not succeeds:
            self.workers.start_failed(self.now_s)
            return
        self.names += 1
        name = TaskManagerId(f"w{self.names}")
        self.processes.add(name)
        self.workers.started(name, self.now_s)

    @rule(data=st.data())
    def registers(self, data: st.DataObject) -> None:
        if self.processes - self.leaving:
            name = data.draw(st.sampled_from(sorted(self.processes - self.leaving)))
            self.registered.add(name)
            self.workers.entered(name, self.now_s)

    @rule(data=st.data(), returns=st.booleans())
    def is_lost(self, data: st.DataObject, returns: bool) -> None:
        if self.registered:
            name = data.draw(st.sampled_from(sorted(self.registered)))
            self.registered.discard(name)
            self.perform(self.workers.left(name, "lost", returns=returns, now_s=self.now_s))

    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        if self.processes:
            name = data.draw(st.sampled_from(sorted(self.processes)))
            self.processes.discard(name)
            if name in self.leaving:
                self.leaving.discard(name)
                self.workers.released(name)
                return
            self.workers.ended(name, self.now_s)
            if name in self.registered:  # the loss is processed afterwards
                self.registered.discard(name)
                assert self.workers.left(name, "ended", returns=False, now_s=self.now_s) == []

    @invariant()
    def never_too_many(self) -> None:
        assert self.ordered + len(self.processes) <= RULES.limit
        assert self.workers.coming() == self.ordered + len(self.processes - self.registered - self.leaving)

    def teardown(self) -> None:
        """Once nothing is needed and everything is idle, all are released: none is forgotten."""
        for name in sorted(self.processes - self.leaving):
            self.workers.entered(name, self.now_s)
        while self.ordered:
            self.driver_answers(succeeds=False)
        self.now_s += 1000.0
        self.perform(self.workers.decide(need(0), lambda _: 0.0, self.now_s))
        assert self.leaving == self.processes


TestWorkerLife = WorkerLife.TestCase

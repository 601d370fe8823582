"""Invariants of the TaskManager's core for any sequence of orders, messages and tear-downs."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.taskmanager.orders import attempt_id, failed, order

from flintlock.model.errors import Refused
from flintlock.model.ids import AttemptId
from flintlock.model.tasks import (
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskNews,
    TaskProgress,
    TaskRunning,
)
from flintlock.taskmanager.core import InterruptTask, KillTask, Report, StartTask, TaskManagerCore, TaskManagerEffect

SLOTS = 3
ATTEMPTS = st.sampled_from([attempt_id(number, region) for number in range(4) for region in range(2)])
SLOT_SETS = st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (3,), (-1,)])
MESSAGES = st.sampled_from(
    [TaskRunning(), TaskProgress(metrics=TaskMetrics()), TaskFinished(), failed()]
)  # fmt: skip
ENDS = (TaskFinished, TaskFailed, TaskCanceled)


class TaskManagerLife(RuleBasedStateMachine):
    """Orders and runners' messages in any sequence, compared with a model of what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.core = TaskManagerCore(SLOTS)
        self.started: dict[AttemptId, tuple[int, ...]] = {}  # every attempt that ever got a runner
        self.here: set[AttemptId] = set()  # those that are not torn down
        self.reported: dict[AttemptId, list[TaskNews]] = {}  # ends reported of each
        self.never: set[AttemptId] = set()  # cancelled before they came
        self.dead = False

    @rule(attempt=ATTEMPTS, slots=SLOT_SETS)
    def deploy_anywhere(self, attempt: AttemptId, slots: tuple[int, ...]) -> None:
        self.deploy(attempt, slots)

    @precondition(lambda self: self.here)
    @rule(attempt=ATTEMPTS, data=st.data())
    def deploy_where_another_is(self, attempt: AttemptId, data: st.DataObject) -> None:
        self.deploy(attempt, self.started[data.draw(st.sampled_from(sorted(self.here)))])

    def deploy(self, attempt: AttemptId, slots: tuple[int, ...]) -> None:
        with suppress(Refused):
            effects = self.core.deploy(order(attempt, *slots))
            self.perform(effects)
            if any(isinstance(effect, StartTask) for effect in effects):
                assert attempt not in self.started, "a duplicate was started"
                assert attempt not in self.never, "an attempt started after its cancel"
                assert not self.dead, "an attempt started on a dead engine"
                self.started[attempt] = slots
                self.here.add(attempt)

    @rule(attempt=ATTEMPTS)
    def cancel_any(self, attempt: AttemptId) -> None:
        self.cancel(attempt)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def cancel_one_that_is_here(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.sampled_from(sorted(self.here))))

    def cancel(self, attempt: AttemptId) -> None:
        known = attempt in self.here
        before = len(self.reported.get(attempt, []))
        effects = self.core.cancel(attempt)
        self.perform(effects, may_end=not known)
        if not known:
            assert isinstance(self.reported[attempt][-1], TaskCanceled), "its end is not reported"
            assert len(self.reported[attempt]) == before + 1
            if attempt not in self.started:
                self.never.add(attempt)

    @rule(attempt=ATTEMPTS)
    def discard_any(self, attempt: AttemptId) -> None:
        self.perform(self.core.discard(attempt))

    @rule(attempt=ATTEMPTS)
    def kill_any(self, attempt: AttemptId) -> None:
        self.perform(self.core.kill(attempt))

    @rule(attempt=ATTEMPTS)
    def lose_any(self, attempt: AttemptId) -> None:
        self.perform(self.core.lose(attempt, failed("it was stopped").failure))

    @rule(attempt=ATTEMPTS, message=MESSAGES)
    def receive_any(self, attempt: AttemptId, message: TaskRunning | TaskProgress | TaskFinished | TaskFailed) -> None:
        self.receive(attempt, message)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), message=MESSAGES)
    def hear_one_that_is_here(
        self, data: st.DataObject, message: TaskRunning | TaskProgress | TaskFinished | TaskFailed
    ) -> None:
        self.receive(data.draw(st.sampled_from(sorted(self.here))), message)

    def receive(self, attempt: AttemptId, message: TaskRunning | TaskProgress | TaskFinished | TaskFailed) -> None:
        self.perform(self.core.received(attempt, message), may_end=isinstance(message, TaskFinished))

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def tear_down(self, data: st.DataObject) -> None:
        self.clear_away(data.draw(st.sampled_from(sorted(self.here))))

    @precondition(lambda self: not self.dead and len(self.started) > 2)
    @rule()
    def engine_dies(self) -> None:
        self.dead = True
        self.core.engine_died("exit code 137")

    def clear_away(self, attempt: AttemptId) -> None:
        self.perform(self.core.torn_down(attempt), may_end=True)
        self.here.discard(attempt)
        assert len(self.reported[attempt]) == 1, f"reported ended {len(self.reported[attempt])} times"

    def perform(self, effects: tuple[TaskManagerEffect, ...], *, may_end: bool = False) -> None:
        for effect in effects:
            if isinstance(effect, InterruptTask | KillTask):
                assert effect.attempt in self.here
            if isinstance(effect, Report) and isinstance(effect.news, ENDS):
                assert may_end, "an end was reported before it happened"
                self.reported.setdefault(effect.attempt, []).append(effect.news)

    @invariant()
    def no_slot_is_held_by_two_live_attempts(self) -> None:
        alive = [
            attempt
            for attempt in self.here
            if not any(isinstance(n, TaskFinished) for n in self.reported.get(attempt, []))
        ]
        held = [slot for attempt in alive for slot in self.started[attempt]]
        assert len(held) == len(set(held))
        assert all(0 <= slot < SLOTS for slot in held)

    @invariant()
    def what_runs_is_known(self) -> None:
        assert set(self.core.running()) == self.here

    def teardown(self) -> None:
        for attempt in sorted(self.here):
            self.clear_away(attempt)
        assert self.core.is_empty()


TaskManagerLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTaskManagerLife = TaskManagerLife.TestCase

"""What a TaskManager decides: which deployments are admitted, and when an attempt has ended.

A finished attempt is reported immediately: its work is complete. A failed or cancelled one is reported only after it
was torn down (runner process gone, Spark session released), so that a retry never overlaps with it. One core serves one
engine; its successor is given the attempts that have ended already.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.errors import Conflict, NotFound, Refused
from flintlock.model.ids import AttemptId
from flintlock.model.slots import AttemptSlots
from flintlock.model.states import checked_move
from flintlock.model.tasks import (
    ENGINE_DIED,
    DeployTask,
    Failure,
    FailureKind,
    PublishFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskProgress,
    TaskRunning,
)

_REMEMBERED_ENDS: Final = 4096


class TaskPhase(StrEnum):
    """How far an attempt has come on this TaskManager. It leaves the last three by being torn down."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CANCELING = "CANCELING"
    FINISHED = "FINISHED"  # reported; its runner is being removed
    FAILED = "FAILED"  # reported once it is torn down

    @property
    def interruptible(self) -> bool:
        """Whether a cancel still changes the outcome."""
        return self in (TaskPhase.STARTING, TaskPhase.RUNNING)


_P = TaskPhase

#: Legal moves of an attempt on its TaskManager. A cancelled attempt stays cancelled, whatever its runner reports.
TASK_PHASE_MOVES: Final[Mapping[TaskPhase, frozenset[TaskPhase]]] = {
    _P.STARTING: frozenset({_P.RUNNING, _P.CANCELING, _P.FINISHED, _P.FAILED}),
    _P.RUNNING: frozenset({_P.CANCELING, _P.FINISHED, _P.FAILED}),
    _P.CANCELING: frozenset(),
    _P.FINISHED: frozenset(),
    _P.FAILED: frozenset(),
}


class StartTask(Struct, frozen=True):
    """Take a runner and give it this task."""

    order: DeployTask


class InterruptTask(Struct, frozen=True):
    """Ask the attempt's runner to stop; kill it if it does not stop in time."""

    attempt: AttemptId


class KillTask(Struct, frozen=True):
    """Kill the attempt's runner without asking it first."""

    attempt: AttemptId


class StartPublishing(Struct, frozen=True):
    """Move the files of an accepted attempt."""

    order: PublishFiles


class StopPublishing(Struct, frozen=True):
    """Stop the publication of an attempt after the file that it is at."""

    attempt: AttemptId


class Report(Struct, frozen=True):
    """Send this to the JobMaster."""

    attempt: AttemptId
    news: TaskNews


TaskManagerEffect: TypeAlias = StartTask | InterruptTask | KillTask | StartPublishing | StopPublishing | Report


class _Attempt(Struct):
    """An attempt that is not torn down yet."""

    order: DeployTask
    phase: TaskPhase = TaskPhase.STARTING
    failure: Failure | None = None  # why it is FAILED

    @property
    def occupies_slots(self) -> bool:
        """Whether it may still work; a finished one is only being removed."""
        return self.phase is not TaskPhase.FINISHED

    def move(self, phase: TaskPhase) -> None:
        """Change the phase. Raises InvariantBroken for a move that is not in the table."""
        self.phase = checked_move(TASK_PHASE_MOVES, self.phase, phase)

    def fail(self, failure: Failure) -> None:
        """Change the phase to FAILED because of this."""
        self.move(TaskPhase.FAILED)
        self.failure = failure


class TaskManagerCore:
    """Decides; `EngineSession` performs the effects. Equal calls in equal order give equal effects."""

    def __init__(self, slots: int, ended: Iterable[AttemptId] = ()) -> None:
        self._slots: Final = slots
        self._attempts: dict[AttemptId, _Attempt] = {}  # added by deploy, removed by torn_down
        self._publishing: set[AttemptId] = set()  # added by publish, removed by published
        # Identifies late duplicates of a deployment; only the latest ends are remembered.
        self._ended: OrderedDict[AttemptId, None] = OrderedDict.fromkeys(ended)
        self.engine_cause: str | None = None  # why the engine died; written once, by engine_died

    def deploy(self, order: DeployTask) -> tuple[TaskManagerEffect, ...]:
        """Admit an attempt to its slots; a known one changes nothing. Raises Refused."""
        if order.attempt in self._attempts or order.attempt in self._ended:
            return ()
        if self.engine_cause is not None:
            raise Refused(f"the Spark engine is gone: {self.engine_cause}")
        wrong = [slot for slot in order.slots if not 0 <= slot < self._slots]
        if wrong or not order.slots:
            raise Refused(f"there are no slots {wrong or 'named'} here, only 0 to {self._slots - 1}")
        for other in self._attempts.values():
            if other.occupies_slots and set(other.order.slots) & set(order.slots):
                raise Refused(f"the slots {order.slots} are in use by attempt {other.order.attempt}")
        self._attempts[order.attempt] = _Attempt(order=order)
        return (StartTask(order),)

    def cancel(self, attempt: AttemptId) -> tuple[TaskManagerEffect, ...]:
        """Begin to cancel an attempt; an unknown one is reported as cancelled, and is not admitted later.

        The work of one that is being published has ended: only its publication is stopped.
        """
        if attempt in self._publishing:
            return (StopPublishing(attempt),)
        own = self._attempts.get(attempt)
        if own is None:
            self._remember(attempt)
            return (Report(attempt, TaskCanceled()),)
        if own.phase.interruptible:
            own.move(TaskPhase.CANCELING)
            return (InterruptTask(attempt),)
        return ()

    def discard(self, attempt: AttemptId) -> tuple[TaskManagerEffect, ...]:
        """Begin to cancel an attempt that no JobMaster wants; an unknown one changes nothing."""
        return self.cancel(attempt) if attempt in self._attempts else ()

    def check_runs(self, attempt: AttemptId) -> None:
        """Raise NotFound for an attempt that is not here, Conflict for one that does not run (yet, or any more)."""
        own = self._attempts.get(attempt)
        if own is None:
            raise NotFound(f"attempt {attempt} is not on this TaskManager: it has ended, or never was here")
        if own.phase is not TaskPhase.RUNNING:
            raise Conflict(f"attempt {attempt} is {own.phase}: only a running one answers")

    def kill(self, attempt: AttemptId) -> tuple[TaskManagerEffect, ...]:
        """Kill an attempt's runner, also while it is being cancelled; the attempt counts as cancelled."""
        own = self._attempts.get(attempt)
        if own is None or own.phase in (TaskPhase.FINISHED, TaskPhase.FAILED):
            return ()
        if own.phase is not TaskPhase.CANCELING:
            own.move(TaskPhase.CANCELING)
        return (KillTask(attempt),)

    def lose(self, attempt: AttemptId, failure: Failure) -> tuple[TaskManagerEffect, ...]:
        """Kill an attempt's runner and fail the attempt with this; one that is being cancelled stays cancelled."""
        own = self._attempts.get(attempt)
        if own is None or own.phase in (TaskPhase.FINISHED, TaskPhase.FAILED):
            return ()
        if own.phase is not TaskPhase.CANCELING:
            own.fail(failure)
        return (KillTask(attempt),)

    def received(
        self, attempt: AttemptId, news: TaskRunning | TaskProgress | TaskFinished | TaskFailed
    ) -> tuple[TaskManagerEffect, ...]:
        """Process a runner's message. Messages after the attempt ended, or once it is cancelled, are ignored."""
        own = self._attempts.get(attempt)
        if own is None or not own.phase.interruptible:
            return ()
        match news:
            case TaskRunning():
                if own.phase is not TaskPhase.RUNNING:
                    own.move(TaskPhase.RUNNING)
                return (Report(attempt, news),)
            case TaskProgress():
                return (Report(attempt, news),)
            case TaskFinished():
                own.move(TaskPhase.FINISHED)
                return (Report(attempt, news),)
            case TaskFailed():
                own.fail(news.failure)
                return ()

    def torn_down(self, attempt: AttemptId) -> tuple[TaskManagerEffect, ...]:
        """Nothing of the attempt is left: free its slots, and report its failure or cancellation."""
        own = self._attempts.pop(attempt, None)
        if own is None:
            return ()
        self._remember(attempt)
        match own:
            case _Attempt(phase=TaskPhase.CANCELING):
                return (Report(attempt, TaskCanceled()),)
            case _Attempt(phase=TaskPhase.FINISHED):
                return ()  # reported when it finished
            case _Attempt(failure=Failure() as failure) if not self._results_from_engine_death(failure):
                return (Report(attempt, TaskFailed(failure=failure)),)
            case _:
                return (Report(attempt, TaskFailed(failure=_lost(self.engine_cause))),)

    def publish(self, order: PublishFiles) -> tuple[TaskManagerEffect, ...]:
        """Begin to publish; a repeated request changes nothing while the publication is under way."""
        if order.attempt in self._publishing:
            return ()
        self._publishing.add(order.attempt)
        return (StartPublishing(order),)

    def published(self, attempt: AttemptId) -> None:
        """A publication ended, successfully or not: it may be requested again."""
        self._publishing.discard(attempt)

    def engine_died(self, cause: str) -> None:
        """Refuse deployments from now on; attempts that are torn down without a failure of their own fail with this."""
        self.engine_cause = cause

    def suspects_engine(self, attempt: AttemptId) -> bool:
        """Return whether the attempt failed as if the engine had died, while the engine's death is not known yet."""
        match self._attempts.get(attempt):
            case _Attempt(failure=Failure(kind=FailureKind.ENGINE_LOST)):
                return self.engine_cause is None
            case _:
                return False

    def running(self) -> tuple[AttemptId, ...]:
        """Return the attempts that are not yet torn down."""
        return tuple(self._attempts)

    def longest_lease_s(self) -> float:
        """Return how long a lease on what runs may be at most: as recorded with the attempts. Infinite without them."""
        return min((own.order.lease_s for own in self._attempts.values() if own.order.lease_s), default=math.inf)

    def slots_used(self) -> int:
        """Return the number of slots of attempts that may still work."""
        return sum(len(own.order.slots) for own in self._attempts.values() if own.occupies_slots)

    def occupied_slots(self) -> dict[AttemptId, AttemptSlots]:
        """Return the attempts that are not yet torn down, each with what no other attempt may use."""
        return {
            attempt: AttemptSlots(attempt=attempt, slots=own.order.slots, resources=own.order.resources)
            if own.occupies_slots
            else AttemptSlots(attempt=attempt)
            for attempt, own in self._attempts.items()
        }

    def ended(self) -> tuple[AttemptId, ...]:
        """Return the attempts that have ended here, as far as they are remembered."""
        return tuple(self._ended)

    def is_empty(self) -> bool:
        """Return whether no attempt and no publication is left."""
        return not self._attempts and not self._publishing

    def _results_from_engine_death(self, failure: Failure) -> bool:
        """Whether a failure only follows from the engine's death, whose cause is then reported instead."""
        return self.engine_cause is not None and failure.kind in (
            FailureKind.ENGINE_LOST,
            FailureKind.RUNNER_LOST,
            FailureKind.SPARK_TASK,
        )

    def _remember(self, attempt: AttemptId) -> None:
        self._ended[attempt] = None
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)


def _lost(engine_cause: str | None) -> Failure:
    """The failure of an attempt whose runner ended without reporting an outcome."""
    if engine_cause is None:
        return Failure(
            kind=FailureKind.RUNNER_LOST, message="the runner ended without reporting", exception="RunnerLost"
        )
    return Failure(
        kind=FailureKind.ENGINE_LOST, message=f"the Spark engine died: {engine_cause}", exception=ENGINE_DIED
    )

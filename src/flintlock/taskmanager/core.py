"""What a TaskManager decides: who gets in, what each word of a runner means, when an attempt has ended.

A finished attempt is reported at once: its work is over by its own word. A failed or cancelled one is reported only
after it was torn down (runner gone, Spark session released), so that whoever tries again never meets it still alive.
One core serves one life of the engine; the next one is told which attempts have ended before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.errors import Refused
from flintlock.model.ids import AttemptId
from flintlock.model.tasks import (
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


class Phase(StrEnum):
    """How far an attempt is here."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CANCELING = "CANCELING"
    ENDED = "ENDED"  # its outcome is known; what is left of it is being removed


class StartTask(Struct, frozen=True):
    """Get a runner and give it this task."""

    order: DeployTask


class InterruptTask(Struct, frozen=True):
    """Make the attempt's runner stop, by force if it does not obey in time."""

    attempt: AttemptId


class KillTask(Struct, frozen=True):
    """End the attempt's runner by force, at once."""

    attempt: AttemptId


class StartPublishing(Struct, frozen=True):
    """Move the files of an accepted attempt."""

    order: PublishFiles


class Report(Struct, frozen=True):
    """Tell the JobMaster."""

    attempt: AttemptId
    news: TaskNews


Effect: TypeAlias = StartTask | InterruptTask | KillTask | StartPublishing | Report


class _Held(Struct):
    """An attempt that holds slots, or is being removed."""

    order: DeployTask
    phase: Phase = Phase.STARTING
    last_word: TaskFailed | None = None  # what is reported once it is torn down

    @property
    def alive(self) -> bool:
        """Whether it may still be at work; one that finished is only being cleared away."""
        return self.phase is not Phase.ENDED or self.last_word is not None


class TaskManagerCore:
    """Decides; the endpoint does. Equal calls in equal order give equal effects."""

    def __init__(self, slots: int, ended: Iterable[AttemptId] = ()) -> None:
        self._slots: Final = slots
        self._held: dict[AttemptId, _Held] = {}  # entered by deploy, left by torn_down
        self._publishing: set[AttemptId] = set()  # entered by publish, left by published
        # Late duplicates of a deployment are known by it; of the many that ended only the latest are kept.
        self._ended: OrderedDict[AttemptId, None] = OrderedDict.fromkeys(ended)
        self.engine_cause: str | None = None  # written once, by engine_died

    def deploy(self, order: DeployTask) -> tuple[Effect, ...]:
        """Admit an attempt to its slots; a known one changes nothing. Raises Refused."""
        if order.attempt in self._held or order.attempt in self._ended:
            return ()
        if self.engine_cause is not None:
            raise Refused(f"the Spark engine is gone: {self.engine_cause}")
        wrong = [slot for slot in order.slots if not 0 <= slot < self._slots]
        if wrong or not order.slots:
            raise Refused(f"there are no slots {wrong or 'named'} here, only 0 to {self._slots - 1}")
        for held in self._held.values():
            if held.alive and set(held.order.slots) & set(order.slots):
                raise Refused(f"the slots {order.slots} are held by attempt {held.order.attempt}")
        self._held[order.attempt] = _Held(order=order)
        return (StartTask(order),)

    def cancel(self, attempt: AttemptId) -> tuple[Effect, ...]:
        """Begin to end an attempt; one that is not here counts as ended, and never starts later."""
        held = self._held.get(attempt)
        if held is None:
            self._remember(attempt)
            return (Report(attempt, TaskCanceled()),)
        if held.phase in (Phase.STARTING, Phase.RUNNING):
            held.phase = Phase.CANCELING
            return (InterruptTask(attempt),)
        return ()

    def discard(self, attempt: AttemptId) -> tuple[Effect, ...]:
        """Begin to end an attempt that nobody wants; nothing happens for one that is not here."""
        return self.cancel(attempt) if attempt in self._held else ()

    def kill(self, attempt: AttemptId) -> tuple[Effect, ...]:
        """End an attempt by force, also one that is being cancelled already; it counts as cancelled."""
        held = self._held.get(attempt)
        if held is None or held.phase is Phase.ENDED:
            return ()
        held.phase = Phase.CANCELING
        return (KillTask(attempt),)

    def lose(self, attempt: AttemptId, failure: Failure) -> tuple[Effect, ...]:
        """End an attempt by force because of this; one that is being cancelled stays cancelled."""
        held = self._held.get(attempt)
        if held is None or held.phase is Phase.ENDED:
            return ()
        if held.phase is not Phase.CANCELING:
            held.phase = Phase.ENDED
            held.last_word = TaskFailed(failure=failure)
        return (KillTask(attempt),)

    def heard(
        self, attempt: AttemptId, news: TaskRunning | TaskProgress | TaskFinished | TaskFailed
    ) -> tuple[Effect, ...]:
        """Take a runner's word. What it says after its last one, or once it is cancelled, no longer counts."""
        held = self._held.get(attempt)
        if held is None or held.phase in (Phase.ENDED, Phase.CANCELING):
            return ()
        match news:
            case TaskRunning():
                held.phase = Phase.RUNNING
                return (Report(attempt, news),)
            case TaskProgress():
                return (Report(attempt, news),)
            case TaskFinished():
                held.phase = Phase.ENDED
                return (Report(attempt, news),)
            case TaskFailed():
                held.phase = Phase.ENDED
                held.last_word = news
                return ()

    def torn_down(self, attempt: AttemptId) -> tuple[Effect, ...]:
        """Nothing of the attempt is left: its slots are free, and its failure or cancellation may be told."""
        held = self._held.pop(attempt, None)
        if held is None:
            return ()
        self._remember(attempt)
        match held:
            case _Held(phase=Phase.CANCELING):
                return (Report(attempt, TaskCanceled()),)
            case _Held(phase=Phase.ENDED, last_word=None):
                return ()  # finished, and reported when it did
            case _Held(last_word=TaskFailed(failure=failure)) if not self._blames_engine(failure):
                return (Report(attempt, TaskFailed(failure=failure)),)
            case _:
                return (Report(attempt, TaskFailed(failure=_lost(self.engine_cause))),)

    def publish(self, order: PublishFiles) -> tuple[Effect, ...]:
        """Begin to publish; asked again while it is under way, nothing more happens."""
        if order.attempt in self._publishing:
            return ()
        self._publishing.add(order.attempt)
        return (StartPublishing(order),)

    def published(self, attempt: AttemptId) -> None:
        """A publication ended, well or not: it may be asked for again."""
        self._publishing.discard(attempt)

    def engine_died(self, cause: str) -> tuple[AttemptId, ...]:
        """Admit nobody any more; return the attempts that must be torn down because of it."""
        self.engine_cause = cause
        return tuple(attempt for attempt, held in self._held.items() if held.phase is not Phase.ENDED)

    def suspects_engine(self, attempt: AttemptId) -> bool:
        """Tell whether the attempt's failure looks like the engine's death, of which the engine has not told yet."""
        held = self._held.get(attempt)
        match held:
            case _Held(last_word=TaskFailed(failure=Failure(kind=FailureKind.ENGINE_LOST))):
                return self.engine_cause is None
            case _:
                return False

    def running(self) -> tuple[AttemptId, ...]:
        """Return the attempts that are not yet torn down."""
        return tuple(self._held)

    def slots_used(self) -> int:
        """Return how many slots are held by attempts that may still be at work."""
        return sum(len(held.order.slots) for held in self._held.values() if held.alive)

    def held(self) -> dict[AttemptId, tuple[int, ...]]:
        """Return the attempts that are not yet torn down, with the slots that nobody else may have meanwhile."""
        return {attempt: held.order.slots if held.alive else () for attempt, held in self._held.items()}

    def ended(self) -> tuple[AttemptId, ...]:
        """Return the attempts that have ended here, as far as they are remembered."""
        return tuple(self._ended)

    def is_empty(self) -> bool:
        """Tell whether nothing of any attempt is left."""
        return not self._held and not self._publishing

    def _blames_engine(self, failure: Failure) -> bool:
        """Whether a failure is only the echo of the engine's death, which then is the cause worth telling."""
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
    """The failure of an attempt that had no last word of its own."""
    if engine_cause is None:
        return Failure(kind=FailureKind.RUNNER_LOST, message="the runner ended without a word", exception="RunnerLost")
    return Failure(
        kind=FailureKind.ENGINE_LOST, message=f"the Spark engine died: {engine_cause}", exception="EngineLost"
    )

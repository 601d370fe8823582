"""What a streaming job adds to its steps: output mode, trigger and uid of a query, and the watermark of a step."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from flintlock.model.operations.kind import StepForm


class OutputMode(StrEnum):
    """Which rows of a query's result each micro-batch writes. Spark's names."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class TriggerKind(StrEnum):
    """When a query runs its micro-batches. Spark's names."""

    PROCESSING_TIME = "processingTime"
    AVAILABLE_NOW = "availableNow"
    REAL_TIME = "realTime"


class Trigger(Struct, frozen=True, kw_only=True):
    """When a query runs its micro-batches; without an interval: one after another."""

    kind: TriggerKind = TriggerKind.PROCESSING_TIME
    interval: str = ""

    def describe(self) -> str:
        """Return the trigger in a few words."""
        match self.kind:
            case TriggerKind.AVAILABLE_NOW:
                return "once, all that is available"
            case TriggerKind.REAL_TIME:
                return f"in real time, a checkpoint every {self.interval}"
            case TriggerKind.PROCESSING_TIME:
                return f"every {self.interval}" if self.interval else "without a pause"


class StreamQuery(Struct, frozen=True, kw_only=True):
    """What makes a sink a streaming query."""

    uid: str = ""  # the identity of its state; empty: the step's name (only sinks for looking at)
    output_mode: OutputMode = OutputMode.APPEND
    trigger: Trigger = Trigger()

    @property
    def ends(self) -> bool:
        """Whether the query ends by itself."""
        return self.trigger.kind is TriggerKind.AVAILABLE_NOW

    def describe(self) -> str:
        """Return the query's properties in one line."""
        return f"{self.output_mode.value}, {self.trigger.describe()}"


class Watermark(Struct, frozen=True, kw_only=True):
    """How late rows of a step may be, by a column of event times."""

    column: str
    delay: str


class TriggerSpec(StepForm, frozen=True, kw_only=True):
    """`trigger:` of a step: exactly one of its keys."""

    processing_time: str | None = None
    available_now: bool | None = None
    real_time: str | None = None

    @property
    def given(self) -> tuple[TriggerKind, ...]:
        """The kinds that the document gives."""
        values = (self.processing_time, self.available_now, self.real_time)
        return tuple(kind for kind, value in zip(TriggerKind, values, strict=True) if value is not None)


class WatermarkSpec(StepForm, frozen=True, kw_only=True):
    """`watermark:` of a step."""

    column: str
    delay: str


def read_trigger(given: TriggerSpec | None) -> Trigger:
    """Return the trigger that the document describes; of several, which no check accepts, the first."""
    if given is None or not given.given:
        return Trigger()
    interval = {
        TriggerKind.PROCESSING_TIME: given.processing_time,
        TriggerKind.AVAILABLE_NOW: None,
        TriggerKind.REAL_TIME: given.real_time,
    }
    return Trigger(kind=given.given[0], interval=interval[given.given[0]] or "")

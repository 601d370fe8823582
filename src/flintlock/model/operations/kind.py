"""What every kind of step has: the base of its operation and of its form in a document, and the delivery guarantees."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct

from flintlock.model.checking.problems import Problem

ConfigValue: TypeAlias = str | int | float | bool
"""What the value of an option may be in a document."""

Fill: TypeAlias = Callable[[str], str]
"""Replaces each `${name}` in a text by the value of that parameter."""

#: Formats whose output is files at a path: Flintlock stages and publishes them itself.
STAGED_FORMATS: Final = frozenset({"parquet", "orc", "json", "csv", "text", "avro", "xml"})
#: The table format whose commits carry an application's transaction id, by which it skips a write that was committed.
#: No release of it runs with the Spark of this version, so that this is not tested, and not guaranteed. Iceberg and
#: Hudi commit atomically, too, but know no such id: a retried append would add its rows again.
DELTA: Final = "delta"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Guarantee(StrEnum):
    """What delivery means for one output."""

    STAGED = "exactly once (atomic publish)"
    TRANSACTION_ID = "at least once (a repeated write has the same transaction id)"
    SINK_LOG = "exactly once (Spark's sink log)"
    BATCH_ID = "at least once (a repeated batch has the same id)"
    AT_LEAST_ONCE = "at least once"
    WITH_JOB = "exactly once (stored with the job)"


class StepOperation(Struct, frozen=True, kw_only=True):
    """Base of the operations: what a step does, and all that can be decided about it without Spark."""

    kind: ClassVar[str]  # the key in a document, and the tag on the wire and in stores
    label: ClassVar[str | None] = None  # stands before the step's name in Flink's views; None for steps in between
    has_output: ClassVar[bool] = True  # whether other steps may read its rows
    writes: ClassVar[bool] = False  # whether Spark writes for it, beside blocking results
    alone: ClassVar[bool] = False  # whether it is the only step of its job
    streams_only: ClassVar[bool] = False  # whether only streaming jobs have such a step

    @property
    def guarantee(self) -> Guarantee | None:
        """What delivery means for the step's output; None if it only passes rows to other steps."""
        return None

    @property
    def stream_guarantee(self) -> Guarantee | None:
        """What delivery means for the step's output as a streaming query."""
        return self.guarantee

    @property
    def target(self) -> str | None:
        """The path that the step writes to, if it writes to one."""
        return None

    def describe(self) -> str:
        """Return in one line what the step does."""
        raise NotImplementedError

    def describe_stream(self) -> str:
        """Return in one line what the step does as a streaming query."""
        return self.describe()

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:
        """Yield what is wrong with the operation of a step with that many inputs; the caller adds the step's name."""
        raise NotImplementedError


class StepForm(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Base of the structs of a job's document: camelCase outside, unknown keys are refused."""


def config_text(value: ConfigValue) -> str:
    """Write a configuration value as Spark and Flink write it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def filled_options(options: Mapping[str, ConfigValue], fill: Fill) -> dict[str, str]:
    """Return the options as Spark takes them, parameters filled in."""
    return {key: fill(config_text(value)) for key, value in options.items()}


def filled(text: str | None, fill: Fill) -> str | None:
    """Return the text with its parameters filled in, if there is one."""
    return None if text is None else fill(text)


def is_file_format(name: str | None) -> bool:
    """Return whether Spark reads and writes this format as files at a path."""
    return name is not None and name.lower() in STAGED_FORMATS


def is_relative(path: str) -> bool:
    """Return whether a path has neither a scheme nor a root."""
    return bool(path.strip()) and not path.startswith("/") and not _SCHEME.match(path)


def empty_texts(kind: str, **texts: tuple[str | None, ...]) -> Iterator[Problem]:
    """Yield a problem for each field that has a text of nothing but spaces."""
    for name, values in texts.items():
        if any(value is not None and not value.strip() for value in values):
            yield Problem(field=kind, message=f"the {name} is empty")

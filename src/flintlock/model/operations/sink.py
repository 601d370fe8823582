"""`sink`: a step that writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import ClassVar

from msgspec import field

from flintlock.model.checking.problems import Problem
from flintlock.model.ids import JobId, StepName
from flintlock.model.operations.kind import (
    DELTA,
    STAGED_FORMATS,
    ConfigValue,
    Fill,
    Guarantee,
    StepForm,
    StepOperation,
    empty_texts,
    filled,
    filled_options,
    is_file_format,
)


class SaveMode(StrEnum):
    """What a sink does about data that is already at its target. Spark's names."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    ERROR_IF_EXISTS = "errorifexists"
    IGNORE = "ignore"

    @property
    def requires_empty_target(self) -> bool:
        """Whether rows are written only to a target that has none."""
        return self in (SaveMode.ERROR_IF_EXISTS, SaveMode.IGNORE)

    @classmethod
    def _missing_(cls, value: object) -> SaveMode | None:
        """Accept Spark's other names of a mode."""
        return cls.ERROR_IF_EXISTS if value in ("error", "default") else None


class Sink(StepOperation, frozen=True, kw_only=True, tag="sink"):
    """Write the one input."""

    kind: ClassVar[str] = "sink"
    label: ClassVar[str | None] = "Sink"
    has_output: ClassVar[bool] = False
    writes: ClassVar[bool] = True

    format: str | None = None
    path: str | None = None
    table: str | None = None
    mode: SaveMode = SaveMode.ERROR_IF_EXISTS
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> Guarantee:
        """Flintlock publishes files atomically; other writes may be repeated, those to Delta with the same id."""
        name = self.format.lower() if self.format is not None else None
        if self.path is not None and name in STAGED_FORMATS:
            return Guarantee.STAGED
        return Guarantee.TRANSACTION_ID if name == DELTA else Guarantee.AT_LEAST_ONCE

    @property
    def stream_guarantee(self) -> Guarantee:
        """Spark's sink log makes files exactly once; Delta receives each batch with the ids of query and batch."""
        if self.guarantee is Guarantee.TRANSACTION_ID:
            return Guarantee.BATCH_ID
        return Guarantee.SINK_LOG if self.guarantee is Guarantee.STAGED else self.guarantee

    def transaction(self, job_id: JobId, step: StepName) -> dict[str, str]:
        """Return the options by which Delta knows a write of this step: the same for every attempt of the job.

        A job writes each sink once, so one version is enough: Delta skips a write whose version it has committed for
        this application id.
        """
        if self.guarantee is not Guarantee.TRANSACTION_ID:
            return {}
        return {"txnAppId": f"flintlock-{job_id}-{step}", "txnVersion": "1"}

    @property
    def target(self) -> str | None:
        """The path, if the sink writes to one."""
        return self.path

    def describe(self) -> str:
        """Return where the rows are written, and how."""
        if self.table is not None:
            return f"sink: table {self.table}, {self.mode.value}"
        return f"sink: {self.format} {self.path or ''}".rstrip() + f", {self.mode.value}{self._partitions()}"

    def describe_stream(self) -> str:
        """Return where the rows are written; a query has an output mode instead of a save mode."""
        where = f"table {self.table}" if self.table is not None else f"{self.format} {self.path or ''}".rstrip()
        return f"sink: {where}{self._partitions()}"

    def _partitions(self) -> str:
        return f", partitioned by {', '.join(self.partition_by)}" if self.partition_by else ""

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - reads none
        """Yield what keeps it from being written."""
        if inputs != 1:
            yield Problem(field="inputs", message=f"a sink needs exactly one input, not {inputs}")
        if self.table is not None and self.path is not None:
            yield Problem(field="sink", message="give either a table or a path, not both")
        elif self.table is None and self.format is None:
            yield Problem(field="sink", message="needs a format (with a path, where it has one) or a table")
        elif self.table is None and self.path is None and is_file_format(self.format):
            hint = ": give it as 'path', not as an option" if "path" in self.options else ""
            yield Problem(field="sink", message=f"the format {self.format!r} needs a path{hint}")
        yield from empty_texts("sink", format=(self.format,), table=(self.table,), path=(self.path,))
        repeated = [column for column, count in Counter(self.partition_by).items() if count > 1]
        if repeated:
            yield Problem(field="sink", message=f"partitions by {repeated[0]!r} more than once")


class SinkSpec(StepForm, frozen=True, kw_only=True):
    """`sink:` of a step."""

    format: str | None = None
    path: str | None = None
    table: str | None = None
    mode: SaveMode = SaveMode.ERROR_IF_EXISTS
    partition_by: tuple[str, ...] = ()
    options: dict[str, ConfigValue] = field(default_factory=dict)


def read(given: SinkSpec, fill: Fill) -> Sink:
    """Return the operation that the document describes."""
    return Sink(
        format=given.format,
        path=filled(given.path, fill),
        table=filled(given.table, fill),
        mode=given.mode,
        partition_by=given.partition_by,
        options=filled_options(given.options, fill),
    )

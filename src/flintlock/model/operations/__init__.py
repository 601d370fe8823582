"""The kinds of steps, one module each: struct, form in a document, checks, guarantee, description.

Owns: what a step of each kind is. Everything else (documents, checks, regions, `flintlock info`, REST) asks the
operation or the registry below, and knows no kind by name. How Spark executes a kind is in `spark/region`.
Never: knows other steps, or the job.
Inputs: documents, and stored or received graphs.
Rejected: a `match` on the union in each place that needs to know; a new kind was nine edits in eight modules.

To add a kind: a module here, a line in each of `Operation` and `READERS`, a field of
`model.checking.jobspec.StepSpec`, and its execution in `spark/region`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from flintlock.model.operations import foreach_batch, function, program, result, sink, source, sql
from flintlock.model.operations.foreach_batch import ForeachBatch
from flintlock.model.operations.function import Function, PickleSpec
from flintlock.model.operations.kind import ConfigValue, Fill, Guarantee, StepForm, StepOperation, config_text
from flintlock.model.operations.program import Program, ProgramSpec
from flintlock.model.operations.result import MAX_RESULT_ROWS, Result, ResultSpec
from flintlock.model.operations.sink import SaveMode, Sink, SinkSpec
from flintlock.model.operations.source import Source, SourceSpec
from flintlock.model.operations.sql import Sql

__all__ = [
    "MAX_RESULT_ROWS",
    "READERS",
    "ConfigValue",
    "Fill",
    "ForeachBatch",
    "Function",
    "Guarantee",
    "Operation",
    "PickleSpec",
    "Program",
    "ProgramSpec",
    "Result",
    "ResultSpec",
    "SaveMode",
    "Sink",
    "SinkSpec",
    "Source",
    "SourceSpec",
    "Sql",
    "StepForm",
    "StepOperation",
    "config_text",
]

Operation: TypeAlias = Source | Sql | Function | Sink | Result | Program | ForeachBatch
"""What a step does."""

#: The kinds by their key in a document, and how the value of that key becomes an operation.
READERS: Final[Mapping[str, Callable[[Any, Fill], Operation]]] = {
    Source.kind: source.read,
    Sql.kind: sql.read,
    Function.kind: function.read,
    Sink.kind: sink.read,
    Result.kind: result.read,
    Program.kind: program.read,
    ForeachBatch.kind: foreach_batch.read,
}

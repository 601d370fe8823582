"""`result`: a step whose rows are stored with the job."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.kind import Fill, Guarantee, StepForm, StepOperation

MAX_RESULT_ROWS: Final = 100_000


class Result(StepOperation, frozen=True, kw_only=True, tag="result"):
    """Store the input's first `limit` rows with the job."""

    kind: ClassVar[str] = "result"
    label: ClassVar[str | None] = "Result"
    has_output: ClassVar[bool] = False

    limit: int = 20

    @property
    def guarantee(self) -> Guarantee:
        """Rows are part of the job's own result."""
        return Guarantee.WITH_JOB

    def describe(self) -> str:
        """Return how many rows are stored."""
        return f"result: at most {self.limit} rows"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - reads none
        """Yield what keeps it from being stored."""
        if inputs != 1:
            yield Problem(field="inputs", message=f"a result needs exactly one input, not {inputs}")
        if not 1 <= self.limit <= MAX_RESULT_ROWS:
            message = f"limit must be from 1 to {MAX_RESULT_ROWS}, not {self.limit}; write more rows with a sink"
            yield Problem(field="result", message=message)


class ResultSpec(StepForm, frozen=True, kw_only=True):
    """`result:` of a step."""

    limit: int = 20


def read(given: ResultSpec, fill: Fill) -> Result:  # noqa: ARG001 - a number has no parameters
    """Return the operation that the document describes."""
    return Result(limit=given.limit)

"""`sql`: a step that is a query."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.kind import Fill, StepOperation

_MAX_DESCRIPTION: Final = 100


class Sql(StepOperation, frozen=True, kw_only=True, tag="sql"):
    """A query over views named as the input steps; parameters are bound by name, never pasted in."""

    kind: ClassVar[str] = "sql"

    query: str

    def describe(self) -> str:
        """Return the beginning of the query."""
        text = " ".join(self.query.split())
        return f"sql: {text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + '…'}"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - any number will do
        """Yield a problem for an empty query; Spark's analysis finds all others."""
        if not self.query.strip():
            yield Problem(field="sql", message="the query is empty")


def read(given: str, fill: Fill) -> Sql:  # noqa: ARG001 - parameters are bound (`:name`)
    """Return the operation that the document describes."""
    return Sql(query=given)

"""`function`: a step that calls a PySpark function."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.kind import Fill, StepForm, StepOperation

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Function(StepOperation, frozen=True, kw_only=True, tag="function"):
    """A PySpark function from DataFrames to a DataFrame: pickled (`pickle` names an artifact) or imported."""

    kind: ClassVar[str] = "function"

    reference: str | None = None  # "package.module:name", found in the artifacts
    pickle: str | None = None  # an artifact's name

    def describe(self) -> str:
        """Return the function's name, where it has one."""
        return f"function: {self.reference}" if self.reference else "function: pickled"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - any number will do
        """Yield what keeps the function from being found."""
        if (self.reference is None) == (self.pickle is None):
            yield Problem(field="function", message="needs either 'module:name' or a pickled function")
        elif self.reference is not None and not _REFERENCE.fullmatch(self.reference):
            message = f"{self.reference!r} does not have the form 'package.module:name'"
            yield Problem(field="function", message=message)
        elif self.pickle is not None and self.pickle not in artifacts:
            message = f"the pickled function {self.pickle!r} is not among the artifacts"
            yield Problem(field="function", message=message)


class PickleSpec(StepForm, frozen=True, kw_only=True):
    """`function: {pickle: …}`: the name of an artifact that holds a cloudpickled function."""

    pickle: str


def read(given: str | PickleSpec, fill: Fill) -> Function:  # noqa: ARG001 - a name has no parameters
    """Return the operation that the document describes."""
    return Function(pickle=given.pickle) if isinstance(given, PickleSpec) else Function(reference=given)

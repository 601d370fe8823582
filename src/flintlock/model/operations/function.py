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
    place: str = ""  # name, file and line of a pickled function, for people

    def describe(self) -> str:
        """Return the function's name and, of a pickled one, where it was defined."""
        return f"function: {self.reference or self.place or 'pickled'}"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:  # noqa: ARG002 - any number will do
        """Yield what keeps the function from being found."""
        yield from function_problems(self.kind, self.reference, self.pickle, artifacts)


def is_reference(text: str) -> bool:
    """Return whether a text names something in a module, as `package.module:name`."""
    return _REFERENCE.fullmatch(text) is not None


def function_problems(
    kind: str, reference: str | None, pickle: str | None, artifacts: Collection[str]
) -> Iterator[Problem]:
    """Yield what keeps a function from being found, that of a step of this kind."""
    if (reference is None) == (pickle is None):
        yield Problem(field=kind, message="needs either 'module:name' or a pickled function")
    elif reference is not None and not is_reference(reference):
        yield Problem(field=kind, message=f"{reference!r} does not have the form 'package.module:name'")
    elif pickle is not None and pickle not in artifacts:
        yield Problem(field=kind, message=f"the pickled function {pickle!r} is not among the artifacts")


class PickleSpec(StepForm, frozen=True, kw_only=True):
    """`function: {pickle: …}`: the name of an artifact that holds a cloudpickled function, and where it was defined."""

    pickle: str
    place: str = ""


def read(given: str | PickleSpec, fill: Fill) -> Function:  # noqa: ARG001 - a name has no parameters
    """Return the operation that the document describes."""
    if isinstance(given, PickleSpec):
        return Function(pickle=given.pickle, place=given.place)
    return Function(reference=given)

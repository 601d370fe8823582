"""`foreachBatch`: a sink of a streaming job that calls a PySpark function with each micro-batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.function import PickleSpec, function_problems
from flintlock.model.operations.kind import Fill, Guarantee, StepOperation


class ForeachBatch(StepOperation, frozen=True, kw_only=True, tag="foreachBatch"):
    """Call a function with the rows and the id of each micro-batch: pickled (`pickle` names an artifact) or imported.

    A batch that may have been interrupted is repeated with the same id.
    """

    kind: ClassVar[str] = "foreachBatch"
    label: ClassVar[str | None] = "Sink"
    has_output: ClassVar[bool] = False
    writes: ClassVar[bool] = True
    streams_only: ClassVar[bool] = True

    reference: str | None = None  # "package.module:name", found in the artifacts
    pickle: str | None = None  # an artifact's name
    place: str = ""  # name, file and line of a pickled function, for people

    @property
    def guarantee(self) -> Guarantee:
        """A function that ignores ids that it has seen makes it exactly once."""
        return Guarantee.BATCH_ID

    def describe(self) -> str:
        """Return the function's name and, of a pickled one, where it was defined."""
        return f"foreachBatch: {self.reference or self.place or 'pickled'}"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:
        """Yield what keeps the function from being found."""
        if inputs != 1:
            yield Problem(field="inputs", message=f"foreachBatch needs exactly one input, not {inputs}")
        yield from function_problems(self.kind, self.reference, self.pickle, artifacts)


def read(given: str | PickleSpec, fill: Fill) -> ForeachBatch:  # noqa: ARG001 - a name has no parameters
    """Return the operation that the document describes."""
    if isinstance(given, PickleSpec):
        return ForeachBatch(pickle=given.pickle, place=given.place)
    return ForeachBatch(reference=given)

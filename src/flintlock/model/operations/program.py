"""`program`: a script that is a job of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.kind import Fill, Guarantee, StepForm, StepOperation


class Program(StepOperation, frozen=True, kw_only=True, tag="program"):
    """An unmodified PySpark script (the name of an artifact) with its own arguments."""

    kind: ClassVar[str] = "program"
    label: ClassVar[str | None] = "Program"
    has_output: ClassVar[bool] = False
    writes: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    file: str
    args: tuple[str, ...] = ()

    @property
    def guarantee(self) -> Guarantee:
        """A script that is run again does all of its work again."""
        return Guarantee.AT_LEAST_ONCE

    def describe(self) -> str:
        """Return the command line."""
        return f"program: {' '.join([self.file, *self.args])}"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:
        """Yield what keeps it from being run."""
        if inputs:
            yield Problem(field="inputs", message="a program has no inputs")
        if self.file not in artifacts:
            yield Problem(field="program", message=f"the file {self.file!r} is not among the job's artifacts")


class ProgramSpec(StepForm, frozen=True, kw_only=True):
    """`program:` of a step."""

    file: str
    args: tuple[str, ...] = ()


def read(given: ProgramSpec, fill: Fill) -> Program:
    """Return the operation that the document describes."""
    return Program(file=given.file, args=tuple(fill(arg) for arg in given.args))

"""`program`: a script that is a job of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from flintlock.model.checking.problems import Problem
from flintlock.model.operations.kind import Fill, Guarantee, StepForm, StepOperation

_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Program(StepOperation, frozen=True, kw_only=True, tag="program"):
    """An unmodified PySpark script with its own arguments.

    `file` is the name of an artifact: the script, or, where `module` is given, the zip or file with that module, which
    is run as `python -m` runs it.
    """

    kind: ClassVar[str] = "program"
    label: ClassVar[str | None] = "Program"
    has_output: ClassVar[bool] = False
    writes: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    file: str
    args: tuple[str, ...] = ()
    module: str = ""

    @property
    def script(self) -> str:
        """The script's name: that of the module, or of the file."""
        return self.module or self.file

    @property
    def guarantee(self) -> Guarantee:
        """A script that is run again does all of its work again."""
        return Guarantee.AT_LEAST_ONCE

    def describe(self) -> str:
        """Return the command line."""
        return f"program: {' '.join([self.script, *self.args])}"

    def problems(self, inputs: int, artifacts: Collection[str]) -> Iterator[Problem]:
        """Yield what keeps it from being run."""
        if inputs:
            yield Problem(field="inputs", message="a program has no inputs")
        if self.file not in artifacts:
            yield Problem(field="program", message=f"the file {self.file!r} is not among the job's artifacts")
        if self.module and not _MODULE.fullmatch(self.module):
            yield Problem(
                field="program", message=f"{self.module!r} is not the name of a module, such as package.module"
            )


class ProgramSpec(StepForm, frozen=True, kw_only=True):
    """`program:` of a step."""

    file: str
    args: tuple[str, ...] = ()
    module: str = ""


def read(given: ProgramSpec, fill: Fill) -> Program:
    """Return the operation that the document describes."""
    return Program(file=given.file, args=tuple(fill(arg) for arg in given.args), module=given.module)

"""`program`: a script that is a job of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import ClassVar, Final

from msgspec import field

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.operations.kind import ConfigValue, Fill, Guarantee, StepForm, StepOperation, config_text

#: Variables by which Flintlock and PySpark find each other.
_RESERVED: Final = ("FLINTLOCK_", "PYSPARK_GATEWAY_", "_PYSPARK_")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Program(StepOperation, frozen=True, kw_only=True, tag="program"):
    """An unmodified PySpark script with its own arguments.

    `file` is the name of an artifact: the script, or, where `module` is given, the zip or file with that module, which
    is run as `python -m` runs it. `env` are environment variables that it gets in addition to those of its process.
    `path` is where the script, or the module's file or folder, was on the host that it was submitted from.
    """

    kind: ClassVar[str] = "program"
    label: ClassVar[str | None] = "Program"
    has_output: ClassVar[bool] = False
    writes: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    file: str
    args: tuple[str, ...] = ()
    module: str = ""
    env: dict[str, str] = field(default_factory=dict)
    path: str = ""  # absolute; empty if it is not known

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
        if self.path and (not self.path.startswith("/") or "\0" in self.path):
            yield Problem(field="program.path", message=f"{abbreviated(self.path)!r} is not an absolute path")
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                yield Problem(
                    field="program.env",
                    message=f"{abbreviated(name)!r} cannot be the name of an environment variable: use letters, digits "
                    "and '_'",
                )
            elif name.startswith(_RESERVED):
                yield Problem(field="program.env", message=f"the variable {abbreviated(name)!r} is Flintlock's own")
            elif "\0" in value:
                yield Problem(field="program.env", message=f"the value of {abbreviated(name)!r} has a null character")


class ProgramSpec(StepForm, frozen=True, kw_only=True):
    """`program:` of a step."""

    file: str
    args: tuple[str, ...] = ()
    module: str = ""
    env: dict[str, ConfigValue] = field(default_factory=dict)
    path: str = ""  # set by a client


def read(given: ProgramSpec, fill: Fill) -> Program:
    """Return the operation that the document describes."""
    return Program(
        file=given.file,
        args=tuple(fill(arg) for arg in given.args),
        module=given.module,
        env={name: fill(config_text(value)) for name, value in given.env.items()},
        path=given.path,
    )

"""Programs: unmodified PySpark scripts, run as the interpreter would run them.

On the shared engine `SparkSession.builder.getOrCreate()` finds the session that the runner has opened. On a dedicated
one the runner has started a driver's JVM of its own, and PySpark finds its gateway in the environment; master and
settings were given to that JVM.

Rejected: a new Python process for a program. A forked runner that has opened nothing has the same modules that the
script is about to import, a second earlier; and what a process needs to be killed, heard and limited is there already.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final

from flintlock.model.operations import Program
from flintlock.spark.region.artifacts import Artifacts


class ExitCode(Exception):
    """The program ended by itself, with a code that is not zero. Its last output is with whoever captures it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code: Final = code


def run_program(program: Program, artifacts: Artifacts) -> None:
    """Run the script to its end. Raises what it raises, and ExitCode if it exits with anything but success."""
    script = artifacts.path(program.file)
    sys.argv = [str(script), *program.args]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        code = _exit_code(ended)
        if code != 0:
            _end_of_interpreter()
            raise ExitCode(code) from None
    _end_of_interpreter()


def gateway_environment(port: int, secret: str) -> Mapping[str, str]:
    """Return what makes PySpark use a driver's JVM that runs already."""
    return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


def _exit_code(ended: SystemExit) -> int:
    """Return the process's exit code, as Python decides it; a text is printed and means 1."""
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _end_of_interpreter() -> None:
    """Do what Python does at its end: wait for the script's threads, call what it registered with atexit.

    A runner ends by `os._exit`, which does neither. There is no public way to ask for both.
    """
    for module, name in ((threading, "_shutdown"), (atexit, "_run_exitfuncs")):
        act: Callable[[], None] | None = getattr(module, name, None)
        if act is not None:
            act()

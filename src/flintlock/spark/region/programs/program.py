"""Programs: unmodified PySpark scripts, run as the interpreter would run them.

On the shared engine `SparkSession.builder.getOrCreate()` finds the session that the runner has opened. On a dedicated
engine the runner has started the JVM of a driver, and PySpark finds its gateway in the environment; that JVM was
started with the master and the settings.

Rejected: a new Python process for a program. A forked runner has already loaded the modules that the script imports,
which saves a second, and already has what kills a process, captures its output and limits its memory.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import thread as futures
from typing import Final

from flintlock.model.operations import Program
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.programs.lasting_tables import TableRefused


class ExitCode(Exception):
    """The program exited by itself with a code other than zero. Its output is in the task's log."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code: Final = code


def run_program(program: Program, artifacts: Artifacts) -> None:
    """Run the script to its end. Raises what it raises, and ExitCode if it exits with anything but success."""
    script = artifacts.path(program.file)
    sys.argv = [str(script), *program.args]
    sys.path.insert(0, str(script.parent))
    try:
        if program.module:
            # Unpacked beside the archive: a package finds its data files, and frames have the paths of the sources.
            artifacts.unpack(program.file)
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        code = _exit_code(ended)
        if code != 0:
            _run_exit_hooks()
            raise ExitCode(code) from None
    _run_exit_hooks()


def ignore_masters() -> None:
    """Have scripts that set `spark.master` use the shared engine all the same, and say so in their output.

    PySpark refuses a master beside the address of a Connect server, which it quotes with the engine's token.
    """
    from pyspark.sql import SparkSession

    noted: set[str] = set()

    def validate(builder: SparkSession.Builder) -> None:
        options: dict[str, str] = getattr(builder, "_options")  # noqa: B009
        master = options.pop("spark.master", None)
        if master is not None and master not in noted:
            noted.add(master)
            sys.stderr.write(
                f"[flintlock: the master {master!r} is ignored, the job runs on the shared engine; "
                "--engine dedicated gives it a driver of its own]\n"
            )

    os.environ.pop("MASTER", None)
    setattr(SparkSession.Builder, "_validate_startup_urls", validate)  # noqa: B010


def note_late_settings() -> None:
    """Have scripts on a dedicated engine say which of their settings come too late: the driver's JVM runs already."""
    from pyspark.sql import SparkSession

    get_or_create = SparkSession.Builder.getOrCreate
    noted: set[str] = set()

    def noting(builder: SparkSession.Builder) -> SparkSession:
        options: dict[str, str] = getattr(builder, "_options")  # noqa: B009
        for key in sorted(_AT_START.intersection(options) - noted):
            noted.add(key)
            sys.stderr.write(
                f"[flintlock: {key} is ignored, the driver runs already; set it with -D {key}={options[key]}]\n"
            )
        return get_or_create(builder)

    setattr(SparkSession.Builder, "getOrCreate", noting)  # noqa: B010


#: Settings of a driver's JVM and of the launcher that starts it, which a session cannot change.
_AT_START: Final = frozenset({
    "spark.driver.memory", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath", "spark.jars.packages", "spark.jars.repositories",
})  # fmt: skip


def needs_driver(error: BaseException) -> bool:
    """Return whether a program failed because the shared engine has no SparkContext, RDDs, JVM or tables for it."""
    spark = SparkError(error)
    return isinstance(error, TableRefused) or (
        spark.is_spark
        and (spark.error_class in _NEEDS_DRIVER or (spark.error_class == "NOT_IMPLEMENTED" and "rdd" in spark.message))
    )


#: What Spark Connect says to scripts that need a driver of their own.
_NEEDS_DRIVER: Final = frozenset({"JVM_ATTRIBUTE_NOT_SUPPORTED", "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT"})


def gateway_environment(port: int, secret: str) -> Mapping[str, str]:
    """Return the variables that make PySpark use a driver's JVM that runs already."""
    return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


def _exit_code(ended: SystemExit) -> int:
    """Return the exit code by Python's rules: a text is printed and means 1."""
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _run_exit_hooks() -> None:
    """Do what Python does when it exits: wait for the script's threads, call the functions registered with atexit.

    A runner ends by `os._exit`, which does neither. Python has no public API for both.
    """
    for module, name in ((threading, "_shutdown"), (atexit, "_run_exitfuncs")):
        act: Callable[[], None] | None = getattr(module, name, None)
        if act is not None:
            act()
        # Waiting for the threads has closed all executors. Connect's client needs one for each call, and Spark is still
        # called: to stop a query that is left, by the script's own exit functions or by the runner.
        setattr(futures, "_shutdown", False)  # noqa: B010

"""Programs: unmodified PySpark scripts, run as the interpreter would run them.

On the shared engine `SparkSession.builder.getOrCreate()` finds the session that the runner has opened. On a dedicated
engine the runner has started the JVM of a driver, and PySpark finds its gateway in the environment; that JVM was
started with the master and the settings.

Rejected: a new Python process for a program. A forked runner has already loaded the modules that the script imports,
which saves a second, and already has what kills a process, captures its output and limits its memory.
"""

from __future__ import annotations

import ast
import atexit
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import thread as futures
from contextlib import suppress
from typing import Any, Final

from flintlock.model.checking.dependencies import STATIC_SETTINGS
from flintlock.model.operations import Program
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.programs.lasting_tables import TableRefused
from flintlock.spark.region.programs.python_paths import PythonPaths
from flintlock.spark.region.programs.script_place import ScriptPlace


class ExitCode(Exception):
    """The program exited by itself with a code other than zero. Its output is in the task's log."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code: Final = code


def run_program(program: Program, place: ScriptPlace) -> None:
    """Run the script to its end. Raises what it raises, and ExitCode if it exits with anything but success."""
    sys.argv = [str(place.script), *program.args]
    sys.path.insert(0, str(place.folder))
    sys.dont_write_bytecode = True  # beside the script: in a folder of its user, or in a directory that is removed
    try:
        if program.module:
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(place.script), run_name="__main__")
    except SystemExit as ended:
        code = _exit_code(ended)
        if code != 0:
            _run_exit_hooks()
            raise ExitCode(code) from None
    _run_exit_hooks()


def refuse_relative_paths(program: Program, artifacts: Artifacts, problem: str) -> None:
    """Have relative paths of Python refused from now on. Raises TaskError for one that is found in the script.

    `problem` says why they have no directory to start in.
    """
    checked = PythonPaths(problem, artifacts.directory)
    if not program.module:
        with suppress(SyntaxError, ValueError):  # running the script reports that
            checked.check_script(ast.parse(artifacts.path(program.file).read_bytes()))
    checked.watch()


def set_environment(program: Program) -> None:
    """Give this process the program's environment variables; a driver that it starts later inherits them."""
    os.environ.update(program.env)
    if "TZ" in program.env:
        time.tzset()


class DriverRequested(TaskError):
    """A program on the shared engine has asked for something that only a driver of its own has."""

    def __init__(self, what: str) -> None:
        super().__init__(FailureKind.CONFIGURATION, f"{what} needs a Spark driver of its own")


def ignore_masters(setting: Callable[[str], str | None] | None = None) -> None:
    """Have scripts that set `spark.master` use the shared engine all the same, and say so in their output.

    PySpark refuses a master beside the address of a Connect server, which it quotes with the engine's token. With
    `setting`, which returns the engine's value of a setting, a script that sets another value for one that is fixed
    when Spark starts (Hive support is one) asks for a driver: DriverRequested is raised where it does.
    """
    from pyspark.sql import SparkSession

    noted: set[str] = set()

    def validate(builder: SparkSession.Builder) -> None:
        options: dict[str, str] = getattr(builder, "_options")  # noqa: B009
        for key in sorted(STATIC_SETTINGS.intersection(options)) if setting is not None else ():
            if setting is not None and setting(key) != options[key]:
                raise DriverRequested(f"the setting {key}={options[key]}, which is fixed when Spark starts,")
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
                f"[flintlock: {key} is ignored, the driver is already running; set it with -D {key}={options[key]}]\n"
            )
        return get_or_create(builder)

    setattr(SparkSession.Builder, "getOrCreate", noting)  # noqa: B010


#: Settings of a driver's JVM and of the launcher that starts it, which a session cannot change.
_AT_START: Final = frozenset({
    "spark.driver.memory", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath", "spark.jars.packages", "spark.jars.repositories",
})  # fmt: skip


def check_similarity_join(message: Any) -> None:
    """Raise DriverRequested for a similarity join that Spark Connect executes with another column than requested.

    It ignores the name that is given for the column of distances, which would be missing later.
    """
    if message.DESCRIPTOR.full_name != "spark.connect.Command" or not message.HasField("ml_command"):
        return
    for method in message.ml_command.fetch.methods:
        names = [arg.param.string for arg in method.args[_DISTANCE_ARGUMENT:]]
        if method.method == "approxSimilarityJoin" and names != [_DISTANCE_COLUMN]:
            raise DriverRequested(f"approxSimilarityJoin with distCol={''.join(names)!r}")


_DISTANCE_ARGUMENT: Final = 3
_DISTANCE_COLUMN: Final = "distCol"  # the default


def needs_driver(error: BaseException) -> bool:
    """Return whether a program failed because the shared engine has no driver for it.

    That is: no SparkContext, RDDs, JVM or tables, not its settings, and not all of MLlib.
    """
    spark = SparkError(error)
    return isinstance(error, TableRefused | DriverRequested) or (
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

"""Reading a job file as its steps will run: with the classes of Spark Connect, and without a session.

UDFs, columns and windows at the top of a job file are made when the file is read. Made by classic PySpark they need a
driver, and do not work in a Connect session. Connect makes all of them without a session, but for a return type that is
given as text: it is parsed here when the UDF is first used, in the session of its task.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"


@contextmanager
def reading_for_connect(file: Path) -> Generator[None]:
    """Have `pyspark` make Connect's objects. Does nothing where PySpark is not installed."""
    if find_spec("pyspark") is None:
        yield
        return
    if b"udf" in file.read_bytes():
        _parse_types_late()
    former = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        yield
    finally:
        if former is None:
            del os.environ[_MODE]
        else:
            os.environ[_MODE] = former


def _parse_types_late() -> None:
    """Have a UDF whose return type is text keep the text while there is no session that could parse it."""
    user_defined: Any = import_module("pyspark.sql.connect.udf").UserDefinedFunction
    unparsed: Any = import_module("pyspark.sql.connect.types").UnparsedDataType
    error: Any = import_module("pyspark.errors").PySparkRuntimeError
    parse: Any = user_defined.returnType.fget

    def return_type(udf: Any) -> Any:
        try:
            return parse(udf)
        except error as problem:
            if problem.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
                raise
            return unparsed(getattr(udf, "_returnType"))  # noqa: B009

    user_defined.returnType = property(return_type)

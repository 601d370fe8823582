"""Reading a job file as its steps will run: with the classes of Spark Connect, and without a session.

UDFs, columns and windows at the top of a job file are made when the file is read. Made by classic PySpark they need a
driver, and do not work in a Connect session. Connect makes all of them without a session, but for a return type that is
given as text: it is parsed here when the UDF is first used, in the session of its task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_UDFS: Final = "pyspark.sql.connect.udf"


@contextmanager
def reading_for_connect() -> Generator[None]:
    """Have `pyspark` make Connect's objects, in a file and the modules that it imports. Nothing without PySpark."""
    if find_spec("pyspark") is None:
        yield
        return
    former = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    finder = _LateTypes()
    if _UDFS in sys.modules:
        _parse_types_late(sys.modules[_UDFS])
    else:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        if former is None:
            del os.environ[_MODE]
        else:
            os.environ[_MODE] = former


class _LateTypes(MetaPathFinder):
    """Finds Connect's module of UDFs, which takes long to import, for whatever file makes the first one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that changes the module after it was loaded."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _UDFS else None
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        load = loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            _parse_types_late(module)

        loader.exec_module = load_and_change
        return spec


def _parse_types_late(module: ModuleType) -> None:
    """Have a UDF whose return type is text keep the text while there is no session that could parse it. Idempotent."""
    user_defined: Any = getattr(module, "UserDefinedFunction")  # noqa: B009
    unparsed: Any = import_module("pyspark.sql.connect.types").UnparsedDataType
    error: Any = import_module("pyspark.errors").PySparkRuntimeError
    parse: Any = user_defined.returnType.fget
    if parse.__module__ == __name__:
        return

    def return_type(udf: Any) -> Any:
        try:
            return parse(udf)
        except error as problem:
            if problem.getCondition() != "NO_ACTIVE_OR_DEFAULT_SESSION":
                raise
            return unparsed(getattr(udf, "_returnType"))  # noqa: B009

    user_defined.returnType = property(return_type)

"""Reads exceptions of PySpark, of Connect or classic. Imports no PySpark: it goes by the names of types and methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast


class SparkError:
    """The properties of one exception, which may be of any type."""

    def __init__(self, error: BaseException) -> None:
        self._error: Final = error

    @property
    def is_spark(self) -> bool:
        """Whether its type is one of PySpark or py4j."""
        return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(self._error).__mro__)

    @property
    def from_server(self) -> bool:
        """Whether Spark's JVM raised it, rather than PySpark's own checks of its arguments."""
        return any(
            kind.__module__.startswith(
                ("pyspark.errors.exceptions.connect", "pyspark.errors.exceptions.captured", "py4j.")
            )
            for kind in type(self._error).__mro__
        )

    @property
    def message(self) -> str:
        """The complete message."""
        try:
            return str(self._error)
        except Exception:  # noqa: BLE001 - a classic one calls its JVM, which may have exited
            return str(getattr(self._error, "_desc", "")) or repr(type(self._error))

    @property
    def error_class(self) -> str | None:
        """Spark's name for the error, if it has one."""
        return self._call_for_text("getCondition")

    @property
    def sql_state(self) -> str | None:
        """The SQLSTATE, if it has one."""
        return self._call_for_text("getSqlState")

    @property
    def jvm_stack_trace(self) -> str | None:
        """The JVM's stack, if there is one."""
        trace = self._call_for_text("getStackTrace") or getattr(self._error, "_stackTrace", None)
        if isinstance(trace, str) and trace:
            return trace
        _, found, rest = self.message.partition("\n\tat ")
        return f"\tat {rest}" if found and self.is_spark else None

    @property
    def connection_lost(self) -> bool:
        """Whether it means that the engine cannot be reached or has no such session any more."""
        status: object = self._call("getGrpcStatusCode") or self._call("code")
        lost_session = (self.error_class or "").startswith("INVALID_HANDLE.SESSION")
        lost_gateway = type(self._error).__name__ == "Py4JNetworkError"
        return getattr(status, "name", "") == "UNAVAILABLE" or lost_session or lost_gateway

    def contexts(self) -> list[Any]:
        """Return the query contexts that it refers to."""
        found: object = self._call("getQueryContext")
        return cast("list[Any]", found) if isinstance(found, list) else []

    def _call_for_text(self, method: str) -> str | None:
        answer = self._call(method)
        return answer if isinstance(answer, str) and answer else None

    def _call(self, method: str) -> object:
        accessor: Callable[[], object] | None = getattr(self._error, method, None)
        if accessor is None:
            return None
        try:
            return accessor()
        except Exception:  # noqa: BLE001 - a failing accessor must not hide the exception
            return None


def spark_error_text(error: BaseException) -> tuple[str, str]:
    """Return Spark's error class, and its message with the JVM's stack; both empty if the error is not Spark's."""
    spark = SparkError(error)
    if not spark.is_spark:
        return "", ""
    return spark.error_class or "", f"{spark.message}\n{spark.jvm_stack_trace or ''}"

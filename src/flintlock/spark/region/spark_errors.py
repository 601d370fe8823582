"""What an exception of PySpark, Connect's or the classic one, tells of itself. Knows no PySpark: it looks at names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast


class SparkError:
    """Reads one exception, whatever it is."""

    def __init__(self, error: BaseException) -> None:
        self._error: Final = error

    @property
    def is_spark(self) -> bool:
        """Whether PySpark, or what is under it, raised it."""
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
        """All that it says."""
        try:
            return str(self._error)
        except Exception:  # noqa: BLE001 - a classic one asks its JVM, which may be gone
            return str(getattr(self._error, "_desc", "")) or repr(type(self._error))

    @property
    def error_class(self) -> str | None:
        """Spark's name for the error, if it has one."""
        return self._ask("getCondition")

    @property
    def sql_state(self) -> str | None:
        """The SQL standard's, if it has one."""
        return self._ask("getSqlState")

    @property
    def jvm_stack_trace(self) -> str | None:
        """The JVM's stack, if there is one."""
        told = self._ask("getStackTrace") or getattr(self._error, "_stackTrace", None)
        if isinstance(told, str) and told:
            return told
        _, found, rest = self.message.partition("\n\tat ")
        return f"\tat {rest}" if found and self.is_spark else None

    @property
    def connection_lost(self) -> bool:
        """Whether it says that there is no engine, or no session, at the other end any more."""
        status: object = self._call("getGrpcStatusCode") or self._call("code")
        lost_session = (self.error_class or "").startswith("INVALID_HANDLE.SESSION")
        lost_gateway = type(self._error).__name__ == "Py4JNetworkError"
        return getattr(status, "name", "") == "UNAVAILABLE" or lost_session or lost_gateway

    def contexts(self) -> list[Any]:
        """Return the pieces of the query that it points at."""
        found: object = self._call("getQueryContext")
        return cast("list[Any]", found) if isinstance(found, list) else []

    def _ask(self, method: str) -> str | None:
        answer = self._call(method)
        return answer if isinstance(answer, str) and answer else None

    def _call(self, method: str) -> object:
        ask: Callable[[], object] | None = getattr(self._error, method, None)
        if ask is None:
            return None
        try:
            return ask()
        except Exception:  # noqa: BLE001 - an exception that cannot tell about itself must not hide itself
            return None


def spark_words(error: BaseException) -> tuple[str, str]:
    """Return Spark's error class and all that it says, the JVM's stack included; empty for what is not Spark's."""
    spark = SparkError(error)
    if not spark.is_spark:
        return "", ""
    return spark.error_class or "", f"{spark.message}\n{spark.jvm_stack_trace or ''}"

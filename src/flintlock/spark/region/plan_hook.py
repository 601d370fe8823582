"""The two places where all plans of Spark Connect that user code makes can be seen before they are sent.

Relations and commands are put into plans by one method; a relation that is cached is sent without a plan, by another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def on_every_plan(check: Callable[[Any], None]) -> None:
    """Call `check` with each relation and command that PySpark sends from this process; what it raises stops them."""
    from pyspark.sql.connect.client import SparkConnectClient

    send: Callable[..., None] = getattr(SparkConnectClient, "_try_compress_and_set_plan")  # noqa: B009

    def check_and_send(client: Any, plan: Any, message: Any, op_type: Any) -> None:
        check(message)
        send(client, plan=plan, message=message, op_type=op_type)

    analyze: Callable[..., Any] = getattr(SparkConnectClient, "_analyze")  # noqa: B009

    def check_and_analyze(client: Any, method: str, **values: Any) -> Any:
        if "relation" in values:
            check(values["relation"])
        return analyze(client, method, **values)

    setattr(SparkConnectClient, "_try_compress_and_set_plan", check_and_send)  # noqa: B010
    setattr(SparkConnectClient, "_analyze", check_and_analyze)  # noqa: B010

"""The one place where all plans of Spark Connect that user code makes can be seen before they are sent."""

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

    setattr(SparkConnectClient, "_try_compress_and_set_plan", check_and_send)  # noqa: B010

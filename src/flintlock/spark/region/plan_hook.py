"""The places where all plans of Spark Connect that user code makes can be seen: before they are sent, and executed.

Relations and commands are put into plans by one method; a relation that is cached is sent without a plan, by another.
What is executed is sent by two others, after that.
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


def on_every_execution(note: Callable[[Any], None]) -> None:
    """Call `note` with each plan that is about to be executed. What `on_every_plan` refuses does not come as far."""
    from pyspark.sql.connect.client import SparkConnectClient

    def noted(execute: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_execute(client: Any, req: Any, *args: Any, **more: Any) -> Any:
            note(req.plan)
            return execute(client, req, *args, **more)

        return note_and_execute

    for name in ("_execute", "_execute_and_fetch_as_iterator"):
        setattr(SparkConnectClient, name, noted(getattr(SparkConnectClient, name)))


def statement_of(command: Any) -> str:
    """Return the text of a command that is an SQL statement, with or without DataFrames that it uses as views."""
    relation = command.input
    if relation.HasField("with_relations"):
        relation = relation.with_relations.root
    text: str = command.sql or relation.sql.query
    return text

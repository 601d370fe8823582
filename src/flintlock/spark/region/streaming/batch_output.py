"""The output of streaming queries on a shared engine: what their Python functions print, and rows for a console.

Spark Connect runs a function of foreachBatch in a process of the engine that has no Spark task, so that its output
would be in the engine's log. Here the function itself brings the pipe of its attempt with it.

Spark prints the rows of the sink `console` where the driver runs, into the engine's log, too. Here such a sink becomes
a function of foreachBatch that prints what the sink would print. Rejected: a driver of its own for such a program. It
costs seconds and the memory of a JVM, and may not be had, where the executors of the shared engine hold all cores for
instance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from flintlock.spark.region.plan_hook import on_every_plan

BatchFunction: TypeAlias = Callable[[Any, int], object]

CONSOLE: Final = "console"
_NOTE: Final = (
    "[flintlock: rows that are written to 'console' are printed by the shared engine into its own log, and not here:"
    " flintlock logs --taskmanager ID --engine. With --engine dedicated they are here]\n"
)
#: Triggers with which foreachBatch cannot be used.
_WITHOUT_BATCHES: Final = frozenset({"continuous_checkpoint_interval", "real_time_batch_duration"})
_RULE: Final = "-" * 43  # as Spark draws it


def bind_output(spark: Any) -> None:
    """Have what streaming queries print for this session's user reach the output of this process, from now on.

    That is what functions of foreachBatch print, and the rows for a console.
    """
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    user: str = getattr(spark.client, "_user_id")  # noqa: B009
    writer: Any = DataStreamWriter
    bind: Callable[[Any, BatchFunction], Any] = writer.foreachBatch

    def foreach_batch(stream: Any, func: BatchFunction) -> Any:
        return bind(stream, printing(func, user))

    writer.foreachBatch = foreach_batch
    on_every_plan(ConsoleSinks(user).redirect)


def printing(function: BatchFunction, user: str) -> BatchFunction:
    """Return a function for foreachBatch whose output reaches the attempt of this Spark Connect user."""

    def call(batch: Any, batch_id: int) -> object:
        try:
            from flintlock.spark.engine.python.worker_output import printing_for
        except ImportError:  # another Python than the cluster's
            return function(batch, batch_id)
        with printing_for(user):
            return function(batch, batch_id)

    return call


class ConsoleSinks:
    """Has rows for a console printed in the output of their attempt, or says there where they are instead."""

    def __init__(self, user: str) -> None:
        self._user: Final = user  # of Spark Connect, whose attempt this is
        self._noted = False

    def redirect(self, message: Any) -> None:
        """Change a command of Spark Connect that writes to a console; any other is left as it is."""
        if message.DESCRIPTOR.full_name != "spark.connect.Command":
            return
        match message.WhichOneof("command_type"):
            case "write_stream_operation_start" if message.write_stream_operation_start.format.lower() == CONSOLE:
                start = message.write_stream_operation_start
                if start.WhichOneof("trigger") in _WITHOUT_BATCHES:
                    self._note()
                else:
                    self._print_batches(start)
            case "write_operation" if message.write_operation.source.lower() == CONSOLE:
                self._note()
            case _:
                pass

    def _print_batches(self, start: Any) -> None:
        from pyspark.serializers import CloudPickleSerializer
        from pyspark.sql.connect.utils import get_python_ver

        pickler: Any = CloudPickleSerializer()
        options = {key.lower(): value for key, value in start.options.items()}
        shown = show_batches(
            int(options.get("numrows", 20)), truncate=options.get("truncate", "true").lower() == "true"
        )
        start.ClearField("format")
        function = start.foreach_batch.python_function
        function.command = pickler.dumps(printing(shown, self._user))
        function.python_ver = get_python_ver()

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            sys.stderr.write(_NOTE)
            sys.stderr.flush()


def show_batches(rows: int, *, truncate: bool) -> BatchFunction:
    """Return a function for foreachBatch that prints each batch as Spark's console does."""
    rule = _RULE

    def show(batch: Any, batch_id: int) -> None:
        batch.persist()
        try:
            batch.count()  # all partitions: the state of those that are not computed would be lost
            print(f"{rule}\nBatch: {batch_id}\n{rule}")  # noqa: T201 - what the sink is for
            batch.show(rows, truncate)
        finally:
            batch.unpersist()

    return show

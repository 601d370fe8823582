"""The sink `console`: Spark prints its rows where the driver runs, which is the log of the engine if that is shared."""

from __future__ import annotations

import sys
from typing import Any, Final

from flintlock.model.jobgraph import EngineKind

CONSOLE: Final = "console"
_NOTE: Final = (
    "[flintlock: rows that are written to 'console' are printed by the shared engine into its own log, and not here:"
    " flintlock logs --taskmanager ID --engine. With --engine dedicated they are here]\n"
)


def note_console(engine: EngineKind) -> None:
    """Say in the output of the task where rows are that go to a console, unless they are there."""
    if engine is not EngineKind.DEDICATED:
        sys.stderr.write(_NOTE)
        sys.stderr.flush()


class ConsoleSinks:
    """Looks at the plans of a program on the shared engine, and says where the rows are that it writes to a console.

    Rejected: a driver of its own for such a program. It may not be had, where the executors of the shared engine hold
    all cores for instance, and a request for it may be swallowed by a thread or an `except`; the query would not run.
    """

    def __init__(self) -> None:
        self._noted = False

    def note_plan(self, message: Any) -> None:
        """Say once where the rows go, if this is a command that writes to a console."""
        if not self._noted and _writes_to_console(message):
            self._noted = True
            note_console(EngineKind.SHARED)


def _writes_to_console(message: Any) -> bool:
    if message.DESCRIPTOR.full_name != "spark.connect.Command":
        return False
    match message.WhichOneof("command_type"):
        case "write_stream_operation_start":
            return message.write_stream_operation_start.format.lower() == CONSOLE
        case "write_operation":
            return message.write_operation.source.lower() == CONSOLE
        case _:
            return False

"""Notices what a program has changed, so that it is begun again only where nothing would be done twice.

Python reports to audit hooks what touches anything outside of the process. Plans that Spark executes are seen where
PySpark's client sends them, so that one that was refused before does not count. Neither does what ends with the
session: temporary views, registered functions and SQL queries, whose rows nobody has requested yet. What a program
printed is in its log, twice if it begins again.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from flintlock.spark.region.plan_hook import on_every_execution, statement_of
from flintlock.spark.region.sql_text import lasts_beyond_session

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS: Final = (
    "subprocess.Popen", "socket.connect", "socket.sendto", "sqlite3.connect", "urllib.Request", "shutil.", "ftplib.",
    "smtplib.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove", "os.rename",
    "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime",
)  # fmt: skip

#: Commands of Spark Connect whose effect ends with their session.
_OF_SESSIONS: Final = frozenset({
    "create_dataframe_view", "get_resources_command", "register_data_source", "register_function",
    "register_table_function",
})  # fmt: skip


class SideEffects:
    """Watches this process from `watch` on."""

    def __init__(self, scratch: str) -> None:
        self._scratch: Final = os.path.join(scratch, "")  # noqa: PTH118 - with a separator at its end
        self.first: str | None = None  # what the program did first that must not be repeated; None if nothing

    def watch(self) -> None:
        """Watch from now on, to the end of the process."""
        on_every_execution(self.note_execution)
        sys.addaudithook(self.observe)

    def note_execution(self, plan: Any) -> None:
        """Note a plan of Spark Connect that is executed, unless it is a command that only changes its session."""
        if self.first is None and not (plan.HasField("command") and _is_of_session(plan.command)):
            self.first = "run a Spark action"

    def observe(self, event: str, args: tuple[Any, ...]) -> None:
        """Note an event of Python's audit if it changes something outside of this process and its directory."""
        if self.first is not None:
            return
        if event == "open":
            path, mode, flags = args
            if (isinstance(mode, str) and any(sign in mode for sign in "wax+")) or (mode is None and flags & _WRITING):
                self._note_file(path)
        elif event.startswith(_EVENTS):
            self.first = f"called {event}"

    def _note_file(self, path: object) -> None:
        name = path if isinstance(path, str) else os.fsdecode(path) if isinstance(path, bytes) else ""
        whole = os.path.abspath(name) if name else ""  # noqa: PTH100 - a link is the name that was opened
        if name and not whole.startswith((self._scratch, "/dev/", "/proc/self/")) and "__pycache__" not in whole:
            self.first = f"written to {name!r}"


def _is_of_session(command: Any) -> bool:
    kind: str | None = command.WhichOneof("command_type")
    if kind == "sql_command":
        return not lasts_beyond_session(statement_of(command.sql_command))
    return kind in _OF_SESSIONS

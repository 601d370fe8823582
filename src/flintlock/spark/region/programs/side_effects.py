"""Notices what a program has changed, so that it is begun again only where nothing would be done twice.

Python reports to audit hooks what touches anything outside of the process; plans that Spark executes pass through one
method of PySpark's client. What a program printed is in its log, twice if it begins again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS: Final = (
    "subprocess.Popen", "socket.connect", "socket.sendto", "sqlite3.connect", "urllib.Request", "shutil.", "ftplib.",
    "smtplib.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove", "os.rename",
    "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime",
)  # fmt: skip


class SideEffects:
    """Watches this process from `watch` on."""

    def __init__(self, scratch: str) -> None:
        self._scratch: Final = os.path.join(scratch, "")  # noqa: PTH118 - with a separator at its end
        self.first: str | None = None  # what the program did first that must not be repeated; None if nothing

    def watch(self) -> None:
        """Watch from now on, to the end of the process."""
        from pyspark.sql.connect.client import SparkConnectClient

        request: Callable[..., Any] = getattr(SparkConnectClient, "_execute_plan_request_with_metadata")  # noqa: B009

        def noted_request(*args: Any, **more: Any) -> Any:
            self.first = self.first or "run a Spark action"
            return request(*args, **more)

        setattr(SparkConnectClient, "_execute_plan_request_with_metadata", noted_request)  # noqa: B010
        sys.addaudithook(self.observe)

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

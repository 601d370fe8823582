"""What a JobManager process reports about itself: its log files, its interpreter, its stacks.

The log is found by where the process's own output goes, not by its name: under a service manager that may be nowhere
here, while the directory has a file of that name from an earlier process.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flintlock.api import process as shapes
from flintlock.host.log_rotation import log_of
from flintlock.model.diagnostics import ThreadStack
from flintlock.rest.secrets import arguments_without_secrets

_PIECE: Final = 1 << 18


@dataclass(frozen=True, kw_only=True)
class ProcessLogs:
    """Where the log files of this machine's processes are, and which of them is this process's own."""

    directory: Path | None = None
    log: Path | None = None  # where stderr goes, if that is a file in `directory`
    stdout: Path | None = None  # where stdout goes, likewise

    @staticmethod
    def of(directory: Path, *, stderr: int = 2, stdout: int = 1) -> ProcessLogs:
        """Find out where the process's output goes."""
        return ProcessLogs(directory=directory, log=log_of(directory, stderr), stdout=log_of(directory, stdout))

    def files(self) -> dict[str, os.stat_result]:
        """Return the log files by name: plain files in the directory, nothing beneath it and nothing hidden."""
        if self.directory is None or not self.directory.is_dir():
            return {}
        with os.scandir(self.directory) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False)
                for entry in sorted(entries, key=lambda entry: entry.name)
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            }


async def read_pieces(path: Path) -> AsyncGenerator[bytes]:
    """Yield a file as it is now, without what is written to it meanwhile."""
    with await asyncio.to_thread(path.open, "rb") as stream:
        left = os.fstat(stream.fileno()).st_size
        while left > 0:
            piece = await asyncio.to_thread(stream.read, min(_PIECE, left))
            if not piece:
                return  # it was truncated
            left -= len(piece)
            yield piece


def environment() -> shapes.Environment:
    """Return what this process runs on, in the fields that Flink has for its JVM."""
    return shapes.Environment(
        jvm=shapes.Interpreter(
            version=f"{platform.python_implementation()} {platform.python_version()}",
            arch=platform.machine(),
            options=arguments_without_secrets(sys.orig_argv[1:]),
        ),
        classpath=[path for path in sys.path if path],
    )


def thread_dump(stacks: Iterable[ThreadStack]) -> shapes.ThreadDump:
    """Return stacks in Flink's form."""
    return shapes.ThreadDump(
        thread_infos=[
            shapes.ThreadInfo(thread_name=stack.name, stringified_thread_info=stack.text) for stack in stacks
        ]
    )

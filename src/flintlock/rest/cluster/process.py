"""What a process reports about itself, in Flink's form: its log files, its interpreter, its stacks."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Final

from flintlock.api import process as shapes
from flintlock.model.diagnostics import LogFileInfo, ThreadStack
from flintlock.rest.secrets import arguments_without_secrets

TEXT: Final = "text/plain; charset=UTF-8"
_PIECE: Final = 1 << 18


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


def log_files(files: Iterable[LogFileInfo]) -> shapes.LogFiles:
    """Return log files in Flink's form."""
    return shapes.LogFiles(
        logs=[shapes.LogFile(name=file.name, size=file.size, mtime=file.modified_ms) for file in files]
    )


def thread_dump(stacks: Iterable[ThreadStack]) -> shapes.ThreadDump:
    """Return stacks in Flink's form."""
    return shapes.ThreadDump(
        thread_infos=[shapes.ThreadInfo(thread_name=stack.name, stringified_thread_info=stack.text) for stack in stacks]
    )

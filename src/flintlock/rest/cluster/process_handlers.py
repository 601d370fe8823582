"""Handlers of what the JobManager process tells of itself. They need no leader."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flintlock.api import process as shapes
from flintlock.model.errors import NotFound
from flintlock.rest.cluster import process
from flintlock.rest.server.http import Answer, Call, answer, no_such

_TEXT: Final = "text/plain; charset=UTF-8"


async def environment(_: Call) -> Answer:
    """What the JobManager runs on."""
    return answer(process.environment())


async def logs(call: Call) -> Answer:
    """The log files on the JobManager's machine."""
    return answer(
        shapes.LogFiles(
            logs=[
                shapes.LogFile(name=name, size=seen.st_size, mtime=seen.st_mtime_ns // 1_000_000)
                for name, seen in call.services.logs.files().items()
            ]
        )
    )


async def log_file(call: Call) -> Answer:
    """One of the log files."""
    name, known = call.path("file"), call.services.logs
    if known.directory is None or name not in known.files():
        raise no_such("log file", name)
    return _file(known.directory / name)


async def log(call: Call) -> Answer:
    """The JobManager's own log."""
    found = call.services.logs.log
    if found is None:
        raise NotFound("this JobManager does not write its log to a file: whoever started it has it")
    return _file(found)


async def stdout(call: Call) -> Answer:
    """What the JobManager has printed; where it prints into its log, that."""
    found = call.services.logs.stdout
    if found is None:
        raise NotFound("this JobManager does not print to a file: whoever started it has its output")
    return _file(found)


async def thread_dump(_: Call) -> Answer:
    """What every thread and every task of the JobManager does now."""
    return answer(process.thread_dump())


def _file(path: Path) -> Answer:
    return Answer(pieces=process.read_pieces(path), content_type=_TEXT)

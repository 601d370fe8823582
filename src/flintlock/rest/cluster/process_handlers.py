"""Handlers of the routes about the JobManager's own process. They need no leader."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flintlock.api import process as shapes
from flintlock.host.thread_dump import task_stacks, thread_stacks
from flintlock.model.errors import NotFound
from flintlock.rest.cluster import process
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such

_TEXT: Final = "text/plain; charset=UTF-8"


async def environment(_: RestCall) -> HttpResponse:
    """What the JobManager runs on."""
    return json_response(process.environment())


async def logs(call: RestCall) -> HttpResponse:
    """The log files on the JobManager's machine."""
    return json_response(
        shapes.LogFiles(
            logs=[
                shapes.LogFile(name=name, size=seen.st_size, mtime=seen.st_mtime_ns // 1_000_000)
                for name, seen in call.services.logs.files().items()
            ]
        )
    )


async def log_file(call: RestCall) -> HttpResponse:
    """One log file."""
    name, known = call.path("file"), call.services.logs
    if known.directory is None or name not in known.files():
        raise no_such("log file", name)
    return _file(known.directory / name)


async def log(call: RestCall) -> HttpResponse:
    """The JobManager's own log."""
    found = call.services.logs.log
    if found is None:
        raise NotFound("this JobManager does not write its log to a file: see the process that started it")
    return _file(found)


async def stdout(call: RestCall) -> HttpResponse:
    """What the JobManager has printed; its log if it prints there."""
    found = call.services.logs.stdout
    if found is None:
        raise NotFound("this JobManager does not print to a file: see the process that started it")
    return _file(found)


async def thread_dump(_: RestCall) -> HttpResponse:
    """The stack of every thread and every task of the JobManager."""
    return json_response(process.thread_dump((*thread_stacks(), *task_stacks())))


def _file(path: Path) -> HttpResponse:
    return HttpResponse(pieces=process.read_pieces(path), content_type=_TEXT)

"""Handlers of the routes about the JobManager's own process. They need no leader."""

from __future__ import annotations

from pathlib import Path

from flintlock.host.processes.thread_dump import task_stacks, thread_stacks
from flintlock.model.errors import NotFound
from flintlock.rest.cluster import process
from flintlock.rest.server.http import HttpResponse, RestCall, json_response, no_such


async def environment(_: RestCall) -> HttpResponse:
    """What the JobManager runs on."""
    return json_response(process.environment())


async def logs(call: RestCall) -> HttpResponse:
    """The log files on the JobManager's machine."""
    return json_response(process.log_files(call.services.logs.files()))


async def log_file(call: RestCall) -> HttpResponse:
    """One log file."""
    name = call.path("file")
    found = call.services.logs.find(name)
    if found is None:
        raise no_such("log file", name)
    return _file(found)


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
    return HttpResponse(pieces=process.read_pieces(path), content_type=process.TEXT)

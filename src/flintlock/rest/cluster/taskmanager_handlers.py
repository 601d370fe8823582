"""Handlers of the routes about a TaskManager's process: each is one query that the TaskManager answers."""

from __future__ import annotations

from typing import TypeVar

from flintlock.api.cluster import ConfigEntry
from flintlock.model.diagnostics import (
    DumpProcessThreads,
    ListProcessLogs,
    ProcessLogRead,
    ProcessLogsListed,
    ProcessQuery,
    ProcessSettingsRead,
    ProcessThreadsDumped,
    ReadProcessLog,
    ReadProcessSettings,
)
from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.rest.cluster import process
from flintlock.rest.server.http import HttpResponse, RestCall, json_response

A = TypeVar("A", ProcessThreadsDumped, ProcessLogsListed, ProcessLogRead, ProcessSettingsRead)


async def thread_dump(call: RestCall) -> HttpResponse:
    """The stack of every thread and every task of a TaskManager."""
    answer = await _ask(call, DumpProcessThreads(task_manager=_id(call)), ProcessThreadsDumped)
    return json_response(process.thread_dump(answer.stacks))


async def config(call: RestCall) -> HttpResponse:
    """A TaskManager's effective configuration."""
    answer = await _ask(call, ReadProcessSettings(task_manager=_id(call)), ProcessSettingsRead)
    return json_response([ConfigEntry(key=key, value=value) for key, value in answer.settings.items()])


async def logs(call: RestCall) -> HttpResponse:
    """The log files on a TaskManager's machine."""
    answer = await _ask(call, ListProcessLogs(task_manager=_id(call)), ProcessLogsListed)
    return json_response(process.log_files(answer.files))


async def log_file(call: RestCall) -> HttpResponse:
    """One log file of a TaskManager's machine, at most its last 4 MiB."""
    return await _read(call, ReadProcessLog(task_manager=_id(call), file=call.path("file")))


async def log(call: RestCall) -> HttpResponse:
    """A TaskManager's own log, at most its last 4 MiB."""
    return await _read(call, ReadProcessLog(task_manager=_id(call)))


async def engine_log(call: RestCall) -> HttpResponse:
    """The log of a TaskManager's Spark engine, at most its last 4 MiB."""
    return await _read(call, ReadProcessLog(task_manager=_id(call), engine=True))


async def stdout(call: RestCall) -> HttpResponse:
    """What a TaskManager has printed, at most the last 4 MiB; its log if it prints there."""
    return await _read(call, ReadProcessLog(task_manager=_id(call), stdout=True))


async def _read(call: RestCall, query: ReadProcessLog) -> HttpResponse:
    answer = await _ask(call, query, ProcessLogRead)
    return HttpResponse(body=answer.data, content_type=process.TEXT)


async def _ask(call: RestCall, query: ProcessQuery, kind: type[A]) -> A:
    answer = await call.services.resource_manager.query_task_manager(query)
    if not isinstance(answer, kind):
        raise Unavailable(f"TaskManager {query.task_manager} answered something else")
    return answer


def _id(call: RestCall) -> TaskManagerId:
    return TaskManagerId(call.path("taskmanagerid"))

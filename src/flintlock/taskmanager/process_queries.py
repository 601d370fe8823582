"""What a TaskManager answers about its own process. It needs neither an engine nor a leader's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from flintlock.host.logs.process_logs import ProcessLogs, read_last_lines
from flintlock.host.processes.thread_dump import task_stacks, thread_stacks
from flintlock.model.diagnostics import (
    MAX_LOG_BYTES,
    DumpProcessThreads,
    ListProcessLogs,
    ProcessLogRead,
    ProcessLogsListed,
    ProcessSettingsRead,
    ProcessThreadsDumped,
    ReadProcessLog,
    ReadProcessSettings,
)
from flintlock.model.errors import NotFound


async def answer_process_query(
    query: DumpProcessThreads | ListProcessLogs | ReadProcessLog | ReadProcessSettings,
    logs: ProcessLogs,
    settings: Mapping[str, str],
) -> ProcessThreadsDumped | ProcessLogsListed | ProcessLogRead | ProcessSettingsRead:
    """Return the answer. Raises NotFound for a log that does not exist here."""
    match query:
        case DumpProcessThreads():
            return ProcessThreadsDumped(stacks=(*thread_stacks(), *task_stacks()))
        case ListProcessLogs():
            return ProcessLogsListed(files=await asyncio.to_thread(logs.files))
        case ReadProcessSettings():
            return ProcessSettingsRead(settings=dict(settings))
        case ReadProcessLog():
            return await asyncio.to_thread(_read, query, logs)


def _read(query: ReadProcessLog, logs: ProcessLogs) -> ProcessLogRead:
    path = _path(query, logs)
    try:
        return ProcessLogRead(data=read_last_lines(path, MAX_LOG_BYTES))
    except OSError as error:  # it was removed meanwhile
        raise NotFound(f"log file {path.name} cannot be read: {error.strerror}") from error


def _path(query: ReadProcessLog, logs: ProcessLogs) -> Path:
    if query.file is not None:
        found, problem = logs.find(query.file), f"log file {query.file} was not found"
    elif query.engine:
        found, problem = logs.engine, "this TaskManager has no Spark engine with a log"
    elif query.stdout:
        found, problem = logs.stdout, "this TaskManager does not print to a file: see the process that started it"
    else:
        found, problem = (
            logs.log,
            "this TaskManager does not write its log to a file: see the process that started it",
        )
    if found is None:
        raise NotFound(problem)
    return found

"""What REST returns about the JobManager's own process. Names and types are Flink's."""

from __future__ import annotations

from flintlock.api.base import ApiStruct, CamelCase


class Interpreter(ApiStruct, frozen=True, kw_only=True):
    """What the process runs on: Python, where Flink has its JVM."""

    version: str
    arch: str
    options: list[str]


class Environment(ApiStruct, frozen=True, kw_only=True):
    """GET /jobmanager/environment. `classpath` is the search path of Python modules."""

    jvm: Interpreter
    classpath: list[str]


class LogFile(ApiStruct, frozen=True, kw_only=True):
    """A log file."""

    name: str
    size: int
    mtime: int


class LogFiles(ApiStruct, frozen=True, kw_only=True):
    """GET /jobmanager/logs."""

    logs: list[LogFile]


class ThreadInfo(CamelCase, frozen=True, kw_only=True):
    """What one thread, or one task of the event loop, does now."""

    thread_name: str
    stringified_thread_info: str


class ThreadDump(CamelCase, frozen=True, kw_only=True):
    """The stacks of a process: its threads, and the tasks of its event loop if it has one."""

    thread_infos: list[ThreadInfo]

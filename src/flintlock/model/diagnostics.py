"""What a process reports about itself when it is asked: the stacks of its threads, its log files, its engine's UI.

A query to a TaskManager's process is one message from REST to the TaskManager, as commands are:

    ProcessQuery   client -> REST -> ResourceManagerGateway.query_task_manager -> TaskManagerGateway.query_process
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.ids import TaskManagerId

#: How much of a log file is sent at most: its last bytes.
MAX_LOG_BYTES: Final = 4 << 20


#: How large a page of Spark's UI may be. Those of jobs with thousands of tasks have some hundred kilobytes.
MAX_UI_BYTES: Final = 8 << 20


class ThreadStack(Struct, frozen=True, kw_only=True):
    """What one thread, or one task of an event loop, does now."""

    name: str
    text: str  # a line with its name and id, then its frames, the innermost last


class DumpProcessThreads(Struct, frozen=True, kw_only=True, tag="dump-threads"):
    """Answer with the stacks of the TaskManager's threads and tasks (ProcessThreadsDumped)."""

    task_manager: TaskManagerId


class ListProcessLogs(Struct, frozen=True, kw_only=True, tag="list-logs"):
    """Answer with the log files on the TaskManager's machine (ProcessLogsListed)."""

    task_manager: TaskManagerId


class ReadProcessLog(Struct, frozen=True, kw_only=True, tag="read-log"):
    """Answer with the end of a log file (ProcessLogRead): the TaskManager's own log, unless another is named."""

    task_manager: TaskManagerId
    file: str | None = None  # one of the listed names
    stdout: bool = False  # without a name: where it prints, instead of its log
    engine: bool = False  # without a name: the log of its Spark engine


class ReadProcessSettings(Struct, frozen=True, kw_only=True, tag="read-settings"):
    """Answer with the TaskManager's effective configuration (ProcessSettingsRead)."""

    task_manager: TaskManagerId


class ReadEngineUi(Struct, frozen=True, kw_only=True, tag="read-engine-ui"):
    """Answer with a page of Spark's own UI of the TaskManager's engine (EngineUiPage)."""

    task_manager: TaskManagerId
    path: str  # with its query, as in a request to Spark
    root: str  # that the links of the page begin with


ProcessQuery: TypeAlias = DumpProcessThreads | ListProcessLogs | ReadProcessLog | ReadProcessSettings | ReadEngineUi


class ProcessThreadsDumped(Struct, frozen=True, kw_only=True, tag="threads-dumped"):
    """What each thread and each task of the event loop does now."""

    stacks: tuple[ThreadStack, ...]


class LogFileInfo(Struct, frozen=True, kw_only=True):
    """A log file."""

    name: str
    size: int
    modified_ms: int


class ProcessLogsListed(Struct, frozen=True, kw_only=True, tag="logs-listed"):
    """The log files of a machine, by name."""

    files: tuple[LogFileInfo, ...]


class ProcessLogRead(Struct, frozen=True, kw_only=True, tag="log-read"):
    """The end of a log file: whole lines, at most MAX_LOG_BYTES."""

    data: bytes


class ProcessSettingsRead(Struct, frozen=True, kw_only=True, tag="settings-read"):
    """The effective configuration of a process, without the values of secrets."""

    settings: dict[str, str]


class EngineUiPage(Struct, frozen=True, kw_only=True, tag="engine-ui-page"):
    """A response of Spark's UI: a page, a script, an image, or where to find one."""

    status: int
    content_type: str
    body: bytes  # at most MAX_UI_BYTES
    location: str = ""  # of a redirection: a path below the root


ProcessAnswer: TypeAlias = (
    ProcessThreadsDumped | ProcessLogsListed | ProcessLogRead | ProcessSettingsRead | EngineUiPage
)

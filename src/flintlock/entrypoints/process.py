"""What every process of Flintlock does first and last: arguments, configuration, logs, signals, exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import msgspec
import structlog

from flintlock import __version__
from flintlock.config.configuration import Configuration
from flintlock.config.files import load
from flintlock.config.options import YARN_APPLICATION_ID
from flintlock.host.cluster_spec import process_name, read_settings_file
from flintlock.host.files.private_files import make_private_directory
from flintlock.host.files.whole_files import write_whole
from flintlock.host.logs.log_output import QueuedLogOutput, stderr_output
from flintlock.host.processes.parent_death import die_with_parent
from flintlock.host.processes.pid_files import forget_exit, record_exit
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.causes import add_cause
from flintlock.model.errors import Corrupt, Invalid, Refused, Unavailable
from flintlock.model.jobgraph import Versions
from flintlock.monitoring.garbage import keep_collections_short
from flintlock.security.cluster_secret import ClusterSecret, open_cluster_secret

EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 4
EXIT_FATAL: Final = 5
EXIT_FAILED: Final = 6

#: How long a process that ends waits for the disk of its log and of its exit record, or for the reader of a pipe.
_FLUSH_S: Final = 2.0

#: The exit code of a process that ends without an error. UNKNOWN: it was stopped by a signal, which is no failure.
EXIT_CODES: Final = {
    ApplicationStatus.SUCCEEDED: 0,
    ApplicationStatus.CANCELED: 0,
    ApplicationStatus.FAILED: EXIT_FAILED,
    ApplicationStatus.UNKNOWN: 0,
}

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """How a process was started."""

    state_dir: Path
    configuration: Configuration
    secret: ClusterSecret
    index: int = 0
    log_output: QueuedLogOutput = field(default_factory=lambda: QueuedLogOutput(stderr_output()))

    def abort(self, reason: str) -> NoReturn:
        """End this process at once, without any clean-up: for errors in which that would hang."""
        log.critical(log_events.PROCESS_ABORTED, reason=reason)
        self.log_output.flush(_FLUSH_S)
        os._exit(EXIT_FATAL)


def start(
    name: str,
    main: Callable[[ProcessSettings], Coroutine[Any, Any, ApplicationStatus | None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run a server process until it ends or is stopped by SIGTERM or SIGINT; return its exit code.

    An error has a code of its own. Otherwise the status of the cluster decides (`EXIT_CODES`).
    """
    arguments = _parser(name).parse_args()
    if arguments.die_with_parent is not None:
        die_with_parent(arguments.die_with_parent or os.getppid())
    log_output = _configure_logs(process_name(name, arguments.index))
    ending = ProcessEnd(Path(arguments.state_dir), name, arguments.index, log_output)
    try:
        code = _run(arguments, main, loop_factory, ending)
        ending.write(code)
        return code
    finally:
        log_output.flush(_FLUSH_S)


class ProcessEnd:
    """What this process leaves behind about its end, for the supervisor, which decides whether to start it again."""

    def __init__(self, state_dir: Path, kind: str, index: int, log_output: QueuedLogOutput) -> None:
        self.kind: Final = kind
        self.log_output: Final = log_output
        self._state_dir: Final = state_dir
        self._name: Final = process_name(kind, index)
        self.reason = ""  # as a clause; empty if it ends without an error

    def fail(self, code: int, reason: str) -> int:
        """Log why the process ends, and return the code."""
        self.reason = reason
        if self.log_output.is_terminal():
            self.log_output.write(f"flintlock {self.kind}: {reason}")
        else:
            log.critical(log_events.PROCESS_NOT_STARTED, code=code, reason=reason)
        return code

    def forget_earlier(self) -> None:
        """Remove what an earlier process of this name has left. Raises OSError."""
        forget_exit(self._state_dir, self._name)

    def write(self, code: int) -> None:
        """Record the end; where the disk refuses or stalls, this process counts as killed."""
        writing = threading.Thread(target=self._write, args=(code,), name="exit-record", daemon=True)
        writing.start()
        writing.join(_FLUSH_S)

    def _write(self, code: int) -> None:
        with suppress(OSError):
            record_exit(self._state_dir, self._name, code, self.reason)


def _run(
    arguments: Namespace,
    main: Callable[[ProcessSettings], Coroutine[Any, Any, ApplicationStatus | None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    ending: ProcessEnd,
) -> int:
    try:
        state_dir = Path(arguments.state_dir).resolve()
        settings_file: Path | None = arguments.settings_file
        given = {} if settings_file is None else read_settings_file(settings_file)
        loaded = load([*(f"{key}={value}" for key, value in given.items()), *arguments.D])
        configuration = loaded.configuration
        for warning in loaded.warnings:
            log.warning(log_events.VARIABLE_IGNORED, reason=warning)
        make_private_directory(state_dir)
        ending.forget_earlier()
        settings = ProcessSettings(
            state_dir=state_dir,
            configuration=configuration,
            secret=open_cluster_secret(configuration, state_dir),
            index=arguments.index,
            log_output=ending.log_output,
        )
        keep_collections_short()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            status = runner.run(_until_stopped(main(settings), ending.kind))
    except Invalid as error:
        return ending.fail(EXIT_USAGE, "\n".join(error.problems))
    except (Refused, Unavailable, Corrupt) as error:
        return ending.fail(EXIT_UNUSABLE, error.public)
    except OSError as error:
        return ending.fail(EXIT_UNUSABLE, str(error))
    except BaseExceptionGroup as group:
        invalid = [error for error in flatten_errors(group) if isinstance(error, Invalid)]
        if len(invalid) == len(flatten_errors(group)):
            return ending.fail(EXIT_USAGE, "\n".join(problem for error in invalid for problem in error.problems))
        if all(isinstance(error, Refused | Unavailable | Corrupt | OSError) for error in flatten_errors(group)):
            return ending.fail(EXIT_UNUSABLE, "; ".join(str(error) for error in flatten_errors(group)))
        ending.reason = "; ".join(str(error) or type(error).__name__ for error in flatten_errors(group))
        log.critical(log_events.PROCESS_FAILED, exc_info=group)
        return EXIT_FATAL
    return EXIT_CODES[status]


def set_variables(configuration: Configuration, prefix: str, environ: MutableMapping[str, str]) -> None:
    """Set the environment variables that keys with this prefix name, in a process in a container of YARN.

    They are set by the process itself, not by YARN, which stores the environment of containers and copies it into their
    logs: it may have secrets of jobs.
    """
    if configuration.get(YARN_APPLICATION_ID):
        environ.update(configuration.variables(prefix))


def flatten_errors(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the errors inside a group, however deep."""
    found: list[BaseException] = []
    for error in group.exceptions:
        inner = cast("BaseExceptionGroup[BaseException]", error)
        found += flatten_errors(inner) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def cluster_versions() -> Versions:
    """Return the versions that run in this process, without importing the packages."""
    return Versions(
        flintlock=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        pyspark=version("pyspark"),
    )


def write_json(path: Path, value: object) -> None:
    """Write a small file so that readers see all of it or none."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(value), indent=2))


async def _until_stopped(main: Coroutine[Any, Any, ApplicationStatus | None], name: str) -> ApplicationStatus:
    """Return the status with which `main` ended; UNKNOWN if it has none, or was stopped by a signal."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    status: ApplicationStatus | None = None
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(main, name=name)
        waiting = tasks.create_task(stopped.wait(), name="signals")
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        log.info(log_events.PROCESS_STOPPING, signalled=stopped.is_set())
        if serving.done() and not serving.cancelled() and serving.exception() is None:
            status = serving.result()
        serving.cancel()
        waiting.cancel()
    return status or ApplicationStatus.UNKNOWN


def _parser(name: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"flintlock {name}")
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--die-with-parent", type=int, nargs="?", const=0, metavar="PID")
    parser.add_argument("--settings-file", type=Path)
    parser.add_argument("-D", action="append", default=[], metavar="key=value")
    return parser


def _json(event: object, default: Callable[[Any], Any]) -> str:
    return msgspec.json.encode(event, enc_hook=default).decode()


def _configure_logs(process: str) -> QueuedLogOutput:
    """Write JSON lines to stderr, or coloured text if it is a terminal.

    Each line begins with the same keys: when, how serious, which process, which event. The facts of the event follow.
    """

    def put_first(_: object, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        first = {key: entry.pop(key) for key in ("timestamp", "level") if key in entry}
        return {**first, "process": process, "event": entry.pop("event", ""), **entry}

    output = QueuedLogOutput(stderr_output())
    renderer = structlog.dev.ConsoleRenderer() if output.is_terminal() else structlog.processors.JSONRenderer(_json)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_cause,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            put_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    return output
